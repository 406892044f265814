"""A long-running command's stdin and stdout as file objects: the `Stream` of every backend.

Where there are file descriptors, `CommandStream` takes them as files; over a transport `stream_over` makes the files.
"""

from __future__ import annotations

import contextlib
import io
import time
from typing import IO, TYPE_CHECKING, Any, Protocol

from cooperbench.errors import SandboxError
from cooperbench.sandbox.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_LIMIT_SECONDS = 10 * 365 * 24 * 3600.0


class CommandTransport(Transport, Protocol):
    """One whose other end can be told that no more will come. `close` may be called from any thread."""

    def half_close(self) -> None:
        """The command reads end of file; OSError or SandboxError where it cannot be told."""
        ...


class CommandStream:
    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], end_command: Callable[[], None]) -> None:
        """`end_command` also frees whoever is reading or writing."""
        self._stdin = stdin
        self._stdout = stdout
        self._end_command = end_command
        self._closed = False

    @property
    def stdin(self) -> IO[bytes]:
        return self._stdin

    @property
    def stdout(self) -> IO[bytes]:
        return self._stdout

    def close(self) -> None:
        """End the command with everything it started. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._end_command()
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._stdout.close()


def stream_over(transport: CommandTransport, end_command: Callable[[], None]) -> CommandStream:
    """A stream over a transport of its own, which is closed with it."""

    def end() -> None:
        end_command()
        transport.close()

    return CommandStream(_Unbuffered(_Writing(transport)), io.BufferedReader(_Reading(transport)), end)


class _Unbuffered(io.BufferedWriter):
    """Writes all of what it is given, which a raw file need not do."""

    def write(self, data: Any) -> int:
        written = super().write(data)
        self.flush()
        return written


class _Writing(io.RawIOBase):
    def __init__(self, transport: CommandTransport) -> None:
        self._transport = transport

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
                self._transport.half_close()
        super().close()


class _Reading(io.RawIOBase):
    def __init__(self, transport: CommandTransport) -> None:
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
