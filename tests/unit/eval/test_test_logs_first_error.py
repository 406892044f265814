"""The line that says what went wrong."""

from __future__ import annotations

import pytest

from cooperbench.eval.test_logs import MAX_ERROR_LENGTH, first_error
from tests.support.eval.outputs import (
    CARGO,
    CARGO_BROKEN,
    GO_PANIC,
    GO_PLAIN,
    JEST,
    NODE_SPEC,
    NODE_TAP,
    PYTEST_COLLECTION_ERROR,
    PYTEST_FAILURES,
    UNITTEST_SUBTESTS,
    VITEST,
)
from tests.support.eval.verbose_outputs import MOCHA

GO_BROKEN = """\
# m/color [m/color.test]
color/a_test.go:3:2: undefined: Red
# m/middleware [m/middleware.test]
middleware/version_test.go:12:7: undefined: NewVersionSelector
middleware/version_test.go:20:7: undefined: NewVersionSelector
ok  \tm\t0.003s
FAIL\tm/middleware [build failed]
FAIL\tm/color [build failed]
FAIL
"""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (PYTEST_FAILURES, "AssertionError in test_p[a b]"),
        (PYTEST_COLLECTION_ERROR, "ModuleNotFoundError in test_b.py"),
        (PYTEST_FAILURES.replace(" - AssertionError: assert 'a b' == 'c'", " - Assert..."),
         "AssertionError in test_p[a b]"),
        ("FAILED t.py::test_x[a::b] - assert 1 == 2\n", "AssertionError in test_x[a::b]"),
        ("FAILED t.py::test_x - my.module.Oops: no\n", "Oops in test_x"),
        ("FAILED t.py::test_x\n", "failure in test_x"),
        ("_____ test_x _____\n\nE   Oops\nFAILED t.py::test_x\n", "Oops in test_x"),
        (UNITTEST_SUBTESTS, "KeyError in test_err"),
        (NODE_TAP, "TypeError in inner throws"),
        (NODE_SPEC, "AssertionError in bad one"),
        (JEST, "AssertionError in bad"),
        ("FAIL j/b.test.js\n  ● Test suite failed to run\n\n    Cannot find module\n",
         "failure in j/b.test.js"),
        (" FAIL  j/a.test.js\n  ● math › bad\n\n    RangeError: x\n", "RangeError in bad"),
        (VITEST, "Error in b.test.js"),
        (MOCHA, "TypeError in throws"),
        (GO_PLAIN, "failure in TestTable/empty_input"),
        (GO_PANIC, "panic in TestX"),
        ("# m/f\nFAIL\tm/f [build failed]\n", "failure in m/f"),
        (GO_BROKEN, "undefined: NewVersionSelector in middleware/version_test.go"),
        ("# [m/f]\nvet: ./a.go:3:2: cannot use x\nFAIL\tm/f [build failed]\n",
         "cannot use x in a.go"),
        ("f/a.go:3:2: no required module provides package x; to add it:\nFAIL\tm/f [setup failed]\n",
         "no required module provides package x in f/a.go"),
        (CARGO, "panic in tests::idx"),
        (CARGO_BROKEN, "error[E0425]: cannot find value `c` in this scope"),
        ("error: patch failed: a.py:1\n\n \n", "error: patch failed: a.py:1"),
        ("\x1b[31mred\x1b[0m \x07alarm\u2028next\n", "red alarm next"),
        ("", None),
        (" \n\x00\n", None),
    ],
)  # fmt: skip
def test_the_first_error_is_one_line(output: str, expected: str | None) -> None:
    assert first_error(output) == expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("WARNING: Retrying after 'NewConnectionError: x'\nERROR: Could not find a version that satisfies the requirement x",
         "ERROR: Could not find a version that satisfies the requirement x"),
        ("ERROR: pip's dependency resolver does not take into account …\nERROR: file or directory not found: x",
         "ERROR: file or directory not found: x"),
        ("ERROR: usage: pytest [options]\npytest: error: unrecognized arguments: --x\n  inifile: None",
         "pytest: error: unrecognized arguments: --x"),
        ("ImportError while loading conftest '/x/conftest.py'.\nE   ModuleNotFoundError: No module named 'x'",
         "E ModuleNotFoundError: No module named 'x'"),
        ("error: patch failed: a.py:1\nerror: a.py: patch does not apply", "error: patch failed: a.py:1"),
        ("warning: unused\nerror[E0433]: failed to resolve", "error[E0433]: failed to resolve"),
        ("  × Failed to download `x==1`\n  ├─▶ Failed to fetch", "× Failed to download `x==1`"),
        ("a.c:3:2: warning: x\na.c:3:2: error: y", "a.c:3:2: error: y"),
        ("src/a.ts(3,5): error TS2304: Cannot find name 'x'.", "src/a.ts(3,5): error TS2304: Cannot find name 'x'."),
        ("fatal: unable to access 'x': Could not resolve host", "fatal: unable to access 'x': Could not resolve host"),
        ("W: Some index files failed\nE: Unable to locate package x", "E: Unable to locate package x"),
        ("npm warn old x\nnpm error code E404\nnpm error 404 Not Found - GET x", "npm error 404 Not Found - GET x"),
        ("npm ERR! code ERESOLVE\nnpm ERR! ERESOLVE unable to resolve", "npm ERR! ERESOLVE unable to resolve"),
        (("  error: subprocess-exited-with-error\n  × pip subprocess to install build dependencies did not run successfully.\n"
         "  │ exit code: 1\n  ╰─> [2 lines of output]\n      ERROR: Could not find a version of setuptools (from versions: none)\n"),
         "ERROR: Could not find a version of setuptools (from versions: none)"),
        ("\u2009ERR_PNPM_NO_OFFLINE_TARBALL\u2009 A package is missing\nCleaned up.", "ERR_PNPM_NO_OFFLINE_TARBALL A package is missing"),
        (" WARN  deprecated x\n ERR_PNPM_FETCH_404  GET x: Not Found", "ERR_PNPM_FETCH_404 GET x: Not Found"),
        ("go: downloading x v1.0.0\ngo: x@v1.0.0: Get x: dial tcp: lookup x: no such host",
         "go: x@v1.0.0: Get x: dial tcp: lookup x: no such host"),
        ("/bin/bash: line 1: warning: setlocale: x\nrunner.sh: line 12: foo: command not found",
         "runner.sh: line 12: foo: command not found"),
        ("> jest\n\nsh: 1: jest: not found", "sh: 1: jest: not found"),
        ('Traceback (most recent call last):\n  File "x", line 1\n    f()\n\nmod.Oops: no\nTraceback …',
         "mod.Oops: no"),
        ("node:internal/x\nError [ERR_MODULE_NOT_FOUND]: Cannot find package 'x'\n    at y",
         "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'x'"),
    ],
)  # fmt: skip
def test_tool_error_comes_before_cleanup_output(output: str, expected: str) -> None:
    assert first_error(f"Installing\n{output}\nRemoving untracked files…\n") == expected


def test_a_long_error_is_cut() -> None:
    error = first_error("x" * 1_000_000)
    assert error is not None
    assert len(error) == MAX_ERROR_LENGTH
    assert error.endswith("…")
