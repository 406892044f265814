"""Trying again what failed through nobody's fault, with growing pauses."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from cooperbench.errors import InfraError, Interrupted

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

T = TypeVar("T")
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 1.0


def backoff_seconds(attempt: int, longest: float = float("inf")) -> float:
    """The pause after this failed attempt (from 1 on): growing, and not the same for all that failed together."""
    usual = min(longest, FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1))
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
