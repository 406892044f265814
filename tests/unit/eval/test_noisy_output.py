"""Code under test prints into the output of its tests, which must not change what they say."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.confirmation import find_disagreement
from cooperbench.eval.log_parsers import unittest as unittest_parser
from cooperbench.eval.test_logs import read_counts, read_outcomes
from cooperbench.eval.test_runs import TestRun, read_test_run
from cooperbench.records.reference import ReferenceRecord, SuiteRecord
from cooperbench.sandbox.contract import CommandResult

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.eval.log_parsers import Outcome

NAMES = ["t.T.test_a", "t.T.test_b", "t.T.test_c"]
QUIET = """\
test_a (t.T.test_a) ... ok
test_b (t.T.test_b) ... ok
test_c (t.T.test_c) ... ok
"""
SUMMARY = f"\n{'-' * 70}\nRan 3 tests in 0.001s\n\nOK\n"
NOISY_TESTS = r"""
import atexit, logging, os, sys, threading, time, unittest

def write(text):
    sys.stderr.write(text)
    sys.stderr.flush()

def keep_ticking():
    while True:
        os.write(2, b"tick")
        time.sleep(0.001)

threading.Thread(target=keep_ticking, daemon=True).start()
atexit.register(write, "bye")
write("loading")

class T(unittest.TestCase):
    @classmethod
    def tearDownClass(cls):
        write("ERROR\n")
    def test_color(self):
        write("\x1b[31mred\x1b[0m \x1b]0;a title\x07")
    def test_error(self):
        write("ERROR\n")
    def test_logging(self):
        logging.error("FAIL")
    def test_partial(self):
        write("no newline")
    def test_progress(self):
        for percent in range(0, 101, 50):
            write(f"\r{percent:3} %")
    def test_status(self):
        '''With a docstring (of a kind) ... here.'''
        write("FAIL\n\nERROR")
    def test_stdout(self):
        os.write(1, b"[1/2] [2/2] ")
"""


def ran(output: str, exit_code: int = 0, cut: int = 0) -> TestRun:
    return read_test_run(CommandResult(exit_code, stderr=output.encode(), stderr_cut=cut), 1.0, 60)


REFERENCE = ReferenceRecord(
    question="",
    task="t",
    feature_id=1,
    image_digest="",
    network="none",
    installed=False,
    golden=ran(QUIET + SUMMARY).to_record(),
    passed_tests=NAMES,
)


@pytest.mark.parametrize(
    "lines",
    [
        "loadingtest_a (t.T.test_a) ... ok\n",
        "Loading (all) ... test_a (t.T.test_a) ... ok\n",
        "test_a (t.T.test_a) ... 50 %ok\n",
        "test_a (t.T.test_a) ... \r50 %\r100 %ok\n",
        "test_a (t.T.test_a) ... \r50 %\r100 %\nok\n",
        "test_a (t.T.test_a) ... \x1b[31mred\x1b[0mok\n",
        "test_a (t.T.test_a) ... ERROR\nok\n",
        "test_a (t.T.test_a) ... FAIL\nERROR\nok\n",
        "test_a (t.T.test_a)\nSays (it.all) again. ... noteok\n",
        "a note (of x)\ntest_a (t.T.test_a) ... ok\n",
        "test_a (t.T.test_a) ... ok\nERROR\nFAIL",
    ],
)
def test_outcomes_of_unittest_are_read_between_other_output(lines: str) -> None:
    rest = QUIET.partition("\n")[2]
    outcomes = read_outcomes(lines + rest + SUMMARY)
    assert {name: outcomes.get(name) for name in NAMES} == dict.fromkeys(NAMES, "passed")


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        ("test_a (t.T.test_a) ... okFAIL\n", "failed"),
        ("test_a (t.T.test_a) ... skipped 'ok'\n", "skipped"),
        ("test_a (t.T.test_a) ... skipped 'why'\nok\n", "skipped"),
        ("test_a (t.T.test_a) ... 50 %skipped 'why'\n", "skipped"),
        (f"test_a (t.T.test_a) ... ok\n\n{'=' * 70}\nFAIL: test_a (t.T.test_a)\n", "failed"),
        (f"test_a (t.T.test_a) ... ok\n\nx{'=' * 70}\nERROR: test_a (t.T.test_a)\n", "failed"),
    ],
)
def test_a_printed_ok_does_not_hide_a_failure(lines: str, outcome: Outcome) -> None:
    assert read_outcomes(lines) == {"t.T.test_a": outcome}


@pytest.mark.parametrize(
    "summary",
    [
        "tickRan 3 tests in 0.001s\n\nOK\n",
        "Ran 3 tests in 0.001stick\n\nOK\n",
        "Ran 3 tests in 0.001s\ntick\ntick\ntickOK\n",
        "Ran 3 tests in 0.001s\n\nOK\ntick",
    ],
)
def test_the_summary_of_unittest_is_read_between_other_output(summary: str) -> None:
    assert read_counts(summary)[:3] == (3, 0, 0)


def test_live_output_of_a_noisy_library(tmp_path: Path) -> None:
    (tmp_path / "test_noisy.py").write_text(NOISY_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-v", "test_noisy"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    run = read_test_run(CommandResult(done.returncode, done.stdout, done.stderr), 1.0, 60)
    assert run.success, run.error
    assert run.tests_passed == 7
    known = {test: outcome for test, outcome in run.outcomes.items() if "test_noisy.T" in test}
    assert set(known.values()) == {"passed"}


@pytest.mark.parametrize(
    ("output", "test"),
    [
        ("50 %✔ a (0.5ms)\nℹ tests 1", "a"),
        ("▶ g\n50 %  ✔ a (0.5ms)\nℹ tests 1", "g > a"),
        ("50 %▶ g\n  ✔ a (0.5ms)\nℹ tests 1", "g > a"),
        ("\r50 %\r100 %\r✔ a (0.5ms)\nℹ tests 1", "a"),
        ("50 %test m::a ... ok\n", "m::a"),
        ("test m::a ... 50 %ok\n", "m::a"),
        ("50 %  ✓ a.test.js > g > a\n", "a.test.js > g > a"),
        # pytest with -s: the short summary decides.
        ("a.py::test_a ERROR\n50 %PASSED\nPASSED a.py::test_a\n", "a.py::test_a"),
        ("a.py::test_atick PASSED\nPASSED a.py::test_a\n", "a.py::test_a"),
    ],
)
def test_other_frameworks_between_other_output(output: str, test: str) -> None:
    if "ℹ" in output:
        output += "\nℹ pass 1\nℹ fail 0\nℹ cancelled 0\nℹ skipped 0\nℹ todo 0\nℹ duration_ms 4.2\n"
    assert read_outcomes(output) == {test: "passed"}


def test_the_short_summary_of_pytest_hides_no_failure() -> None:
    verbose = "a.py::test_a PASSED\na.py::test_b FAILED\n"
    assert read_outcomes(verbose) == {"a.py::test_a": "passed", "a.py::test_b": "failed"}
    for summary in ("FAILED a.py::test_b\n", "PASSED a.py::test_b\nFAILED a.py::test_b\n"):
        outcomes = read_outcomes(f"{verbose}PASSED a.py::test_a\n{summary}")
        assert outcomes == {"a.py::test_a": "passed", "a.py::test_b": "failed"}
    assert read_outcomes(f"{verbose}PASSED a.py::test_a\n")["a.py::test_b"] == "failed"


def test_counts_decide_if_a_name_cannot_be_read() -> None:
    unreadable = QUIET.replace("test_b (t.T.test_b) ... ok", "test_b (t.T.tesXt_b) ..X. ok")
    assert read_outcomes(unreadable + SUMMARY).keys() == {NAMES[0], NAMES[2]}
    assert ran(unreadable + SUMMARY).compare_with_reference(REFERENCE).success


@pytest.mark.parametrize(
    "output",
    [
        # Fewer tests passed.
        QUIET.replace("... ok", "", 1) + SUMMARY.replace("OK", "OK (skipped=1)"),
        QUIET.replace("... ok", "", 1) + SUMMARY.replace("Ran 3", "Ran 2"),
        # Another test took its place.
        QUIET.replace("test_b", "test_x") + SUMMARY,
        QUIET.replace("test_b (t.T.test_b)", "test_x (t.T.test_x)") + "test_b\n" + SUMMARY,
        # Nothing but a summary.
        SUMMARY,
        # It was skipped.
        QUIET.replace("ok", "skipped 'no'", 1) + SUMMARY,
    ],
)
def test_counts_do_not_replace_a_test_that_did_not_run(output: str) -> None:
    assert not ran(output).compare_with_reference(REFERENCE).success


def test_counts_decide_if_output_was_cut() -> None:
    output = QUIET.replace("test_b (t.T.test_b) ... ok\n", "") + SUMMARY
    assert ran(output, cut=100).compare_with_reference(REFERENCE).success
    assert not ran(output).compare_with_reference(REFERENCE).success


SUITE = SuiteRecord(
    kind="copies",
    tests="",
    tests_total=3,
    tests_with_decoys=1,
    failed=["t.T.test_b"],
    passed=["t.T.test_a", "t.T.test_c"],
    failed_count=1,
    passed_count=2,
)
CONFIRMATION = (
    QUIET.replace("b) ... ok", "b) ... FAIL")
    + f"\n{'=' * 70}\nFAIL: test_b (t.T.test_b)\n"
    + SUMMARY.replace("OK", "FAILED (failures=1)")
)


def test_a_confirmation_does_not_need_names_of_tests_that_pass() -> None:
    unreadable = CONFIRMATION.replace("(t.T.test_c)", "(t.T.tXest_c)")
    for output in (CONFIRMATION, unreadable):
        assert find_disagreement(SUITE, ran(output, 1), ()) is None


@pytest.mark.parametrize(
    "output",
    [
        CONFIRMATION.replace("(t.T.test_c) ... ok", "(t.T.test_c) ... FAIL"),
        CONFIRMATION.replace("failures=1", "failures=2"),
        CONFIRMATION.replace("FAIL: test_b (t.T.test_b)", "").replace("(t.T.test_b)", ""),
        CONFIRMATION.replace("test_c (t.T.test_c) ... ok\n", ""),
    ],
)
def test_a_confirmation_needs_everything_else(output: str) -> None:
    assert find_disagreement(SUITE, ran(output, 1), ()) is not None


def test_much_output_takes_linear_time() -> None:
    for line in ("test (a.b", " (a.a.a.a", "x (a.b) ... ", "x (a.b)\n", "Ran 3 tests in 0.1s\n"):
        text = "\n" + line * (100_000 // len(line)) + "\n"
        list(unittest_parser.PARSER.parse_counts(text))
        list(unittest_parser.PARSER.parse_outcomes(text))
