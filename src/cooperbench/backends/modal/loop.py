"""The event loop on which everything that waits for Modal runs, in a thread of its own.

Modal's client is asynchronous, and its blocking calls know no time limit. Here each call has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

T = TypeVar("T")


class Loop:
    """One thread, however many calls are under way."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="modal-calls", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], limit_seconds: float) -> T:
        """Its result; TimeoutError when it takes longer. Whatever ends the wait ends the work too."""
        future = self.spawn(work)
        try:
            return future.result(max(limit_seconds, 0.0))
        finally:
            future.cancel()

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, work: Coroutine[Any, Any, object]) -> None:
        """Somewhen, and nobody asks what became of it."""
        self.spawn(_quietly(work))


async def _quietly(work: Coroutine[Any, Any, object]) -> None:
    with contextlib.suppress(Exception):
        await work


_loops: dict[int, Loop] = {}
_lock = threading.Lock()


def the_loop() -> Loop:
    """Of this process; a forked child gets one of its own."""
    with _lock:
        return _loops.setdefault(os.getpid(), _loops.get(os.getpid()) or Loop())
