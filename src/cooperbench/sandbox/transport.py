"""Bytes to and from the inside of a sandbox, with deadlines. What they mean is `channel.py`'s business."""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_SIZE = 1 << 18
_LONGEST_POLL_SECONDS = 3600.0


class Transport(Protocol):
    """The two ends of one long-lived process. Deadlines are values of `time.monotonic()`."""

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of it; TimeoutError at the deadline, OSError where the other end is gone."""
        ...

    def receive(self, deadline: float) -> bytes:
        """What has come, at least one byte; b"" means that the other end is gone; TimeoutError at the deadline."""
        ...

    def close(self) -> None:
        """Let go of it. For the thread that uses it; calling it again does nothing."""
        ...


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
