"""Outputs of the frameworks, and text that only looks like them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.eval.log_parsers import Counts
from cooperbench.eval.test_logs import MAX_ERROR_LENGTH, first_error, read_counts, read_outcomes
from tests.support.eval.outputs import (
    CARGO,
    CARGO_BROKEN,
    GO_PANIC,
    GO_PLAIN,
    GO_VERBOSE,
    JEST,
    NODE_SPEC,
    NODE_TAP,
    PYTEST_COLLECTION_ERROR,
    PYTEST_FAILURES,
    UNITTEST_SUBTESTS,
    VITEST,
)
from tests.support.eval.verbose_outputs import MOCHA, MOCHA_DOT, NEXTEST

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (PYTEST_FAILURES, Counts(3, 4, 2, "pytest")),
        (PYTEST_COLLECTION_ERROR, Counts(0, 1, 0, "pytest")),
        ("...\n3 passed in 0.12s\n", Counts(3, 0, 0, "pytest")),
        ("1 passed, 8 deselected, 2 warnings in 1.19s", Counts(1, 0, 0, "pytest")),
        ("= 2 passed, 4 subtests passed in 75.10s (0:01:15) =", Counts(2, 0, 0, "pytest")),
        ("=== 5 passed, 1 warnings in 0.42 seconds ===", Counts(5, 0, 0, "pytest")),
        ("collected 0 items\n\n==== no tests ran in 0.01s ====", Counts(0, 0, 0, "pytest")),
        ("9 deselected in 0.88s", Counts(0, 0, 0, "pytest")),
        ("= 1 passed in 0.10s =\n= 2 passed, 2 errors in 0.10s =", Counts(2, 2, 0, "pytest")),
        ("\x1b[32m= \x1b[32m\x1b[1m2 passed\x1b[0m\x1b[32m in 0.10s\x1b[0m =\r\n", Counts(2, 0, 0, "pytest")),
        (UNITTEST_SUBTESTS, Counts(0, 3, 2, "unittest")),
        ("Ran 12 tests in 0.1s\n\nOK (skipped=1)\n", Counts(11, 0, 1, "unittest")),
        ("Ran 3 tests in 0.1s\n\nFAILED (failures=1, unexpected successes=1)", Counts(1, 2, 0, "unittest")),
        ("Ran 1 test in 0.0s\n\nFAILED (failures=4)\n", Counts(0, 4, 0, "unittest")),
        ("Ran 0 tests in 0.000s\n\nNO TESTS RAN\n", Counts(0, 0, 0, "unittest")),
        (f"{'=' * 70}\nERROR: setUpClass (m.T)\n{'-' * 70}\nRan 2 tests in 0.1s\n\nFAILED (errors=1)\n",
         Counts(1, 1, 0, "unittest")),
        (MOCHA, Counts(7, 5, 2, "mocha")),
        (MOCHA_DOT, Counts(7, 5, 2, "mocha")),
        ("  ..\n\n  2 passing (2s)\n\n" + MOCHA, Counts(7, 5, 2, "mocha")),
        (NODE_TAP, Counts(2, 3, 2, "node")),
        (NODE_SPEC, Counts(2, 3, 2, "node")),
        (NODE_SPEC + NODE_TAP, Counts(2, 6, 2, "node")),
        (GO_PLAIN, Counts(2, 3, 0, "go")),
        (GO_VERBOSE, Counts(2, 1, 1, "go")),
        (GO_PANIC, Counts(0, 1, 0, "go")),
        ("=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestSlow\n", Counts(1, 0, 0, "go")),
        ("FAIL\tm/x\t600.01s\nFAIL\n", Counts(0, 1, 0, "go")),
        (JEST, Counts(2, 2, 2, "jest")),
        ("Test Suites: 2 failed, 2 total\nTests:       0 total\n", Counts(0, 2, 0, "jest")),
        ("Tests:       1 failed, 2 skipped, 3 todo, 12 passed, 18 total", Counts(12, 1, 5, "jest")),
        ("No tests found, exiting with code 1", Counts(0, 0, 0, "jest")),
        (VITEST, Counts(2, 2, 2, "vitest")),
        (" Test Files  1 failed (1)\n      Tests  no tests\n", Counts(0, 1, 0, "vitest")),
        ("No test files found, exiting with code 1", Counts(0, 0, 0, "vitest")),
        (CARGO, Counts(2, 2, 1, "cargo")),
        (NEXTEST, Counts(2, 2, 1, "cargo")),
        ("     Summary [ 1.0s] 1/9 tests run: 1 passed (1 slow), 2 timed out, 0 skipped", Counts(1, 2, 0, "cargo")),
        ("== 9 passed in 0.01s ==\n= 1 passed, 1 skipped in 0.10s =\n= 1 warning in 0.10s =", Counts(1, 0, 1, "pytest")),
        ("= 1 failed in 0.01s =\n= 5 passed in 0.10s =", Counts(5, 1, 0, "pytest")),
        (CARGO_BROKEN, Counts(0, 0, 0, "cargo")),
        ("4 passed, 0 failed, 3081 skipped\n1 passed, 2 failed, 3082 skipped\n", Counts(5, 2, 6163, "cargo")),
        ("test result: \x1b[32mok\x1b(B\x1b[m. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
         Counts(1, 0, 0, "cargo")),
        ("1 passed in 0.10s\nTests: 2 passed, 2 total\n", Counts(3, 0, 0, "pytest+jest")),
        ("", Counts()),
    ],
)  # fmt: skip
def test_summaries_are_read(output: str, expected: Counts) -> None:
    assert read_counts(output) == expected


@pytest.mark.parametrize(
    ("output", "test"),
    [
        (
            "...PASS src/a.test.ts (5.2 s)\n  group\n    ✓ name (2 ms)\n",
            "src/a.test.ts > group > name",
        ),
        ("PASS src/a.test.ts\n  ✓ a > b (2 ms)\n", "src/a.test.ts > a > b"),
        ("... ✓ src/a.test.ts > group > name 3ms\n", "src/a.test.ts > group > name"),
        ("=== RUN   TestA\n...--- PASS: TestA (0.00s)\nok  \tx/y\t0.01s\n", "x/y.TestA"),
    ],
)
def test_code_may_print_part_of_a_line(output: str, test: str) -> None:
    assert read_outcomes(output) == {test: "passed"}


@pytest.mark.parametrize(
    "output",
    [
        "printed by a test: 3 passed in 0.12s",
        "3 passed in 0.12s, it said",
        "3 things in 0.12s",
        "3 passed in no time",
        "x\u20283 passed in 0.12s",
        "# pass 5\n# fail 0",
        "  Ran 3 tests in 0.1s\n\nOK",
        "Ran 3 tests in 0.1s\nsome more text",
        "    Tests:       3 passed, 3 total",
        "Tests  3 passed (3)",
        "ok 1 - name",
        "ok then 12s",
        "FAIL a.test.js (5.1 s)",
        "test result: maybe. 1 passed; 0 failed; 0 ignored",
        "9999999999999999 passed in 0.12s",
        "٣ passed in 0.12s",
    ],
)
def test_what_only_looks_like_a_summary_is_not_counted(output: str) -> None:
    assert read_counts(output) == Counts()


_FRAGMENTS = st.sampled_from(
    [
        "\n", "\n\n", "\r", "=", "_", " ", "/", "[", "]", "#", "\x1b[", "\x1b]", "\x1b[0m", " - ", "::",
        "...", "0.10s", "1 passed", ", ", " in ", "FAILED ", "ERROR ", "E   ", "no tests ran",
        "_____ t _____\n", "Ran 2 tests in 0.1s\n\n", "FAILED (failures=9)", "OK", "=" * 70 + "\n",
        "FAIL: ", "ERROR: ", "# tests 1\n", "not ok 1 - ", "✖ ", " (1ms)", "  ● ", " FAIL  ", "Tests: ",
        "1 total", "Test Suites: ", "--- FAIL: T", "--- PASS: T", " (0.1s)", "ok  \tp\t0.1s",
        "FAIL\tp\t0.1s", " Test Files  ", "1 failed", " | ", " Tests  ", "⎯ Failed Suites 1 ⎯",
        "test result: ok. ", "error: could not compile ", "error: ", "Traceback (most recent call last):\n",
        "a.py::t", " PASSED", " <- ", "SUBFAILED(", "[gw0] ", "t (m.T)", " ... ", "ok", "skipped 'x'",
        "PASS a.js\n", "  ✓ ", "    ✕ ", " ✓ a > ", " 1ms", " (retry x1)", "✔ ", "﹣ ", "▶ ", "# Subtest: ",
        "ok 1 - ", "# SKIP", "test ", "     Running a/b-0123456789abcdef", "        PASS [ 0.1s] a b",
    ]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(_FRAGMENTS, max_size=40).map("".join)))
def test_no_text_breaks_the_readers(output: str) -> None:
    counts = read_counts(output)
    assert min(counts.passed, counts.failed, counts.skipped) >= 0
    if counts.framework is None:
        assert counts == Counts()
    error = first_error(output)
    assert {"passed", "failed", "skipped"}.issuperset(read_outcomes(output).values())
    assert error is None or (0 < len(error) <= MAX_ERROR_LENGTH and error.isprintable())


@pytest.mark.parametrize(
    "junk",
    [
        "a",
        "\n",
        "_",
        " ",
        "\x1b[0",
        "1 passed, ",
        "1 passed, \n",
        "___ a ",
        "___ a ___\n",
        "--- FAIL: T/x (0.0s)\n",
        "--- FAIL: " + "a/" * 5_000 + " (0.0s)\n",
        "Ran 1 test in 1s\n",
        "  ● x\n",
        " Tests  1 a | ",
        "Tests: 1 a, ",
        "a.py::t[] <- b PASSED ",
        "\nSUBFAIL a.py::t[ - ",
        "\nt (m.T)\n ... ",
        "\nPASS f\n  ✓ a (1 ms)",
        "\n ✓ a > b 1ms (retry x1)" + " (retry x1)" * 5_000,
        "\ntest a ... o",
        "     Running a/b-",
        "\nTraceback (most recent call last):\n  a",
    ],
)
def test_junk_takes_linear_time(junk: str) -> None:
    text = junk * (400_000 // len(junk))
    assert read_counts(text).passed == 0
    assert len(read_outcomes(text)) <= 1
    assert len(first_error(text) or "") <= MAX_ERROR_LENGTH


def test_a_name_of_a_megabyte_takes_linear_time() -> None:
    output = f"FAILED {'a' * 4_000_000}b\nFAILED x.py::{'a' * 1_000_000}c\n"
    assert (first_error(output) or "").startswith("failure in aaa")


def test_live_output_of_pytest_and_unittest(tmp_path: Path) -> None:
    (tmp_path / "test_live.py").write_text(
        "import unittest\n"
        "class T(unittest.TestCase):\n"
        "    def test_good(self): pass\n"
        "    def test_bad(self): self.assertEqual(1, 2)\n"
        "    @unittest.skip('x')\n"
        "    def test_skipped(self): pass\n"
    )
    for arguments, framework, prefix in (
        (["pytest", "-p", "no:cacheprovider", "-v", "test_live.py"], "pytest", "test_live.py::T::"),
        (["unittest", "-v", "test_live"], "unittest", "test_live.T."),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        assert read_counts(output) == Counts(1, 1, 1, framework)
        assert first_error(output) == "AssertionError in test_bad"
        assert read_outcomes(output) == {
            prefix + "test_good": "passed",
            prefix + "test_bad": "failed",
            prefix + "test_skipped": "skipped",
        }
