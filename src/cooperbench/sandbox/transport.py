"""Bytes to and from a process in a sandbox: transports with deadlines, and a `Stream` over one.

What the bytes of a channel mean is `channel.py`'s business.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import os
import secrets
import select
import time
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from cooperbench.errors import CooperBenchError, SandboxDead, SandboxError
from cooperbench.sandbox import channel_script
from cooperbench.sandbox.channel import READY, UNAVAILABLE, ChannelUnavailable
from cooperbench.sandbox.contract import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.sandbox.contract import ExecResult, Sandbox

_READ_SIZE = 1 << 18
_LONGEST_POLL_SECONDS = 3600.0
_NO_LIMIT_SECONDS = 10 * 365 * 24 * 3600.0
_PIECE_SIZE = 90_000
"""Characters per argument; the kernel's limit is 128 KiB."""
_APPEND = 'printf %s "$2" | base64 -d >>"$1"'
_SERVE_ONCE = """
if [ "$3" ]; then printf %s "$3" | base64 -d; else cat -- "$2.request"; fi | bash -c "$1" channel "$2" | base64 -w 0
rm -f -- "$2.request"
"""


class Transport(Protocol):
    """The two ends of one long-lived process. Deadlines are values of `time.monotonic()`."""

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of it; TimeoutError at the deadline, OSError where the other end is gone."""

    def receive(self, deadline: float) -> bytes:
        """What has come, at least one byte; b"" means that the other end is gone; TimeoutError at the deadline."""

    def close(self) -> None:
        """Let go of it. For the thread that uses it; calling it again does nothing."""


class PipeTransport:
    """A Transport over two file descriptors, which it owns."""

    def __init__(self, write_fd: int, read_fd: int, on_close: Callable[[], None] = lambda: None) -> None:
        os.set_blocking(write_fd, False)
        os.set_blocking(read_fd, False)
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._on_close = on_close
        self._closed = False

    def send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            _wait(self._write_fd, select.POLLOUT, deadline)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._write_fd, rest[:_READ_SIZE]) :]

    def receive(self, deadline: float) -> bytes:
        while True:
            _wait(self._read_fd, select.POLLIN, deadline)
            try:
                return os.read(self._read_fd, _READ_SIZE)
            except BlockingIOError:
                continue

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        os.close(self._write_fd)
        os.close(self._read_fd)
        self._on_close()


def _wait(fd: int, event: int, deadline: float) -> None:
    poller = select.poll()
    poller.register(fd, event)
    while True:
        left_seconds = deadline - time.monotonic()
        if poller.poll(min(max(left_seconds, 0.0), _LONGEST_POLL_SECONDS) * 1000):
            return
        if left_seconds <= 0:
            raise TimeoutError("no answer in time")


class ExecTransport:
    """A Transport for sandboxes that have only `exec`: each request runs `channel.sh` once, answered as base64.

    Deadlines are not kept here, since `exec` cannot be interrupted; the time limit inside is. Costs a few processes a
    request, and needs bash and coreutils in the sandbox.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._request = b""

    def send(self, data: bytes, deadline: float) -> None:  # noqa: ARG002  # a Transport's
        self._request += data

    def receive(self, deadline: float) -> bytes:  # noqa: ARG002  # a Transport's
        request, self._request = self._request, b""
        return self._exchange(base64.b64encode(request).decode("ascii")) if request else b""

    def close(self) -> None:
        """Nothing is held between requests."""

    def _exchange(self, request: str) -> bytes:
        scratch = f"/tmp/.cooperbench-{secrets.token_hex(8)}"  # noqa: S108
        if len(request) > _PIECE_SIZE:
            for start in range(0, len(request), _PIECE_SIZE):
                piece = request[start : start + _PIECE_SIZE]
                done = self._exec("bash", "-c", _APPEND, "cooperbench", f"{scratch}.request", piece)
                if done.returncode:
                    raise SandboxError(f"cannot copy into the sandbox: {done.stderr_read().strip()[-200:]}")
            request = ""
        result = self._exec("bash", "-c", _SERVE_ONCE, "cooperbench", channel_script(), scratch, request)
        try:
            answer = base64.b64decode(result.stdout_read().strip(), validate=True)
        except (binascii.Error, ValueError) as error:
            raise SandboxError(f"the sandbox's output did not come back whole ({error})") from error
        greeting, _, answer = answer.partition(b"\n")
        if greeting.startswith(UNAVAILABLE):
            raise ChannelUnavailable(greeting[len(UNAVAILABLE) :].decode("utf-8", "replace"))
        if greeting != READY:
            said = result.stderr_read().strip()[-200:] or "no output"
            raise SandboxDead(f"the sandbox does not answer: {said}")
        return answer

    def _exec(self, *args: str) -> ExecResult:
        """Whatever a foreign backend raises is about the sandbox, not about the command."""
        try:
            return self._sandbox.exec(*args)
        except CooperBenchError:
            raise
        except Exception as error:
            raise SandboxError(f"the sandbox failed: {type(error).__name__}: {error}") from error


def stream_over(
    transport: Transport, half_close: Callable[[], None], end_command: Callable[[], None]
) -> Stream:
    """A stream over a transport of its own, which is closed with it, from any thread.

    `half_close` lets the command read end of file; OSError or SandboxError where that cannot be done.
    """

    def end() -> None:
        end_command()
        transport.close()

    stdin = cast("IO[bytes]", _Writing(transport, half_close))
    return Stream(stdin, io.BufferedReader(_Reading(transport)), end)


class _Writing(io.RawIOBase):
    def __init__(self, transport: Transport, half_close: Callable[[], None]) -> None:
        self._transport = transport
        self._half_close = half_close

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content = bytes(data)
        self._transport.send(content, time.monotonic() + _NO_LIMIT_SECONDS)
        return len(content)

    def close(self) -> None:
        if not self.closed:
            # With the command its input has ended too.
            with contextlib.suppress(OSError, SandboxError):
                self._half_close()
        super().close()


class _Reading(io.RawIOBase):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._left = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left and not self._ended:
            try:
                self._left = self._transport.receive(time.monotonic() + _NO_LIMIT_SECONDS)
            except SandboxError as error:
                # As files fail.
                raise OSError(str(error)) from error
            self._ended = not self._left
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
