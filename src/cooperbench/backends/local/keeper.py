"""One thread that starts all sandboxes of this process and ends those that outlive their time.

A sandbox dies with the *thread* that started it (PR_SET_PDEATHSIG), not with the process: worker threads come and
go, so all sandboxes are started by this one, which lasts as long as the process does.
"""

from __future__ import annotations

import heapq
import os
import queue
import threading
import time
from concurrent.futures import Future
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from cooperbench.backends.local.devices import protect_devices

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Keeper:
    """Runs actions in its thread: now, or at a given time."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[float, Callable[[], Any], Future[Any] | None]] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name="cooperbench-keeper", daemon=True)
        self._thread.start()

    def call(self, action: Callable[[], T]) -> T:
        """Do it in the keeper's thread and hand back what comes of it."""
        future: Future[T] = Future()
        self._requests.put((0.0, action, future))
        return future.result()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do it at this `time.monotonic()`; it must be short and must not raise."""
        self._requests.put((when, action, None))

    def _work(self) -> None:
        protect_devices()
        order = count()
        due: list[tuple[float, int, Callable[[], Any]]] = []
        while True:
            wait_seconds = min(max(due[0][0] - time.monotonic(), 0.0), 3600.0) if due else None
            try:
                when, action, future = self._requests.get(timeout=wait_seconds)
            except queue.Empty:
                pass
            else:
                if future is None:
                    heapq.heappush(due, (when, next(order), action))
                else:
                    _fulfil(future, action)
            while due and due[0][0] <= time.monotonic():
                heapq.heappop(due)[2]()


def _fulfil(future: Future[Any], action: Callable[[], Any]) -> None:
    try:
        future.set_result(action())
    except BaseException as error:
        future.set_exception(error)


_lock = threading.Lock()
_keepers: dict[int, Keeper] = {}


def keeper() -> Keeper:
    """The keeper of this process; a forked child gets one of its own."""
    with _lock:
        found = _keepers.get(os.getpid())
        if found is None:
            _keepers.clear()
            found = _keepers[os.getpid()] = Keeper()
        return found
