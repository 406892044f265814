"""Messages and the team's tools as tools of the Model Context Protocol, at the gateway's address.

Streamable HTTP without sessions: the bearer token of a request says whose it is. What `wait_for_message` returns counts
as shown: it is not added to the conversation again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from mcp.server.lowlevel import Server
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as MCPTool

from cooperbench.team.inbox import EVERYBODY
from cooperbench.team.sandbox_rpc import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from cooperbench.gateway.access import Access

DEFAULT_WAIT_SECONDS = 30.0
MAX_WAIT_SECONDS = 300.0
_MAX_THREADS = 1_000
"""An agent that waits for a message has one."""
_WAKE_SECONDS = 0.2
_NOBODY = Response(0, "There is nobody to write to.")


def mcp_endpoint(find: Callable[[str], Access | None]) -> StreamableHTTPSessionManager:
    """For the gateway's path `/mcp`; `find` gives the access of a token that is valid now."""
    limiter = CapacityLimiter(_MAX_THREADS)

    def tools_of(context: Any) -> dict[str, Tool]:
        access = find(context.request.headers.get("authorization", "").removeprefix("Bearer "))
        functions = {**_message_tools(access), **access.session.tools} if access else {}
        return {
            name: Tool.from_function(function, name, structured_output=False)
            for name, function in functions.items()
        }

    async def list_tools(context: Any, _: Any) -> ListToolsResult:
        tools = tools_of(context).values()
        return ListToolsResult(
            tools=[
                MCPTool(name=one.name, description=one.description, input_schema=one.parameters)
                for one in tools
            ]
        )

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        def call() -> Response:
            tool = tools_of(context).get(params.name)
            if tool is None:
                return Response(1, f"there is no tool {params.name!r}, or the token is not valid")
            try:
                given = tool.fn_metadata.validate_arguments(params.arguments or {})
            except ValueError as error:
                return Response(1, str(error))
            response: Response = tool.fn(**given)
            return response

        # A request waits in a thread of its own for its answer.
        response = await run_sync(call, limiter=limiter, abandon_on_cancel=True)
        return CallToolResult(
            content=[TextContent(text=response.text)], is_error=response.code != 0
        )

    server = Server("cooperbench", on_list_tools=list_tools, on_call_tool=call_tool)
    server.streamable_http_app(stateless_http=True, json_response=True)
    return server.session_manager


def _message_tools(access: Access) -> dict[str, Callable[..., Response]]:
    inbox = access.session.inbox

    def send_message(to: str, text: str) -> Response:
        """Send a message to a teammate: to="agent2", or to="all" for everybody."""
        if inbox is None or not inbox.has_messages:
            return _NOBODY
        response = inbox.send(EVERYBODY if to == "all" else to, text)
        if response.code != 0:
            return Response(0, f"Not sent: {response.text}")
        return Response(0, "\n".join(["Message sent.", *response.text.splitlines()[1:]]))

    def wait_for_message(timeout: float = DEFAULT_WAIT_SECONDS) -> Response:
        """Wait until a teammate sends you something, at most `timeout` seconds (up to 300), and read it."""
        if inbox is None:
            return _NOBODY
        end = time.monotonic() + min(timeout, MAX_WAIT_SECONDS)
        while not inbox.wait(0) and (left := end - time.monotonic()) > 0:
            if access.ended.wait(min(left, _WAKE_SECONDS)):
                break
        with access.lock:
            messages = access.session.incoming()
        texts = [one.shown for one in messages]
        return Response(0, "\n\n".join(texts) or "No message came.")

    return {"send_message": send_message, "wait_for_message": wait_for_message}
