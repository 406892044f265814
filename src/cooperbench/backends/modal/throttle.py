"""How many sandboxes are asked for at once: fewer as soon as Modal says "rate limited", then slowly more again."""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from cooperbench.backends.modal.faults import RateLimited, Unavailable
from cooperbench.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long one request is tried again. The layers above try again too, and can be interrupted in between."""
ATTEMPTS = 5
"""At a Modal that is not available; its client has tried a few times before each."""
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 15.0


class Throttle:
    """Lends places; shared by all threads that make sandboxes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._places = most
        self._taken = 0
        self._successes = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._not_before = 0.0
        self._epoch = 0
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Nobody waits any longer: the run is being stopped."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    @property
    def places(self) -> int:
        """How many there are just now."""
        return self._places

    def patiently(self, work: Callable[[], T]) -> T:
        """`work` in one of the places, again while Modal has too much to do."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        attempt = 0
        while True:
            try:
                with self._place() as epoch:
                    result = work()
            except RateLimited:
                self._slow_down(epoch)
                if time.monotonic() >= deadline:
                    raise
                continue
            except Unavailable:
                attempt += 1
                pause = _FIRST_PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1.0)  # noqa: S311  # jitter
                if attempt >= ATTEMPTS or time.monotonic() + pause >= deadline:
                    raise
                self._stopped.wait(pause)
                continue
            self._speed_up()
            return result

    @contextmanager
    def _place(self) -> Iterator[int]:
        with self._changed:
            while self._taken >= self._places or time.monotonic() < self._not_before:
                if self._stopped.is_set():
                    raise Interrupted("stopped")
                pause_seconds = self._not_before - time.monotonic()
                self._changed.wait(pause_seconds if pause_seconds > 0 else None)
            if self._stopped.is_set():
                raise Interrupted("stopped")
            self._taken += 1
            epoch = self._epoch
        try:
            yield epoch
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify_all()

    def _slow_down(self, epoch: int) -> None:
        """Half the places, once for all requests that were under way together."""
        with self._changed:
            if epoch == self._epoch:
                self._epoch += 1
                self._successes = 0
                self._places = max(1, min(self._places, self._taken + 1) // 2)
                self._not_before = time.monotonic() + self._pause_seconds * random.uniform(0.75, 1.25)  # noqa: S311
                self._pause_seconds = min(self._pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
            self._changed.notify_all()

    def _speed_up(self) -> None:
        """One place more whenever all of them have been used well once."""
        with self._changed:
            self._successes += 1
            self._pause_seconds = max(self._pause_seconds / 2, _FIRST_PAUSE_SECONDS)
            if self._successes >= self._places and self._places < self._most:
                self._successes = 0
                self._places += 1
                self._changed.notify_all()
