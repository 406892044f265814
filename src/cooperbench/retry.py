"""Retries with growing pauses, clean-up that survives Ctrl-C, and work that callers share."""

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
"""Interrupts after which a clean-up that does not finish is abandoned."""


def backoff_seconds(
    attempt: int, max_seconds: float = float("inf"), first_seconds: float | None = None
) -> float:
    """Return the pause after a failed attempt; the first attempt is 1.

    Pauses double with each attempt. They are random, so that callers that failed together do not
    try again together.
    """
    pause_seconds = (first_seconds or FIRST_PAUSE_SECONDS) * 2.0 ** (attempt - 1)
    jitter = random.uniform(0.5, 1.5)  # noqa: S311  # not a secret
    return min(max_seconds, pause_seconds) * jitter


def with_retries(
    work: Callable[[int], T],
    stop: threading.Event,
    on_failure: Callable[[int, InfraError], None] = lambda *_: None,
) -> T:
    """Call `work(attempt)`, up to `ATTEMPTS` times if it raises InfraError, and return its result.

    Raises:
        InfraError: The last attempt has failed.
        Interrupted: `stop` was set.
    """
    attempt = 1
    while True:
        try:
            return work(attempt)
        except InfraError as error:
            if not stop.is_set():
                on_failure(attempt, error)
            pause_before_retry(attempt, error, stop)
        attempt += 1


def pause_before_retry(attempt: int, error: InfraError, stop: threading.Event) -> None:
    """Wait after a failed attempt; the first attempt is 1.

    Raises:
        InfraError: `error`, if it was the last attempt.
        Interrupted: `stop` was set.
    """
    if stop.is_set():
        raise Interrupted("stopped") from error
    if attempt == ATTEMPTS:
        raise error
    if stop.wait(backoff_seconds(attempt)):
        raise Interrupted("stopped") from error


def retry_for(
    seconds: float,
    work: Callable[[], T],
    errors: tuple[type[InfraError], ...],
    stop: threading.Event,
    first_pause: float | None = None,
) -> T:
    """Call `work()` until it succeeds, as long as the next attempt starts within `seconds`.

    Only the given errors are retried.

    Raises:
        Interrupted: `stop` was set.
    """
    deadline = time.monotonic() + seconds
    max_pause = 20 * first_pause if first_pause else MAX_PAUSE_SECONDS
    attempt = 0
    while not stop.is_set():
        attempt += 1
        try:
            return work()
        except errors:
            pause_seconds = backoff_seconds(attempt, max_pause, first_pause)
            if time.monotonic() + pause_seconds >= deadline:
                raise
        stop.wait(pause_seconds)
    raise Interrupted("stopped")


def finish_despite_interrupts(action: Callable[[], T]) -> T:
    """Call an action and return its result. If Ctrl-C interrupts it, finish it first.

    The action is started again after each interrupt, so it must be safe to repeat. The first
    KeyboardInterrupt is raised at the end.
    """
    try:
        return action()
    except KeyboardInterrupt:
        for _ in range(_MAX_INTERRUPTS):
            with suppress(KeyboardInterrupt):
                action()
                break
        raise


def run_in_daemon_threads(
    work: Callable[[K], T], keys: Iterable[K], max_threads: int, name: str
) -> tuple[dict[K, Future[T]], list[threading.Thread]]:
    """Start `work(key)` for all keys; return the futures by key, and the threads.

    For work that cannot be interrupted: when Python exits it waits for the threads of a pool, but
    not for daemon threads. Work whose future has been set meanwhile is not started.
    """
    futures: dict[K, Future[T]] = {key: Future() for key in keys}
    remaining = list(reversed(futures))

    def run_next(key: K) -> bool:
        """Run the work for a key; return whether the thread should continue."""
        future = futures[key]
        if future.done():
            return False
        try:
            future.set_result(work(key))
        except InvalidStateError:  # somebody has set the future meanwhile
            return False
        except Exception as error:
            future.set_exception(error)
        return True

    def run_all() -> None:
        """Run work until none is left."""
        # `pop` is atomic, so that threads need no lock. A future that is set means: stop.
        with suppress(IndexError, InvalidStateError):
            while run_next(remaining.pop()):
                pass

    threads = [
        threading.Thread(target=run_all, name=name, daemon=True) for _ in remaining[:max_threads]
    ]
    for thread in threads:
        thread.start()
    return futures, threads


class SingleFlight(Generic[K, V]):
    """A cache in which each value is computed once, even if several threads ask at the same time.

    An error is raised to all threads that wait for the value. It is not cached: the next call tries
    again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[K, Future[V]] = {}

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """Return the value of a key; compute it if no other thread does."""
        with self._lock:
            future = self._futures.get(key)
            is_first = future is None
            if future is None:
                future = Future()
                self._futures[key] = future
        if is_first:
            try:
                future.set_result(compute())
            except BaseException as error:
                self.forget(key)
                future.set_exception(error)
        return future.result()

    def forget(self, key: K) -> None:
        """Remove the value of a key from the cache."""
        with self._lock:
            self._futures.pop(key, None)
