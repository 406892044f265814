"""Which failures of golden patches may be flaky, and what several runs say together."""

from __future__ import annotations

import pytest

from cooperbench.eval.golden_runs import always_failed, may_be_flaky
from cooperbench.eval.test_runs import TestRun, read_test_run
from cooperbench.sandbox.contract import CommandResult
from tests.support.eval.scripted_backend import pytest_output


def run_with(exit_code: int, output: str, *, timed_out: bool = False) -> TestRun:
    result = CommandResult(exit_code, output.encode(), timed_out=timed_out)
    return read_test_run(result, 0.1, timeout_seconds=60)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("--- FAIL: TestA (0.00s)\nFAIL\tm/f\t0.003s\n", True),
        ("FAILED t.py::test_x - assert 1 == 2\n=== 1 failed in 0.1s ===\n", True),
        ("Ran 3 tests in 0.001s\n\nFAILED (failures=1)\n", True),
        # What cannot be loaded or compiled, or was never started.
        ("m/f/a.go:1:2: undefined: X\nFAIL\tm/f [build failed]\n", False),
        ("ERROR t.py - ImportError: no\n=== 1 error in 0.1s ===\n", False),
        (f"E\n{'=' * 70}\nERROR: test_x (unittest.loader._FailedTest.test_x)\n{'-' * 70}\nRan 1 test in 0.1s\n\nFAILED (errors=1)\n",
         False),
        ("ERROR: No matching distribution found for widget\n", False),
    ],
)  # fmt: skip
def test_only_tests_that_ran_may_be_flaky(output: str, expected: bool) -> None:
    assert may_be_flaky(run_with(1, output)) is expected


def test_a_run_that_took_too_long_is_not_repeated() -> None:
    output = "FAILED t.py::test_x - assert 1 == 2\n=== 1 failed in 0.1s ===\n"
    assert not may_be_flaky(run_with(124, output, timed_out=True))


def test_tests_that_passed_once_did_not_always_fail() -> None:
    runs = [
        run_with(*pytest_output(test_a=False, test_b=False)),
        run_with(*pytest_output(test_a=True, test_b=False)),
    ]
    assert always_failed(runs) == {"tests/test_x.py::test_b"}
