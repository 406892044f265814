"""A `Transport` over one exec in a sandbox at Modal: bytes to and from a command, with deadlines."""

from __future__ import annotations

import asyncio
import queue
import time
from typing import TYPE_CHECKING

from cooperbench.backends.modal.connection import Gone, Unavailable, faults
from cooperbench.errors import CooperBenchError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from modal.container_process import ContainerProcess

    from cooperbench.backends.modal.connection import EventLoop

_PIECE_BYTES = 1 << 20
"""Of one request; servers refuse messages of a few megabytes."""
_MOST_WAITING_PIECES = 256
_END_OF_INPUT_SECONDS = 600.0


class ExecTransport:
    """When the command has ended, `receive` gives b"". Where Modal cannot be reached it raises SandboxError.

    When its connection breaks, Modal's client by itself reads on from the right place.
    """

    def __init__(self, event_loop: EventLoop, process: ContainerProcess[bytes]) -> None:
        self._event_loop = event_loop
        self._process = process
        self._chunks: queue.SimpleQueue[bytes | CooperBenchError] = queue.SimpleQueue()
        self.closed = False
        self._reading: Future[None] = event_loop.spawn(self._read())

    def send(self, data: bytes, deadline: float) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            self._write(data[start : start + _PIECE_BYTES], deadline)

    def half_close(self) -> None:
        self._write(b"", time.monotonic() + _END_OF_INPUT_SECONDS)

    def receive(self, deadline: float) -> bytes:
        if self.closed and self._chunks.empty():
            return b""
        try:
            found = self._chunks.get(timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            raise TimeoutError("no answer in time") from None
        if isinstance(found, Gone):
            return b""
        if isinstance(found, CooperBenchError):
            raise Unavailable(f"the connection to the sandbox was lost: {found}") from found
        return found

    def close(self) -> None:
        """From any thread; a thread that is receiving gets b""."""
        if self.closed:
            return
        self.closed = True
        self._reading.cancel()
        self._chunks.put(b"")
        # Nobody waits for this, and the command may have ended.
        self._event_loop.spawn(self._put(b""))

    def wait_until_ended(self, seconds: float) -> None:
        """After `close`, which ends a command that reads its input; SandboxTimeout where it goes on."""
        with faults("ending a command"):
            self._event_loop.call(self._process.wait.aio(), seconds)

    def _write(self, piece: bytes, deadline: float) -> None:
        if self.closed:
            raise BrokenPipeError("the connection to the command is closed")
        try:
            with faults("writing to a command"):
                self._event_loop.call(self._put(piece), deadline - time.monotonic())
        except (Gone, ValueError) as error:
            raise BrokenPipeError(f"the command has ended ({error})") from error

    async def _read(self) -> None:
        try:
            with faults("reading from a command"):
                async for chunk in self._process.stdout:
                    self._chunks.put(chunk)
                    while self._chunks.qsize() > _MOST_WAITING_PIECES:
                        await asyncio.sleep(0.05)
        except CooperBenchError as error:
            self._chunks.put(error)
        else:
            self._chunks.put(b"")

    async def _put(self, piece: bytes) -> None:
        """Nothing is the end of its input."""
        if piece:
            self._process.stdin.write(piece)
        else:
            self._process.stdin.write_eof()
        await self._process.stdin.drain.aio()
