"""A port on loopback inside a sandbox that leads to one port of the harness, and to nothing else.

`forward.js` listens in the sandbox, run by the Node among the agent's programs; its connections come here over one
stream, as frames. So a sandbox needs no network. Data towards the sandbox is never held back there: a program that
does not read fills its own sandbox's memory, not ours.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from importlib.resources import files
from typing import IO, TYPE_CHECKING, Self

from cooperbench.errors import SandboxDead, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.sandbox.contract import RichSandbox, Stream

_HEADER = struct.Struct(">IBI")
_READY, _OPEN, _DATA, _END, _CLOSE = range(5)
_PIECE_BYTES = 1 << 16
_MOST_FRAME_BYTES = 1 << 20
_MOST_CONNECTIONS = 200
"""At the same time; each has a thread here."""
_MOST_STARTS = 10
"""How often it begins again after the agent has killed what listens."""
_START_SECONDS = 60.0
_RESTART_SECONDS = 0.1


class Forward:
    """Open from the beginning; leaving the `with` block ends what listens, every connection and every thread."""

    def __init__(self, sandbox: RichSandbox, node: str, target_port: int) -> None:
        self.port = 0
        """In the sandbox; the same after it has begun again."""
        self._sandbox = sandbox
        self._node = node
        self._target_port = target_port
        self._ready = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream = self._start()
        self._thread = threading.Thread(target=self._serve, name="forward", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or not self.port:
            self.close()
            raise SandboxError(f"{node} does not start in the sandbox")

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            stream = self._stream
        stream.close()
        self._thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Stream:
        script = (files(__package__) / "forward.js").read_text("utf-8")
        return self._sandbox.open_stream([self._node, "-e", script, str(self.port)])

    def _serve(self) -> None:
        for _ in range(_MOST_STARTS):
            # It fails when what listens has been killed, or writes no frames.
            with contextlib.suppress(OSError, ValueError, struct.error, SandboxError):
                _Connections(self._stream.stdin, self._target_port).serve(
                    self._stream.stdout, self._note_port
                )
            if not self.port or self._closed.wait(_RESTART_SECONDS):
                break
            self._stream.close()
            try:
                stream = self._start()
            except (SandboxDead, SandboxError):
                break  # whoever runs the agent notices that too
            with self._lock:
                self._stream = stream
                closed = self._closed.is_set()
            if closed:
                stream.close()
        self._ready.set()

    def _note_port(self, port: int) -> None:
        self.port = port
        self._ready.set()


class _Connections:
    """Those of one run of `forward.js`."""

    def __init__(self, stdin: IO[bytes], target_port: int) -> None:
        self._stdin = stdin
        self._target_port = target_port
        self._sending = threading.Lock()
        self._open: dict[int, socket.socket] = {}

    def serve(self, stdout: IO[bytes], on_ready: Callable[[int], None]) -> None:
        """Until the stream ends."""
        try:
            while header := stdout.read(_HEADER.size):
                connection, kind, length = _HEADER.unpack(header)
                if length > _MOST_FRAME_BYTES:
                    raise ValueError("no frame of ours")
                data = stdout.read(length)
                if kind == _READY:
                    on_ready(connection)
                elif kind == _OPEN:
                    self._connect(connection)
                elif connection in self._open:
                    self._receive(connection, kind, data)
        finally:
            for target in self._open.values():
                _end(target)

    def _connect(self, connection: int) -> None:
        try:
            if len(self._open) >= _MOST_CONNECTIONS:
                raise ConnectionRefusedError
            target = socket.create_connection(("127.0.0.1", self._target_port))
        except OSError:
            self._send(connection, _CLOSE)
            return
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open[connection] = target
        threading.Thread(target=self._copy, args=(connection, target), name="forward", daemon=True).start()

    def _receive(self, connection: int, kind: int, data: bytes) -> None:
        target = self._open[connection]
        # The other side may have closed it; then that is what the sandbox is being told.
        with contextlib.suppress(OSError):
            if kind == _DATA:
                target.sendall(data)
            elif kind == _END:
                target.shutdown(socket.SHUT_WR)
        if kind == _CLOSE:
            del self._open[connection]
            _end(target)

    def _copy(self, connection: int, target: socket.socket) -> None:
        """What the harness sends, in a thread of its own."""
        with contextlib.suppress(OSError, ValueError, SandboxError):
            with contextlib.suppress(ConnectionError):
                while data := target.recv(_PIECE_BYTES):
                    self._send(connection, _DATA, data)
            self._send(connection, _END)

    def _send(self, connection: int, kind: int, data: bytes = b"") -> None:
        rest = memoryview(_HEADER.pack(connection, kind, len(data)) + data)
        with self._sending:
            while rest:
                rest = rest[self._stdin.write(rest) :]


def _end(target: socket.socket) -> None:
    """Also for the thread that reads from it."""
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
    target.close()
