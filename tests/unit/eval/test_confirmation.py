"""Confirmation runs, compared with the golden patch test by test."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cooperbench.eval.canaries import Suite
from cooperbench.eval.confirmation import (
    are_useful,
    find_disagreement,
    keep_stable,
    record_golden_run,
    suite_timeout,
)
from cooperbench.eval.test_runs import TestRun, read_test_run
from cooperbench.records.reference import ReferenceRecord, SuiteRecord
from cooperbench.sandbox.contract import CommandResult

NOTHING = re.compile(r"(?!)")


def run(*lines: str, summary: str, exit_code: int = 1) -> TestRun:
    result = CommandResult(exit_code, "\n".join([*lines, summary, ""]).encode())
    return read_test_run(result, duration_seconds=1.0, timeout_seconds=60)


GOLDEN_LINES = ("PASSED t.py::test_a_1", "FAILED t.py::test_a_2 - x", "PASSED t.py::test_other")
GOLDEN = run(*GOLDEN_LINES, summary="1 failed, 2 passed in 0.01s")
REFERENCE = ReferenceRecord(
    question="q",
    task="x/task1",
    feature_id=1,
    image_digest="",
    network="none",
    installed=False,
    golden=run("PASSED t.py::test_a", summary="1 passed in 0.01s", exit_code=0).to_record(),
    passed_tests=["t.py::test_a"],
)
SUITE = Suite(b"patch", "copies", ("test_a_1",), ("test_a_2",), 1, 1)


def recorded(golden: TestRun = GOLDEN, suite: Suite = SUITE) -> SuiteRecord:
    record = record_golden_run(suite, golden, REFERENCE, NOTHING)
    assert record is not None
    return record


def test_every_test_has_to_end_as_with_the_golden_patch() -> None:
    record = recorded()
    assert (record.failed, len(record.passed)) == (["t.py::test_a_2"], 2)
    assert find_disagreement(record, GOLDEN, ()) is None


@pytest.mark.parametrize(
    ("lines", "summary", "reason", "decoy_passed"),
    [
        (
            ("PASSED t.py::test_a_1", "PASSED t.py::test_a_2", "PASSED t.py::test_other"),
            "3 passed in 0.01s",
            "t.py::test_a_2 passes, although it must fail",
            True,
        ),
        (
            ("FAILED t.py::test_a_1", "FAILED t.py::test_a_2", "PASSED t.py::test_other"),
            "2 failed, 1 passed in 0.01s",
            "t.py::test_a_1 does not pass in a confirmation run",
            False,
        ),
        (
            ("FAILED t.py::test_a_1", "PASSED t.py::test_a_2", "PASSED t.py::test_other"),
            "1 failed, 2 passed in 0.01s",
            "t.py::test_a_2 passes, although it must fail",
            True,
        ),
        (
            ("PASSED t.py::test_a_1", "PASSED t.py::test_other"),
            "2 passed in 0.01s",
            "t.py::test_a_2 must fail, but did not run",
            False,
        ),
    ],
)
def test_any_other_outcome_is_a_disagreement(
    lines: tuple[str, ...], summary: str, reason: str, *, decoy_passed: bool
) -> None:
    disagreement = find_disagreement(recorded(), run(*lines, summary=summary), ())
    assert disagreement is not None
    assert disagreement.reason == reason
    assert disagreement.decoy_passed is decoy_passed


def test_a_green_run_and_one_that_never_ends_disagree() -> None:
    record = recorded()
    green = run(*GOLDEN_LINES, summary="3 passed in 0.01s", exit_code=0)
    assert find_disagreement(record, replace(green, success=True), ())
    late = find_disagreement(record, replace(GOLDEN, timed_out=True), ())
    assert late is not None
    assert late.reason == "a confirmation run did not end in time"


@pytest.mark.parametrize(("duration_seconds", "limit"), [(0.1, 600), (100.0, 900), (590.0, 3600)])
def test_slow_patches_have_more_time_for_more_tests(duration_seconds: float, limit: int) -> None:
    """The suite has three times as many tests; six times the limit is the end."""
    assert suite_timeout([recorded()], REFERENCE, duration_seconds, 600) == limit


def test_flaky_tests_may_end_either_way() -> None:
    lines = ("FAILED t.py::test_a_1", "FAILED t.py::test_a_2", "FAILED t.py::test_other")
    failing = run(*lines, summary="3 failed in 0.01s")
    assert find_disagreement(recorded(), failing, ("t.py::test_a", "t.py::test_other")) is None
    assert find_disagreement(recorded(), failing, ("t.py::test_a",))


@pytest.mark.parametrize(
    ("lines", "other"),
    [
        (("--- FAIL: TestA2 (0.00s)", "--- PASS: b (0.00s)", "FAIL\tx/TestA2\t0.1s"), "x/TestA2.b"),
        (
            (
                "     Running tests/TestA2.rs (x/TestA2-0123456789abcdef)",
                "test m::TestA2 ... FAILED",
                "test b ... ok",
            ),
            "TestA2::b",
        ),
    ],
)
def test_file_named_like_a_decoy_is_no_decoy(lines: tuple[str, ...], other: str) -> None:
    suite = Suite(b"patch", "copies", (), ("TestA2",), 1, 1)
    golden = run(*lines, summary="1 failed, 1 passed in 0.01s")
    assert recorded(golden, suite).passed == [other]


def test_a_case_of_rstest_belongs_to_its_test() -> None:
    lines = (
        "test sizes_2::case_1 ... FAILED",
        "test sizes_2::case_2 ... ok",
        "test sizes_1 ... ok",
    )
    summary = "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out"
    suite = Suite(b"patch", "copies", ("sizes_1",), ("sizes_2",), 1, 1)
    record = recorded(run(*lines, summary=summary), suite)
    assert (record.failed, record.passed) == (["sizes_2::case_1"], ["sizes_1"])


def test_a_suite_whose_decoys_do_not_fail_is_of_no_use() -> None:
    broken = run("FAILED t.py::test_other - x", summary="1 failed in 0.01s")
    assert record_golden_run(SUITE, broken, REFERENCE, NOTHING) is None
    assert record_golden_run(SUITE, replace(GOLDEN, timed_out=True), REFERENCE, NOTHING) is None
    green = run("PASSED t.py::test_a_1", summary="1 passed in 0.01s", exit_code=0)
    assert not are_useful([record_golden_run(SUITE, green, REFERENCE, NOTHING)])
    assert are_useful([recorded()])
    assert not are_useful([recorded(), None])


def test_decoys_that_pass_with_the_golden_patch_are_not_compared() -> None:
    lines = (*GOLDEN_LINES, "PASSED t.py::test_a_3")
    suite = replace(SUITE, decoys=("test_a_2", "test_a_3"))
    record = recorded(run(*lines, summary="1 failed, 3 passed in 0.01s"), suite)
    assert record.not_compared == ["t.py::test_a_3"]
    other = (*GOLDEN_LINES, "FAILED t.py::test_a_3")
    assert find_disagreement(record, run(*other, summary="2 failed, 2 passed in 0.01s"), ()) is None


def test_without_names_the_numbers_decide() -> None:
    golden = run(summary="1 failed, 2 passed in 0.01s")
    record = recorded(golden, replace(SUITE, originals=(), decoys=()))
    assert find_disagreement(record, golden, ()) is None
    for summary in ("3 passed in 0.01s", "2 failed, 1 passed in 0.01s"):
        assert find_disagreement(record, run(summary=summary), ())


def test_unstable_tests_are_not_compared() -> None:
    lines = ("FAILED t.py::test_other", "FAILED t.py::test_a_2", "PASSED t.py::test_a_1")
    second = run(*lines, summary="2 failed, 1 passed in 0.01s")
    stable = keep_stable(recorded(), second)
    assert stable.passed == ["t.py::test_a_1"]
    assert find_disagreement(stable, GOLDEN, ()) is None
    assert find_disagreement(stable, second, ()) is None
