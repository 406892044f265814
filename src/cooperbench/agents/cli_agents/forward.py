"""A port on loopback inside a sandbox that leads to one port of the harness, and to nothing else.

`forward.js` listens in the sandbox; its connections come here over one stream, as frames. Data towards the sandbox is
never held back there: a program that does not read fills its own sandbox's memory, not ours.
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
_PIECE_BYTES = 1 << 16
_MAX_FRAME_BYTES = 1 << 20
_MAX_CONNECTIONS = 200
"""At the same time; each has a thread here."""
_MAX_STARTS = 10
"""How often it begins again after the agent has killed what listens."""
_START_SECONDS = 60.0
_RESTART_SECONDS = 0.1


class Forward:
    """Open from the beginning; leaving the `with` block ends what listens, every connection and every thread."""

    def __init__(self, sandbox: Sandbox, node: str, target_port: int) -> None:
        self.port = 0
        """In the sandbox; the same after it has begun again."""
        self._sandbox = sandbox
        self._node = node
        self._target_port = target_port
        self._ready = threading.Event()
        self._closed = threading.Event()
        self._sending = threading.Lock()
        self._stream = self._start()
        self._thread = threading.Thread(target=self._serve, name="forward", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or not self.port:
            self.close()
            raise SandboxError(f"{node} does not start in the sandbox")

    def close(self) -> None:
        self._closed.set()
        self._stream.close()
        self._thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Stream:
        script = (files(__package__) / "forward.js").read_text("utf-8")
        return self._sandbox.open_stream([self._node, "-e", script, str(self.port)])

    def _serve(self) -> None:
        for _ in range(_MAX_STARTS):
            # It fails when what listens has been killed, or writes no frames.
            with suppress(OSError, ValueError, struct.error, SandboxError):
                self._carry(self._stream)
            if not self.port or self._closed.wait(_RESTART_SECONDS):
                break
            self._stream.close()
            try:
                self._stream = self._start()
            except SandboxError:
                break  # whoever runs the agent notices that too
            if self._closed.is_set():
                self._stream.close()
        self._ready.set()

    def _carry(self, stream: Stream) -> None:
        """All connections of one run of `forward.js`, until it ends."""
        targets: dict[int, socket.socket] = {}
        try:
            while header := stream.stdout.read(_HEADER.size):
                number, kind, length = _HEADER.unpack(header)
                if length > _MAX_FRAME_BYTES:
                    raise ValueError("no frame of ours")
                data = stream.stdout.read(length)
                if kind == _READY:
                    self.port = number
                    self._ready.set()
                elif kind == _OPEN:
                    self._connect(number, targets, stream.stdin)
                elif number in targets:
                    # The other side may have closed it; then that is what the sandbox is being told.
                    with suppress(OSError):
                        if kind == _DATA:
                            targets[number].sendall(data)
                        elif kind == _END:
                            targets[number].shutdown(socket.SHUT_WR)
                    if kind == _CLOSE:
                        _end(targets.pop(number))
        finally:
            for target in targets.values():
                _end(target)

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
        """What the harness sends, in a thread of its own."""
        with suppress(OSError, ValueError, SandboxError):
            with suppress(ConnectionError):
                while data := target.recv(_PIECE_BYTES):
                    self._send(stdin, number, _DATA, data)
            self._send(stdin, number, _END)

    def _send(self, stdin: IO[bytes], number: int, kind: int, data: bytes = b"") -> None:
        rest = memoryview(_HEADER.pack(number, kind, len(data)) + data)
        with self._sending:
            while rest:
                rest = rest[stdin.write(rest) :]


def _end(target: socket.socket) -> None:
    """Also for the thread that reads from it."""
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
    target.close()
