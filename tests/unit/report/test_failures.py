"""Why a pair failed, in one line and with the lines of the output that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.report.failures import MAX_EXCERPT_LINES, failed_tests, failure_reason, find_error
from cooperbench.report.loading import load_run
from tests.support.report.factory import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.report.factory import Kind

UNITTEST = """\
test_total (tests.test_wallet.Totals.test_total) ... ERROR

======================================================================
ERROR: test_total (tests.test_wallet.Totals.test_total)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "wallet.py", line 53, in total
    return amount * rate
TypeError: conversion from Rate to Decimal is not supported

======================================================================
ERROR: test_other (tests.test_wallet.Totals.test_other)
----------------------------------------------------------------------
ValueError: something else
"""
PYTEST = """\
____________________________ test_edge ____________________________

    def test_edge():
>       assert add(1, 1) == 3
E       assert 2 == 3
E        +  where 2 = add(1, 1)

tests/test_add.py:4: AssertionError
========================= short test summary info =========================
FAILED tests/test_add.py::test_edge - assert 2 == 3
"""


def test_message_of_an_exception() -> None:
    test, error, excerpt = find_error(UNITTEST, "TypeError in test_total")
    assert test == "test_total"
    assert error == "TypeError: conversion from Rate to Decimal is not supported"
    assert "return amount * rate" in excerpt
    assert "something else" not in excerpt


def test_assertion_without_a_name() -> None:
    test, error, excerpt = find_error(PYTEST, "AssertionError in test_edge")
    assert (test, error) == ("test_edge", "assert 2 == 3")
    assert "assert add(1, 1) == 3" in excerpt
    assert "short test summary" not in excerpt


@pytest.mark.parametrize("error", ["Segmentation fault", "KeyError in test_not_there"])
def test_unknown_errors_show_the_end_of_the_output(error: str) -> None:
    output = "\n".join(f"line {number}" for number in range(100))
    _, shown, excerpt = find_error(output, error)
    assert shown == error
    assert excerpt.splitlines()[-1] == "line 99"
    assert len(excerpt.splitlines()) == MAX_EXCERPT_LINES


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("passed", ""),
        ("capability", "agent1: AssertionError in test_edge"),
        ("integration", "merged: AssertionError in test_edge"),
        ("conflict", "conflict in src/app.py; union merge: AssertionError in test_edge"),
        ("suspicious", "the tests of feature 2 do not fail where they must"),
        ("error", "the sandbox did not start"),
        ("killed", ""),
    ],
)
def test_reason(tmp_path: Path, kind: Kind, reason: str) -> None:
    write_run(tmp_path, "r", {"repo_task": {1: [(1, 2)]}}, kind)
    (pair,) = load_run(tmp_path, "r").pairs
    assert failure_reason(pair) == reason


def test_only_the_runs_that_decided_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path, "r", {"repo_task": {1: [(1, 2)]}}, "capability")
    (pair,) = load_run(tmp_path, "r").pairs
    (failure,) = failed_tests(pair)
    assert (failure.subject, failure.feature_id) == ("agent1", 1)
    assert (failure.tests_failed, failure.tests_run) == (1, 7)
    assert failure.test == "test_edge"
