"""The server: one per process, on loopback. Who asks, in which dialect, and how an answer goes back.

It reaches no further than to the accesses that are open: any other token gets 401. What a request means for its agent
is said in `access`.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import re
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from cooperbench.agents import llm
from cooperbench.gateway import dialects
from cooperbench.gateway.access import Access, Refused
from cooperbench.gateway.dialects import ANTHROPIC, CHAT, GEMINI, RESPONSES
from cooperbench.gateway.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    from cooperbench.agents.session import Session

_PATHS = {
    re.compile(r"(/v1)?/chat/completions"): CHAT,
    re.compile(r"(/v1)?/responses"): RESPONSES,
    re.compile(r"(/v1)?/messages(?P<count>/count_tokens)?"): ANTHROPIC,
    re.compile(
        r"(/v1|/v1beta|/v1alpha)?/models/[^/:]+:(generateContent|(?P<stream>streamGenerateContent))"
    ): GEMINI,
}
MCP_PATH = "/mcp"
_LARGEST_BODY = 64 << 20
_THREADS = 64
"""Where sessions are used, which may wait for their sandboxes."""
_WATCH_SECONDS = 0.2
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete")
_IDLE_CONNECTION_SECONDS = 600


class Gateway:
    """Listens from the first use until the process ends.

    Base URLs for clients: chat and responses `http://HOST:PORT/v1`, Anthropic and Gemini `http://HOST:PORT`, MCP
    `http://HOST:PORT/mcp`. The model's name in requests does not matter: it is the one that the access was opened for.
    """

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
        self._uvicorn = llm.import_extra("uvicorn", "an agent with a model client of its own", {})
        # What goes wrong is told to programs, and is their agents' outcome.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self._accesses: dict[str, Access] = {}
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="gateway", daemon=True)
        self._thread.start()
        self._ready.wait()

    def open(self, session: Session, model: str, model_kwargs: Mapping[str, Any] | None = None) -> Access:
        """A token for one agent. `model_kwargs`: what the agent config adds to every call (api_base, api_key …)."""
        llm.remember_secrets(model_kwargs or {})
        token = f"cb-{secrets.token_urlsafe(32)}"
        access = Access(self, token, session, Upstream(model, model_kwargs or {}, self._http))
        self._accesses[token] = access
        return access

    def close(self, access: Access) -> None:
        self._accesses.pop(access.token, None)
        with suppress(RuntimeError):  # the process ends
            asyncio.run_coroutine_threadsafe(access.cancel(), self._loop).result(30)

    async def _main(self) -> None:
        import httpx

        from cooperbench.gateway.mcp_server import mcp_endpoint

        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(_THREADS, "gateway"))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self._http = httpx.AsyncClient(limits=limits, timeout=llm.DEFAULT_CALL_SECONDS)
        quiet = {
            "log_config": None,
            "access_log": False,
            "lifespan": "off",
            "ws": "none",
            "proxy_headers": False,
        }
        config = self._uvicorn.Config(
            self._answer, interface="asgi3", timeout_keep_alive=_IDLE_CONNECTION_SECONDS, **quiet
        )
        self._server = self._uvicorn.Server(config)
        self._mcp = mcp_endpoint(self._accesses.get)
        watch = asyncio.create_task(self._watch())
        self._ready.set()
        async with self._http, self._mcp.run():
            await self._server.serve(sockets=[self._socket])
        watch.cancel()

    async def _watch(self) -> None:
        """Whose time is up, and whose run is being stopped."""
        while True:
            for access in list(self._accesses.values()):
                access.check_running()
            await asyncio.sleep(_WATCH_SECONDS)

    def _close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(2)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"].rstrip("/")
        found = next(((match, name) for one, name in _PATHS.items() if (match := one.fullmatch(path))), None)
        response = Response(send, found[1] if found else CHAT)
        access = self._accesses.get(_token(headers, scope["query_string"]))
        try:
            if access is None:
                raise Refused(401, "this token is not, or no longer, valid")
            if path == MCP_PATH:
                await self._mcp.handle_request(scope, receive, send)
            elif found is None or scope["method"] != "POST":
                raise Refused(404, f"there is no {scope['method']} {path[:200]} here")
            elif found[0].groupdict().get("count"):
                counted = await access.upstream.count_tokens(await _body(receive))
                await response.json(200, {"input_tokens": counted})
            else:
                body = await _body(receive)
                response.streamed = bool(found[0].groupdict().get("stream") or body.get("stream"))
                await access.serve(found[1], body, headers, response)
        except Refused as refusal:
            await response.fail(refusal)
        except Exception as error:
            await response.fail(Refused(400, f"{type(error).__name__}: {error}"))


class Response:
    """To one request. As server-sent events, it begins with the first of them."""

    def __init__(self, send: Send, dialect: str) -> None:
        self._send = send
        self._dialect = dialect
        self.streamed = False
        self._begun = False
        self.has_events = False
        """Whether something of the answer has gone out: then it cannot be asked for again."""
        self._last: list[Mapping[str, Any]] = []

    async def add(self, event: Mapping[str, Any]) -> None:
        """An event of the answer, or all of it. What tells the program that it is whole waits for `end`."""
        if not self.streamed:
            self._last = [event]
        elif event.get("type") in _LAST_EVENTS:
            self._last.append(event)
        else:
            self.has_events = True
            await self._write(dialects.encode(self._dialect, event))

    async def ping(self) -> None:
        """So that nobody takes the connection for a dead one. (Google's clients do not read comments.)"""
        if not self.has_events:
            await self._write(b"\n")

    async def end(self) -> None:
        if not self.streamed:
            return await self.json(200, self._last[0])
        last = b"".join(dialects.encode(self._dialect, event) for event in self._last)
        last += b"data: [DONE]\n\n" if self._dialect == CHAT else b""
        return await self._write(last, more=False)

    async def fail(self, refusal: Refused) -> None:
        what = self._dialect, refusal.status, str(refusal), refusal.overflow
        if self._begun:
            await self._write(dialects.error_event(*what), more=False)
        else:
            await self.json(refusal.status, dialects.error_body(*what))

    async def json(self, status: int, body: Mapping[str, Any]) -> None:
        await self._start(status, b"application/json")
        await self._write(json.dumps(body).encode(), more=False)

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if not self._begun:
            await self._start(200, b"text/event-stream")
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _start(self, status: int, content_type: bytes) -> None:
        self._begun = True
        headers = [(b"content-type", content_type), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _token(headers: Mapping[str, str], query: bytes) -> str:
    """Each client puts it somewhere else."""
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    in_query = parse_qs(query.decode("latin-1")).get("key", [""])[0]
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or bearer or in_query


async def _body(receive: Receive) -> dict[str, Any]:
    data, more = bytearray(), True
    while more:
        message = await receive()
        data += message.get("body", b"")
        if len(data) > _LARGEST_BODY:
            raise Refused(413, f"the request has more than {_LARGEST_BODY >> 20} MB")
        more = message.get("more_body", False)
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "the request is no JSON object")
    return body
