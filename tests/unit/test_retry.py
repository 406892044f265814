"""Retries after infrastructure errors, clean-up despite Ctrl-C, and work that callers share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cooperbench import retry
from cooperbench.errors import InfraError, Interrupted
from cooperbench.retry import (
    ATTEMPTS,
    SingleFlight,
    backoff_seconds,
    finish_despite_interrupts,
    retry_for,
    with_retries,
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.001)


def test_pauses_double_up_to_a_maximum() -> None:
    first, third = backoff_seconds(1, first_seconds=1), backoff_seconds(3, first_seconds=1)
    assert 0.5 <= first <= 1.5
    assert 2 <= third <= 6
    assert backoff_seconds(20, max_seconds=5) <= 7.5


def test_the_last_failure_is_raised() -> None:
    attempts: list[int] = []
    failures: list[tuple[int, str]] = []

    def work(attempt: int) -> None:
        attempts.append(attempt)
        raise InfraError(f"failure {attempt}")

    with pytest.raises(InfraError, match=f"^failure {ATTEMPTS}$"):
        with_retries(
            work, threading.Event(), lambda *failure: failures.append((failure[0], str(failure[1])))
        )
    assert attempts == [1, 2, 3]
    assert failures == [(1, "failure 1"), (2, "failure 2"), (3, "failure 3")]


def test_only_infrastructure_errors_are_retried() -> None:
    attempts: list[int] = []

    def work(attempt: int) -> str:
        attempts.append(attempt)
        if attempt == 1:
            raise InfraError("away")
        if attempt == 2:
            raise ValueError("broken")
        return "result"

    with pytest.raises(ValueError, match="broken"):
        with_retries(work, threading.Event())
    assert attempts == [1, 2]


def test_no_retry_after_a_stop() -> None:
    stop = threading.Event()
    attempts: list[int] = []

    def work(attempt: int) -> None:
        attempts.append(attempt)
        stop.set()
        raise InfraError("away")

    with pytest.raises(Interrupted) as caught:
        with_retries(work, stop)
    assert attempts == [1]
    assert isinstance(caught.value.__cause__, InfraError)


def test_retry_for_gives_up_in_time() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise InfraError("away")

    with pytest.raises(InfraError):
        retry_for(0, work, (InfraError,), threading.Event())
    assert calls == [1]
    assert retry_for(60, lambda: 7, (InfraError,), threading.Event()) == 7


def test_cleanup_is_finished_after_an_interrupt() -> None:
    calls: list[int] = []

    def clean() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish_despite_interrupts(clean)
    assert calls == [1, 1, 1]


def test_a_value_is_computed_once_for_all_threads() -> None:
    cache: SingleFlight[str, object] = SingleFlight()
    all_ask = threading.Barrier(4, timeout=60)
    computed: list[object] = []

    def compute() -> object:
        computed.append(object())
        return computed[-1]

    def ask() -> object:
        all_ask.wait()
        return cache.get("key", compute)

    with ThreadPoolExecutor(4) as pool:
        values = {id(future.result()) for future in [pool.submit(ask) for _ in range(4)]}
    assert values == {id(computed[0])}
    assert len(computed) == 1


def test_an_error_is_not_cached() -> None:
    cache: SingleFlight[str, int] = SingleFlight()

    def fail() -> int:
        raise InfraError("away")

    with pytest.raises(InfraError):
        cache.get("key", fail)
    assert cache.get("key", lambda: 7) == 7
    assert cache.get("key", fail) == 7
