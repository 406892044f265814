"""A port on a sandbox's loopback that leads to one port of the harness, and to nothing else.

`forward.js` listens in the sandbox. Its connections come here as frames over one stream. A frame is
a header (number of the connection, kind of frame, length of the data) and the data. `forward.js`
accepts data for the sandbox without limit: a program that does not read fills the memory of its own
sandbox, not the harness's.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from importlib.resources import files
from typing import IO, Self

from cooperbench.errors import SandboxError
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import Stream

_HEADER = struct.Struct(">IBI")
_READY, _OPEN, _DATA, _END, _CLOSE = range(5)
"""Kinds of frames: the port is open; a connection begins, has data, sends no more data, ends."""
_PIECE_BYTES = 1 << 16
_MAX_FRAME_BYTES = 1 << 20
_MAX_CONNECTIONS = 200
"""Limit for connections at the same time. Each has a thread here."""
_MAX_STARTS = 10
"""How often `forward.js` is started, in case the agent kills it."""
_START_SECONDS = 60.0
_RESTART_SECONDS = 0.1
_END_SECONDS = 10.0


class Forward:
    """A forwarded port. Entering the `with` block opens it; leaving the block ends everything."""

    def __init__(self, sandbox: Sandbox, node: str, target_port: int) -> None:
        self.port = 0
        """Port in the sandbox. It stays the same after a restart."""
        self._sandbox = sandbox
        self._node = node
        self._target_port = target_port
        self._ready = threading.Event()
        self._closed = threading.Event()
        self._sending = threading.Lock()
        self._stream: Stream
        self._thread = threading.Thread(target=self._serve, name="forward", daemon=True)

    def close(self) -> None:
        """End `forward.js`, every connection and every thread."""
        self._closed.set()
        self._stream.close()
        self._thread.join(_END_SECONDS)

    def __enter__(self) -> Self:
        self._stream = self._start()
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or not self.port:
            self.close()
            raise SandboxError(f"{self._node} does not start in the sandbox")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Stream:
        script = (files(__package__) / "forward.js").read_text("utf-8")
        return self._sandbox.open_stream([self._node, "-e", script, str(self.port)])

    def _serve(self) -> None:
        for _ in range(_MAX_STARTS):
            # This fails if the agent has killed forward.js, or writes to its stdout.
            with suppress(OSError, ValueError, struct.error, SandboxError):
                self._read_frames(self._stream)
            if not self.port or self._closed.wait(_RESTART_SECONDS):
                break
            self._stream.close()
            try:
                self._stream = self._start()
            except SandboxError:
                break  # the program's own stream fails too, and ends the agent
            if self._closed.is_set():
                self._stream.close()
        self._ready.set()

    def _read_frames(self, stream: Stream) -> None:
        """Serve all connections until `forward.js` ends."""
        targets: dict[int, socket.socket] = {}
        try:
            while header := stream.stdout.read(_HEADER.size):
                number, kind, length = _HEADER.unpack(header)
                if length > _MAX_FRAME_BYTES:
                    raise ValueError("the frame is too long to be valid")
                data = stream.stdout.read(length)
                if kind == _READY:
                    self.port = number
                    self._ready.set()
                elif kind == _OPEN:
                    self._connect(number, targets, stream.stdin)
                elif number in targets and kind == _CLOSE:
                    _close(targets.pop(number))
                elif number in targets:
                    _pass_on(kind, data, targets[number])
        finally:
            for target in targets.values():
                _close(target)

    def _connect(self, number: int, targets: dict[int, socket.socket], stdin: IO[bytes]) -> None:
        try:
            if len(targets) >= _MAX_CONNECTIONS:
                raise ConnectionRefusedError
            target = socket.create_connection(("127.0.0.1", self._target_port))
        except OSError:
            self._send(stdin, number, _CLOSE)
            return
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        targets[number] = target
        threading.Thread(
            target=self._copy, args=(number, target, stdin), name="forward", daemon=True
        ).start()

    def _copy(self, number: int, target: socket.socket, stdin: IO[bytes]) -> None:
        """Copy data from the harness to the sandbox. This runs in its own thread."""
        with suppress(OSError, ValueError, SandboxError):
            with suppress(ConnectionError):
                while data := target.recv(_PIECE_BYTES):
                    self._send(stdin, number, _DATA, data)
            self._send(stdin, number, _END)

    def _send(self, stdin: IO[bytes], number: int, kind: int, data: bytes = b"") -> None:
        unsent = memoryview(_HEADER.pack(number, kind, len(data)) + data)
        with self._sending:
            while unsent:
                unsent = unsent[stdin.write(unsent) :]


def _pass_on(kind: int, data: bytes, target: socket.socket) -> None:
    # If the other side has closed the connection, the sandbox gets a frame about that anyway.
    with suppress(OSError):
        if kind == _DATA:
            target.sendall(data)
        elif kind == _END:
            target.shutdown(socket.SHUT_WR)


def _close(target: socket.socket) -> None:
    """Close a connection, and end the thread that reads from it."""
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
    target.close()
