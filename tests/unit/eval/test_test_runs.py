"""What makes a green run a success: the tests that pass with the golden patch."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as replace_fields

from cooperbench.eval.test_runs import TestRun, read_test_run
from cooperbench.records.reference import ReferenceRecord
from cooperbench.sandbox.contract import CommandResult


def ran(*lines: str, summary: str) -> TestRun:
    return read_test_run(CommandResult(0, "\n".join([*lines, summary, ""]).encode()), 1.0, 60)


GREEN = ran("PASSED t.py::a", "PASSED t.py::b", summary="2 passed in 0.01s")
REFERENCE = ReferenceRecord(
    question="q",
    task="x/task1",
    feature_id=1,
    image_digest="sha256:0",
    network="none",
    installed=False,
    golden=GREEN.to_record(),
    passed_tests=["t.py::a", "t.py::b"],
)


def expecting(*tests: str, passed: int, skipped: int = 0) -> ReferenceRecord:
    golden = replace(GREEN, tests_passed=passed, tests_skipped=skipped).to_record()
    return replace_fields(REFERENCE, passed_tests=list(tests), golden=golden)


def test_a_run_like_the_golden_one_is_a_success() -> None:
    assert GREEN.compare_with_reference(REFERENCE) == GREEN
    assert GREEN.success


def test_every_expected_test_has_to_pass() -> None:
    one = ran(
        "PASSED t.py::a", "PASSED t.py::c", summary="2 passed in 0.01s"
    ).compare_with_reference(REFERENCE)
    assert not one.success
    assert one.missing_tests == ("t.py::b",)
    assert one.error == "1 of 2 expected tests did not run: t.py::b"
    skipped = ran("PASSED t.py::a", "XFAIL t.py::b", summary="1 passed, 1 xfailed in 0.01s")
    assert skipped.compare_with_reference(REFERENCE).skipped_tests == ("t.py::b",)
    assert not skipped.compare_with_reference(REFERENCE).success


def test_flaky_tests_are_not_required() -> None:
    one = ran("PASSED t.py::a", summary="1 passed in 0.01s")
    assert one.compare_with_reference(replace_fields(REFERENCE, flaky_tests=["t.py::b"])).success


def test_without_names_the_numbers_decide() -> None:
    nameless = expecting(passed=3, skipped=1)
    fewer = ran(summary="2 passed in 0.01s").compare_with_reference(nameless)
    assert fewer.error == "only 2 tests passed, 3 do with the golden patch"
    more_skipped = ran(summary="3 passed, 2 skipped in 0.01s").compare_with_reference(nameless)
    assert more_skipped.error == "2 tests were skipped, 1 are with the golden patch"
    assert ran(summary="4 passed, 1 skipped in 0.01s").compare_with_reference(nameless).success
