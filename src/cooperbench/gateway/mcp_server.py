"""Messages as tools of the Model Context Protocol: `send_message` and `wait_for_message`, at the gateway's address.

An agent of setting team has the team's tools (team/tools) besides, unless they are switched off.

Streamable HTTP without sessions: each request stands for itself, and its bearer token says whose it is. A message goes
to the same mailbox as one of the command `send_message`; the call is on record as a step of the conversation in which
it was made. What `wait_for_message` returns counts as shown: it is not added to the conversation again.
"""

from __future__ import annotations

import time
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp_types import ListToolsResult
from mcp_types import Tool as MCPTool

from cooperbench.agents.worker.client import message_text
from cooperbench.team.inbox import EVERYBODY
from cooperbench.team.tools import finished

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.types import ASGIApp

    from cooperbench.gateway.access import Access
    from cooperbench.team.tools import Answer

DEFAULT_WAIT_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 300.0
_MOST_THREADS = 1_000
"""An agent that waits for a message has one."""
_WAKE_SECONDS = 0.2
_NOBODY = "There is nobody to write to."


class Endpoint(NamedTuple):
    app: ASGIApp
    """For the gateway's path `/mcp`."""
    run: Callable[[], AbstractAsyncContextManager[None]]
    """Around the server, once."""


def mcp_endpoint(find: Callable[[str], Access | None]) -> Endpoint:
    """`find` gives the access of a token that is valid now."""
    limiter = CapacityLimiter(_MOST_THREADS)

    def access_of(request: Any) -> Access:
        access = find(request.headers.get("authorization", "").removeprefix("Bearer "))
        if access is None:
            raise ToolError("the token is not valid")
        return access

    async def in_thread(call: Callable[[Access], str], context: Context[Any, Any]) -> str:
        access = access_of(context.request_context.request)
        return await run_sync(partial(call, access), limiter=limiter, abandon_on_cancel=True)

    class Server(MCPServer):
        """Which tools there are depends on who asks."""

        async def _handle_list_tools(self, ctx: Any, params: Any) -> ListToolsResult:
            listed = await super()._handle_list_tools(ctx, params)
            tools = (_as_tool(*one, limiter) for one in access_of(ctx.request).session.tools.items())
            listed.tools += [
                MCPTool(name=one.name, description=one.description, input_schema=one.parameters)
                for one in tools
            ]
            return listed

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            tools = access_of(context.request_context.request).session.tools
            if name not in tools:
                return await super().call_tool(name, arguments, context)
            return await _as_tool(name, tools[name], limiter).run(arguments, context, convert_result=True)

    server = Server("cooperbench", log_level="ERROR")

    async def send_message(to: str, text: str, context: Context[Any, Any]) -> str:
        """Send a message to a colleague: to="agent2", or to="all" for everybody."""
        return await in_thread(partial(_send, to, text), context)

    async def wait_for_message(context: Context[Any, Any], timeout: float = DEFAULT_WAIT_SECONDS) -> str:
        """Wait until a colleague sends you something, at most `timeout` seconds (up to 300), and read it."""
        return await in_thread(partial(_wait, timeout), context)

    for tool in (send_message, wait_for_message):
        server.add_tool(tool, structured_output=False)
    server.streamable_http_app(stateless_http=True, json_response=True)
    return Endpoint(StreamableHTTPASGIApp(server.session_manager), server.session_manager.run)


def _as_tool(name: str, function: Callable[..., Answer], limiter: CapacityLimiter) -> Tool:
    """A tool of a team; a request waits in a thread of its own for its answer."""

    @wraps(function)
    async def call(**arguments: Any) -> str:
        response = await run_sync(
            lambda: finished(function(**arguments)), limiter=limiter, abandon_on_cancel=True
        )
        if response.code:
            raise ToolError(response.text)
        return response.text

    return Tool.from_function(call, name, structured_output=False)


def _send(to: str, text: str, access: Access) -> str:
    inbox = access.session.inbox
    if inbox is None or not inbox.has_messages:
        return _NOBODY
    response = inbox.send(EVERYBODY if to == "all" else to, text)
    if response.code != 0:
        return f"Not sent: {response.text}"
    return "\n".join(["Message sent.", *response.text.splitlines()[1:]])


def _wait(seconds: float, access: Access) -> str:
    inbox, end = access.session.inbox, time.monotonic() + min(seconds, LONGEST_WAIT_SECONDS)
    if inbox is None:
        return _NOBODY
    while not inbox.wait(0) and (left := end - time.monotonic()) > 0:
        if access.ended.wait(min(left, _WAKE_SECONDS)):
            break
    with access.lock:
        messages = access.session.incoming()
    return "\n\n".join(message_text(one.sender, one.text) for one in messages) or "No message came."
