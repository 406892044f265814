"""The server: one per process, on loopback. Who asks, in which API format, and how an answer goes back."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import re
import secrets
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cooperbench.agents import llm
from cooperbench.errors import InfraError, UserError
from cooperbench.gateway import api_formats
from cooperbench.gateway.access import Access
from cooperbench.gateway.access import Request as ModelRequest
from cooperbench.gateway.api_formats import ANTHROPIC, CHAT, GEMINI, RESPONSES, Refused
from cooperbench.gateway.conversations import Calls, Conversations
from cooperbench.gateway.mcp_server import mcp_endpoint
from cooperbench.gateway.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from starlette.types import Receive, Scope, Send

    from cooperbench.agents.session import AgentSession

_PATHS = {
    re.compile(r"(/v1)?/chat/completions"): CHAT,
    re.compile(r"(/v1)?/responses"): RESPONSES,
    re.compile(r"(/v1)?/messages(?P<count>/count_tokens)?"): ANTHROPIC,
    re.compile(
        r"(/v1|/v1beta|/v1alpha)?/models/[^/:]+:(generateContent|(?P<stream>streamGenerateContent))"
    ): GEMINI,
}
MCP_PATH = "/mcp"
_MAX_BODY_BYTES = 64 << 20
_THREADS = 64
"""Where sessions are used, which may wait for their sandboxes."""
_WATCH_SECONDS = 0.2
_IDLE_CONNECTION_SECONDS = 600
_KEPT_OPEN_SECONDS = 4.0
"""A connection to a provider, for the next request. Many servers (vLLM's, too) close theirs after 5 seconds."""


class Gateway:
    """Listens from the first use until the process ends. The model's name in requests does not matter."""

    _shared: Gateway | None = None
    _shared_lock = threading.Lock()

    @classmethod
    def shared(cls) -> Gateway:
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls()
                atexit.register(cls._shared._close)
            return cls._shared

    def __init__(self) -> None:
        # What goes wrong is told to programs, and is their agents' outcome.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self._accesses: dict[str, Access] = {}
        self.port: int
        self._loop: asyncio.AbstractEventLoop
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._thread.start()
        self._ready.result()

    @contextmanager
    def open(
        self, session: AgentSession, model_kwargs: Mapping[str, Any], calls: Calls | None = None
    ) -> Iterator[Access]:
        """A token for one agent. `model_kwargs` is in every call; `calls` is given for one outside of its sandbox."""
        if session.model is None:
            raise UserError("this agent needs a model: -m MODEL")
        llm.remember_secrets(model_kwargs)
        if session.base_url:
            model_kwargs = {**model_kwargs, "api_base": session.base_url}
        # Cookies are an agent's own: they may lead it to the server that has its history in a cache.
        jar = aiohttp.CookieJar(unsafe=True, loop=self._loop)
        http = aiohttp.ClientSession(
            connector=self._connections, connector_owner=False, cookie_jar=jar
        )
        upstream = Upstream(session.model, model_kwargs, http)
        token = f"cb-{secrets.token_urlsafe(32)}"
        access = Access(token, session, upstream, calls or Conversations(session), self._loop)
        self._accesses[access.token] = access
        try:
            yield access
        finally:
            del self._accesses[access.token]
            with access.lock:
                access.closed = True
            with suppress(RuntimeError):  # the process ends
                asyncio.run_coroutine_threadsafe(access.cancel(), self._loop).result(30)
            access.calls.finish()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main())
        except Exception as error:
            self._ready.set_exception(InfraError(f"the gateway does not start: {error}"))

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(_THREADS, "gateway"))
        tls = httpx.create_ssl_context()
        tls.set_alpn_protocols(["http/1.1"])
        self._connections = aiohttp.TCPConnector(
            limit=0, ssl=tls, keepalive_timeout=_KEPT_OPEN_SECONDS
        )
        options: Any = {
            "interface": "asgi3",
            "lifespan": "off",
            "ws": "none",
            "proxy_headers": False,
        }
        options |= {
            "log_config": None,
            "access_log": False,
            "timeout_keep_alive": _IDLE_CONNECTION_SECONDS,
        }
        self._server = uvicorn.Server(uvicorn.Config(self._app, **options))
        self._mcp = mcp_endpoint(self._accesses.get)
        watch = asyncio.create_task(self._watch())
        listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # asyncio does not do it for this one
        self.port = listening.getsockname()[1]
        self._ready.set_result(None)
        async with self._mcp.run():
            await self._server.serve(sockets=[listening])
        watch.cancel()
        await self._connections.close()

    async def _watch(self) -> None:
        """Whose time is up, and whose run is being stopped."""
        while True:
            for access in list(self._accesses.values()):
                access.check_running()
            await asyncio.sleep(_WATCH_SECONDS)

    def _close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(2)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request, path = Request(scope, receive), scope["path"].rstrip("/")
        access = self._accesses.get(_token(request))
        if access and path == MCP_PATH:
            await self._mcp.handle_request(scope, receive, send)
            return
        found = next(
            ((match, name) for one, name in _PATHS.items() if (match := one.fullmatch(path))), None
        )
        api_format = found[1] if found else CHAT
        try:
            if access is None:
                raise Refused(401, "this token is not, or no longer, valid")
            if found is None or request.method != "POST":
                raise Refused(404, f"there is no {request.method} {path[:200]} here")
            response = await _reply(request, access, api_format, found[0].groupdict())
        except Refused as refusal:
            response = _json(api_formats.error_body(api_format, refusal), refusal.status)
        await response(scope, receive, send)


async def _reply(
    request: Request, access: Access, api_format: str, found: Mapping[str, str | None]
) -> Response:
    body = await _body(request)
    if found.get("count"):
        return _json({"input_tokens": await access.count_tokens(body)})
    stream = bool(found.get("stream") or body.get("stream"))
    events = access.serve(ModelRequest(api_format, body, request.headers, stream))
    first = await anext(events)
    if not stream:
        return _json(first)
    return StreamingResponse(_encoded(api_format, first, events), media_type="text/event-stream")


def _json(content: object, status: int = 200) -> Response:
    """In ASCII, unlike Starlette's own: half a surrogate pair has no UTF-8."""
    return Response(json.dumps(content), status, media_type="application/json")


async def _encoded(
    api_format: str,
    first: Mapping[str, Any] | None,
    events: AsyncIterator[Mapping[str, Any] | None],
) -> AsyncIterator[bytes]:
    """Without an event there is a blank line. (Google's clients do not read comments.)"""
    yield api_formats.encode(api_format, first) if first else b"\n"
    try:
        async for event in events:
            yield api_formats.encode(api_format, event) if event else b"\n"
    except Refused as refusal:
        yield api_formats.error_event(api_format, refusal)
    else:
        if api_format == CHAT:
            yield b"data: [DONE]\n\n"


def _token(request: Request) -> str:
    """Each client puts it somewhere else."""
    headers = request.headers
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    key = headers.get("x-api-key") or headers.get("x-goog-api-key")
    return key or bearer or request.query_params.get("key", "")


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > _MAX_BODY_BYTES:
            raise Refused(413, f"the request has more than {_MAX_BODY_BYTES >> 20} MB")
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "the request is no JSON object")
    return body
