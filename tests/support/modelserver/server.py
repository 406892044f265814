"""The server itself: threads, connections that stay open, one answer a packet."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from tests.support.modelserver import anthropic_messages, gemini, openai_chat, openai_responses
from tests.support.modelserver.replies import Answer, Broken, Failure, Hold, Reply
from tests.support.modelserver.requests import Request

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator
    from types import TracebackType


class Protocolled(Protocol):
    """What a module of a protocol has."""

    PATHS: re.Pattern[str]

    def messages_of(self, body: Mapping[str, Any]) -> list[Mapping[str, Any]]: ...
    def answer(self, reply: Answer, model: str, serial: int) -> dict[str, Any]: ...
    def events(self, whole: Mapping[str, Any]) -> Iterator[bytes]: ...
    def failure(self, reply: Failure) -> dict[str, Any]: ...


PROTOCOLS = cast(
    "tuple[Protocolled, ...]", (openai_chat, anthropic_messages, openai_responses, gemini)
)
Script = Callable[[Request], Reply] | Sequence[Reply]


class ModelServer:
    """Listens from the beginning; leaving the `with` block ends every connection and every thread."""

    def __init__(self) -> None:
        self._scripts: dict[str, Script] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self._http = _Http(self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="modelserver"
        )
        self._thread.start()

    @property
    def anthropic_url(self) -> str:
        """For clients that add `/v1/messages`, or `/v1beta/models/…`."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def openai_url(self) -> str:
        """For clients that add `/chat/completions`, or `/responses`."""
        return f"{self.anthropic_url}/v1"

    def script(self, marker: str, script: Script) -> None:
        """Answer requests that carry the marker by this script; one of the same marker is replaced."""
        with self._lock:
            self._scripts[marker] = script
            self._numbers = {
                key: number for key, number in self._numbers.items() if key[0] != marker
            }

    @property
    def requests(self) -> list[Request]:
        """All that came, in order."""
        with self._lock:
            return list(self._requests)

    def requests_of(self, marker: str) -> list[Request]:
        return [request for request in self.requests if request.marker == marker]

    def reply_to(self, request: Request) -> tuple[Reply, Request]:
        """What its script says, and the request with its place in the conversation."""
        with self._lock:
            fitting = [
                mark for mark in self._scripts if mark in request.api_key or mark in request.opening
            ]
            marker = max(fitting, key=len, default=None)
            if marker is not None:
                conversation = (marker, request.beginning)
                self._numbers[conversation] = self._numbers.get(conversation, 0) + 1
                request = replace(request, marker=marker, number=self._numbers[conversation])
            self._requests.append(request)
            script = None if marker is None else self._scripts[marker]
        if script is None:
            return Failure(400, "no script fits this request", "invalid_request_error"), request
        if callable(script):
            return script(request), request
        if request.number > len(script):
            return Failure(
                400, f"the script of {marker!r} is over", "invalid_request_error"
            ), request
        return script[request.number - 1], request

    def pause(self, hold: Hold) -> None:
        if isinstance(hold, threading.Event):
            while not hold.wait(0.02) and not self.closing.is_set():
                pass
        elif hold is not None:
            self.closing.wait(hold)

    def cut_connections(self) -> int:
        """All that are open; how many."""
        return self._http.end_connections()

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.end_connections()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = False

    def __init__(self, owner: ModelServer) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> int:
        ended = 0
        with self._open_lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
        return ended

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of the test's business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body must leave in one packet, else each answer waits 40 ms for an acknowledgement.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    server: _Http

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        protocol = next((known for known in PROTOCOLS if known.PATHS.fullmatch(path)), None)
        if protocol is None:
            return self._send(404, {"error": {"message": f"nobody speaks {path} here"}}, {})
        headers = {name.lower(): value for name, value in self.headers.items()}
        key = (
            headers.get("x-api-key")
            or headers.get("x-goog-api-key")
            or headers.get("authorization", "").removeprefix("Bearer ")
        )
        body = json.loads(data)
        owner = self.server.owner
        asked = Request(path, headers, key, body, tuple(protocol.messages_of(body)))
        reply, request = owner.reply_to(asked)
        owner.pause(reply.hold)
        match reply:
            case Answer():
                whole = protocol.answer(reply, request.model, len(owner.requests))
                if body.get("stream") or ":streamGenerateContent" in path:
                    return self._stream(protocol.events(whole), reply)
                return self._send(200, whole, {})
            case Failure():
                return self._send(reply.status, protocol.failure(reply), reply.headers)
            case Broken(body=None):
                self.close_connection = True
            case Broken(body=bytes() as raw):
                return self._send_bytes(200, raw, {})
        return None

    def _stream(self, events: Iterator[bytes], reply: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            if number == reply.break_after:
                self.close_connection = True
                return
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            self.server.owner.closing.wait(reply.pause_seconds)
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, status: int, content: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self._send_bytes(status, json.dumps(content).encode(), headers)

    def _send_bytes(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name in the base class
        """Silence."""
