"""Retries with growing pauses, clean-up that Ctrl-C must not cut short, and work that is done once for all who ask."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Generic, TypeVar

from cooperbench.errors import InfraError, Interrupted

T = TypeVar("T")
K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 5.0
_MAX_INTERRUPTS = 5
"""After these a clean-up that does not finish is given up."""


def backoff_seconds(
    attempt: int, longest: float = float("inf"), first: float | None = None
) -> float:
    """The pause after this failed attempt (from 1 on): growing, and not the same for all that failed together."""
    usual = min(longest, (first or FIRST_PAUSE_SECONDS) * 2.0 ** (attempt - 1))
    return usual * random.uniform(0.5, 1.5)  # noqa: S311  # jitter, not a secret


def with_retries(
    work: Callable[[int], T],
    stop: threading.Event,
    on_failure: Callable[[int, InfraError], None] = lambda *_: None,
) -> T:
    """`work(attempt)`, again after an InfraError; the last one's error is raised. A stop ends it at once."""
    attempt = 1
    while True:
        try:
            return work(attempt)
        except InfraError as error:
            if stop.is_set():
                raise Interrupted("stopped") from error
            on_failure(attempt, error)
            if attempt == ATTEMPTS:
                raise
            if stop.wait(backoff_seconds(attempt)):
                raise Interrupted("stopped") from error
        attempt += 1


def retry_for(
    seconds: float,
    work: Callable[[], T],
    errors: tuple[type[InfraError], ...],
    stop: threading.Event,
    first_pause: float | None = None,
) -> T:
    """`work()`, again after one of these errors, as long as the next attempt begins in time. A stop ends it at once."""
    deadline, attempt = time.monotonic() + seconds, 0
    longest = 20 * first_pause if first_pause else MAX_PAUSE_SECONDS
    while not stop.is_set():
        attempt += 1
        try:
            return work()
        except errors:
            pause_seconds = backoff_seconds(attempt, longest, first_pause)
            if time.monotonic() + pause_seconds >= deadline:
                raise
        stop.wait(pause_seconds)
    raise Interrupted("stopped")


def finish_despite_interrupts(action: Callable[[], T]) -> T:
    """What an action gives; as often as Ctrl-C comes meanwhile it is begun again, and then interrupted."""
    try:
        return action()
    except KeyboardInterrupt:
        for _ in range(_MAX_INTERRUPTS):
            with suppress(KeyboardInterrupt):
                action()
                break
        raise


def run_in_daemon_threads(
    work: Callable[[K], T], keys: Iterable[K], most: int, name: str
) -> tuple[dict[K, Future[T]], list[threading.Thread]]:
    """Work that cannot be told to end: Python would wait for it in a pool. A future that has an end is not begun."""
    futures: dict[K, Future[T]] = {key: Future() for key in keys}
    left = list(reversed(futures))

    def take() -> None:
        with suppress(IndexError, InvalidStateError):
            while not (future := futures[key := left.pop()]).done():
                try:
                    future.set_result(work(key))
                except Exception as error:
                    future.set_exception(error)

    threads = [threading.Thread(target=take, name=name, daemon=True) for _ in left[:most]]
    for thread in threads:
        thread.start()
    return futures, threads


class SingleFlight(Generic[K, V]):
    """By key. A failure is told to everybody who waits for it and not kept: who asks later tries again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[K, Future[V]] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            found = self._made.get(key)
            future = found or self._made.setdefault(key, Future())
        if found is None:
            try:
                future.set_result(make())
            except BaseException as error:
                self.forget(key)
                future.set_exception(error)
        return future.result()

    def forget(self, key: K) -> None:
        with self._lock:
            self._made.pop(key, None)
