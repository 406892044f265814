"""Jobs of several evaluations that share the machine's processors."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import InfraError
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.sandbox.manager import SandboxManager
from tests.support.eval.scripted_backend import ScriptedBackend, pytest_output

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def tester(monkeypatch: pytest.MonkeyPatch) -> Iterator[PatchTester]:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with SandboxManager(ScriptedBackend(lambda _: pytest_output())) as sandboxes:
        yield PatchTester(sandboxes, timeout_seconds=60)


def test_jobs_run_at_the_same_time(tester: PatchTester) -> None:
    meeting = threading.Barrier(3, timeout=20)
    tester.run_parallel([meeting.wait] * 3)


def test_results_keep_their_order_also_where_jobs_have_jobs(tester: PatchTester) -> None:
    def number_of(tens: int, ones: int) -> int:
        return 10 * tens + ones

    def run_jobs(tens: int) -> list[int]:
        return tester.run_parallel([partial(number_of, tens, ones) for ones in range(4)])

    results = tester.run_parallel([partial(run_jobs, tens) for tens in range(5)])
    assert results == [[10 * tens + ones for ones in range(4)] for tens in range(5)]


def test_error_is_raised_after_all_jobs_ended(tester: PatchTester) -> None:
    ended = []

    def fail() -> None:
        raise InfraError("the engine is gone")

    for _ in range(4):
        with pytest.raises(InfraError, match="the engine is gone"):
            tester.run_parallel([fail, lambda: ended.append("first"), lambda: ended.append("last")])
    assert len(ended) == 8
    test_jobs_run_at_the_same_time(tester)


def test_nothing_to_do(tester: PatchTester) -> None:
    assert tester.run_parallel([]) == []
