"""Messages and the team's tools as tools of the Model Context Protocol, at the gateway's address.

It is streamable HTTP without sessions: the bearer token of a request identifies the agent. Messages
that `wait_for_message` returns count as shown; they are not added to the conversation again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from mcp.server.lowlevel import Server
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as ToolDescription

from cooperbench.team.inbox import EVERYBODY
from cooperbench.team.sandbox_rpc import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from cooperbench.gateway.access import Access

    FindAccess = Callable[[str], Access | None]

DEFAULT_WAIT_SECONDS = 30.0
MAX_WAIT_SECONDS = 300.0
_MAX_THREADS = 1_000
"""Each agent that waits for a message needs one."""
_POLL_SECONDS = 0.2
_NO_TEAMMATES = Response(0, "You have no teammates to write to.")


def mcp_endpoint(find_access: FindAccess) -> StreamableHTTPSessionManager:
    """Return the handler of the path `/mcp`.

    `find_access` returns the access of a token, or None if the token is not valid.
    """
    limiter = CapacityLimiter(_MAX_THREADS)

    async def list_tools(context: Any, _: Any) -> ListToolsResult:
        descriptions = [
            ToolDescription(
                name=tool.name, description=tool.description, input_schema=tool.parameters
            )
            for tool in _tools_of(find_access, context).values()
        ]
        return ListToolsResult(tools=descriptions)

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        def call() -> Response:
            tool = _tools_of(find_access, context).get(params.name)
            return _call_tool(tool, params.name, params.arguments or {})

        # Tools may wait, so each call has its own thread.
        response = await run_sync(call, limiter=limiter, abandon_on_cancel=True)
        content = TextContent(text=response.text)
        return CallToolResult(content=[content], is_error=response.code != 0)

    server = Server("cooperbench", on_list_tools=list_tools, on_call_tool=call_tool)
    server.streamable_http_app(stateless_http=True, json_response=True)
    return server.session_manager


def _tools_of(find_access: FindAccess, context: Any) -> dict[str, Tool]:
    """Return the tools of the agent whose token the request has."""
    token = context.request.headers.get("authorization", "").removeprefix("Bearer ")
    access = find_access(token)
    if access is None:
        return {}
    functions = {**_message_tools(access), **access.session.tools}
    return {
        name: Tool.from_function(function, name, structured_output=False)
        for name, function in functions.items()
    }


def _call_tool(tool: Tool | None, name: str, arguments: dict[str, object]) -> Response:
    if tool is None:
        return Response(1, f"there is no tool {name!r}, or the token is not valid")
    try:
        validated = tool.fn_metadata.validate_arguments(arguments)
    except ValueError as error:
        return Response(1, str(error))
    response: Response = tool.fn(**validated)
    return response


def _message_tools(access: Access) -> dict[str, Callable[..., Response]]:
    inbox = access.session.inbox

    def send_message(to: str, text: str) -> Response:
        """Send a message to a teammate: to="agent2", or to="all" for everybody."""
        if inbox is None or not inbox.has_messages:
            return _NO_TEAMMATES
        response = inbox.send(EVERYBODY if to == "all" else to, text)
        if response.code != 0:
            return Response(0, f"Not sent: {response.text}")
        return Response(0, "\n".join(["Message sent.", *response.text.splitlines()[1:]]))

    def wait_for_message(timeout: float = DEFAULT_WAIT_SECONDS) -> Response:
        """Wait for messages from teammates, at most `timeout` seconds (up to 300)."""
        if inbox is None:
            return _NO_TEAMMATES
        deadline = time.monotonic() + min(timeout, MAX_WAIT_SECONDS)
        while not inbox.wait(0):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or access.ended.wait(min(remaining, _POLL_SECONDS)):
                break
        with access.lock:
            messages = access.session.incoming()
        texts = [message.shown for message in messages]
        return Response(0, "\n\n".join(texts) or "No message came.")

    return {"send_message": send_message, "wait_for_message": wait_for_message}
