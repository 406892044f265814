"""The gateway's HTTP server on loopback, one per process: tokens, paths, encoding of replies."""

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
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cooperbench.agents import llm
from cooperbench.errors import InfraError, UserError
from cooperbench.gateway.access import Access
from cooperbench.gateway.access import Request as ModelRequest
from cooperbench.gateway.api_formats import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    JsonObject,
    Refused,
    encode_event,
    error_body,
    error_event,
)
from cooperbench.gateway.conversations import Calls, Conversations
from cooperbench.gateway.mcp_server import mcp_endpoint
from cooperbench.gateway.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import Receive, Scope, Send

    from cooperbench.agents.session import AgentSession

MCP_PATH = "/mcp"
_COUNT_TOKENS_PATH = re.compile(r"(/v1)?/messages/count_tokens")
_GEMINI_STREAM_METHOD = ":streamGenerateContent"
_PATHS = {
    re.compile(r"(/v1)?/chat/completions"): CHAT,
    re.compile(r"(/v1)?/responses"): RESPONSES,
    re.compile(r"(/v1)?/messages(/count_tokens)?"): ANTHROPIC,
    re.compile(
        r"""
        (/v1|/v1beta|/v1alpha)?
        /models/[^/:]+              # the model's name, which does not matter
        :(generateContent|streamGenerateContent)
        """,
        re.VERBOSE,
    ): GEMINI,
}
_MAX_BODY_BYTES = 64 << 20
_THREADS = 64
"""Threads in which sessions are used, because they may wait for their sandboxes."""
_WATCH_SECONDS = 0.2
_IDLE_CONNECTION_SECONDS = 600
_PROVIDER_KEEPALIVE_SECONDS = 4.0
"""Time that a connection to a provider is kept. Many servers (e.g. vLLM) close it after 5 s."""


class Gateway:
    """The server. It runs from its first use until the process ends."""

    _shared: Gateway | None = None
    _shared_lock = threading.Lock()

    @classmethod
    def shared(cls) -> Gateway:
        """Return this process's gateway. The first call starts it."""
        with cls._shared_lock:
            if cls._shared is None:
                gateway = cls()
                gateway._start()
                atexit.register(gateway._close)
                cls._shared = gateway
            return cls._shared

    def __init__(self) -> None:
        self.port: int
        self._accesses: dict[str, Access] = {}
        """Accesses by their tokens."""
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._connections: aiohttp.TCPConnector
        self._server: uvicorn.Server
        self._mcp: StreamableHTTPSessionManager

    @contextmanager
    def open(
        self, session: AgentSession, model_kwargs: Mapping[str, Any], calls: Calls | None = None
    ) -> Iterator[Access]:
        """Give an agent access while the context is open.

        `model_kwargs` are arguments of every model call. `calls` is for frameworks that run outside
        of the agent's sandbox.
        """
        if session.model is None:
            raise UserError("this agent needs a model: -m MODEL")
        llm.remember_secrets(model_kwargs)
        if session.base_url:
            model_kwargs = {**model_kwargs, "api_base": session.base_url}
        # Each agent has its own cookies: they may lead to the server that has cached its history.
        cookies = aiohttp.CookieJar(unsafe=True, loop=self._loop)
        http = aiohttp.ClientSession(
            connector=self._connections, connector_owner=False, cookie_jar=cookies
        )
        upstream = Upstream(session.called_model or session.model, model_kwargs, http)
        token = f"cb-{secrets.token_urlsafe(32)}"
        access = Access(token, session, upstream, calls or Conversations(session), self._loop)
        self._accesses[token] = access
        try:
            yield access
        finally:
            del self._accesses[token]
            access.finish()
            with suppress(RuntimeError):  # the process is ending
                asyncio.run_coroutine_threadsafe(access.cancel(), self._loop).result(30)
            access.calls.finish()

    def _start(self) -> None:
        # Errors are sent to programs and become outcomes of their agents; no log is needed.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self._thread.start()
        self._started.result()

    def _close(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(2)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except Exception as error:
            self._started.set_exception(InfraError(f"the gateway does not start: {error}"))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(_THREADS, "gateway"))
        tls = httpx.create_ssl_context()
        tls.set_alpn_protocols(["http/1.1"])
        self._connections = aiohttp.TCPConnector(
            limit=0, ssl=tls, keepalive_timeout=_PROVIDER_KEEPALIVE_SECONDS
        )
        config = uvicorn.Config(
            self._handle,
            interface="asgi3",
            lifespan="off",
            ws="none",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            timeout_keep_alive=_IDLE_CONNECTION_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._mcp = mcp_endpoint(self._accesses.get)
        watch = asyncio.create_task(self._watch())
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        # asyncio does not do this for sockets that it is given.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        self._started.set_result(None)
        async with self._mcp.run():
            await self._server.serve(sockets=[listener])
        watch.cancel()
        await self._connections.close()

    async def _watch(self) -> None:
        """End agents whose time is up or whose run is being stopped."""
        while True:
            for access in list(self._accesses.values()):
                access.check_running()
            await asyncio.sleep(_WATCH_SECONDS)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request (the ASGI application)."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        path = scope["path"].rstrip("/")
        access = self._accesses.get(_token_of(request))
        if access and path == MCP_PATH:
            await self._mcp.handle_request(scope, receive, send)
            return
        api_format = _api_format_of(path)
        try:
            if access is None:
                raise Refused(401, "this token is not valid, or no longer valid")
            if api_format is None or request.method != "POST":
                raise Refused(404, f"{request.method} {path[:200]} does not exist")
            response = await _respond(request, access, _Target(api_format, path))
        except Refused as refusal:
            response = _json_response(error_body(api_format or CHAT, refusal), refusal.status)
        await response(scope, receive, send)


class _Target(NamedTuple):
    """The API format and the path of a request."""

    api_format: str
    path: str


def _api_format_of(path: str) -> str | None:
    for pattern, api_format in _PATHS.items():
        if pattern.fullmatch(path):
            return api_format
    return None


async def _respond(request: Request, access: Access, target: _Target) -> Response:
    body = await _read_body(request)
    if _COUNT_TOKENS_PATH.fullmatch(target.path):
        return _json_response({"input_tokens": await access.count_tokens(body)})
    stream = bool(target.path.endswith(_GEMINI_STREAM_METHOD) or body.get("stream"))
    events = access.serve(ModelRequest(target.api_format, body, request.headers, stream))
    first_event = await anext(events)
    if not stream:
        return _json_response(first_event)
    encoded = _encode_events(target.api_format, first_event, events)
    return StreamingResponse(encoded, media_type="text/event-stream")


def _json_response(content: object, status: int = 200) -> Response:
    """Return a response in ASCII: Starlette's own cannot encode lone surrogates."""
    return Response(json.dumps(content), status, media_type="application/json")


async def _encode_events(
    api_format: str, first_event: JsonObject | None, events: AsyncIterator[JsonObject | None]
) -> AsyncIterator[bytes]:
    yield _encode_or_ping(api_format, first_event)
    try:
        async for event in events:
            yield _encode_or_ping(api_format, event)
    except Refused as refusal:
        yield error_event(api_format, refusal)
    else:
        if api_format == CHAT:
            yield b"data: [DONE]\n\n"


def _encode_or_ping(api_format: str, event: JsonObject | None) -> bytes:
    """Encode an event. A ping is a blank line, because Google's clients cannot read comments."""
    return encode_event(api_format, event) if event else b"\n"


def _token_of(request: Request) -> str:
    """Return the token of a request. Each vendor's client puts it into another place."""
    headers = request.headers
    api_key = headers.get("x-api-key") or headers.get("x-goog-api-key")
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    return api_key or bearer or request.query_params.get("key", "")


async def _read_body(request: Request) -> JsonObject:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > _MAX_BODY_BYTES:
            raise Refused(413, f"the request is larger than {_MAX_BODY_BYTES >> 20} MB")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "the request is not a JSON object")
    return body
