"""Streams (`open_stream`) over a `Transport`, whose two directions become two files."""

from __future__ import annotations

import io
import time
from typing import IO, Any, cast

from cooperbench.errors import SandboxError
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.channel import Transport
from cooperbench.sandbox.contract import Stream

_NO_LIMIT_SECONDS = 10 * 365 * 24 * 3600.0


def stream_over(transport: Transport, sandbox: Sandbox, mark: str) -> Stream:
    """Return a stream to the command with this mark, which the transport is connected to."""

    def end_command() -> None:
        sandbox.end_stream(mark)
        transport.close()

    stdin = cast("IO[bytes]", _TransportFile(transport))
    stdout = io.BufferedReader(_TransportFile(transport))
    return Stream(stdin, stdout, end_command)


class _TransportFile(io.RawIOBase):
    """One direction of a transport as a file, for reading or for writing."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._received = b""
        """Bytes that were received but not read yet."""
        self._at_eof = False

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content = bytes(data)
        self._transport.send(content, time.monotonic() + _NO_LIMIT_SECONDS)
        return len(content)

    def readinto(self, buffer: Any) -> int:
        if not self._received and not self._at_eof:
            try:
                self._received = self._transport.receive(time.monotonic() + _NO_LIMIT_SECONDS)
            except SandboxError as error:
                # A file raises OSError.
                raise OSError(str(error)) from error
            self._at_eof = not self._received
        size = min(len(buffer), len(self._received))
        buffer[:size] = self._received[:size]
        self._received = self._received[size:]
        return size
