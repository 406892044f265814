"""Of a union merge that fails its tests, the file that broke is named, where the output names it with an error."""

from __future__ import annotations

import pytest

from cooperbench.eval.counts import broken_place

UNITTEST = """
ERROR: tests.test_x (unittest.loader._FailedTest.tests.test_x)
ImportError: Failed to import test module: tests.test_x
Traceback (most recent call last):
  File "/usr/lib/python3.11/unittest/loader.py", line 362, in _get_module_from_name
    __import__(name)
  File "/workspace/repo/tests/test_x.py", line 5, in <module>
    from pkg import a
  File "/workspace/repo/pkg/a.py", line 3, in <module>
    from . import b
  File "/workspace/repo/pkg/b.py", line 42
    value: int
IndentationError: expected an indented block after 'for' statement on line 41
"""
PYTEST = """
tests/test_x.py:1: in <module>
    from pkg import a
E     File "/workspace/repo/pkg/a.py", line 12
E       def f(
E            ^
E   SyntaxError: '(' was never closed
ERROR tests/test_x.py
"""
PYTEST_LONG = """
    def f():
>       return undefined
E       NameError: name 'undefined' is not defined

pkg/a.py:7: NameError
"""
GO = """
# example.com/pkg
pkg/a.go:12:3: syntax error: unexpected }, expected expression
FAIL\texample.com/pkg [build failed]
"""
GO_PANIC = """
panic: runtime error: index out of range [3] with length 3

goroutine 7 [running]:
example.com/pkg.F(...)
\t/workspace/repo/pkg/a.go:12 +0x1d
"""
CARGO = """
warning: unused variable: `q`
 --> src/lib.rs:1:18
  |
error[E0428]: the name `f` is defined multiple times
 --> src/lib.rs:3:1
"""
CARGO_PANIC = "\nthread 'a' (26396) panicked at src/lib.rs:2:2:\nx\n"
NODE = """
# /workspace/repo/src/x.js:3
# SyntaxError: Unexpected end of input
#     at wrapSafe (node:internal/modules/cjs/loader:1464:18)
"""
NODE_TEST = """
  location: '/workspace/repo/test/a.test.js:1:61'
  error: 'bad'
  name: 'TypeError'
  stack: |-
    exports.g (/workspace/repo/src/x.js:2:23)
"""
JEST = """
  ● Test suite failed to run

    SyntaxError: /workspace/repo/src/x.ts: Unexpected token, expected "," (3:1)
"""
VITEST = '\nError: Transform failed with 1 error:\n/workspace/repo/src/x.ts:12:3: ERROR: Unexpected "}"\n'
TSC = "\nsrc/x.ts(3,1): error TS1005: '}' expected.\n"


@pytest.mark.parametrize(
    ("output", "paths", "place"),
    [
        (UNITTEST, ["pkg/a.py", "pkg/b.py"], "IndentationError in pkg/b.py line 42"),
        (PYTEST, ["pkg/a.py"], "SyntaxError in pkg/a.py line 12"),
        (PYTEST_LONG, ["pkg/a.py"], "NameError in pkg/a.py line 7"),
        (GO, ["pkg/a.go"], "syntax error in pkg/a.go line 12"),
        (GO.replace("syntax error: unexpected }", "F redeclared"), ["pkg/a.go"], "error in pkg/a.go line 12"),
        (GO_PANIC, ["pkg/a.go"], "panic in pkg/a.go line 12"),
        (CARGO, ["src/lib.rs"], "error[E0428] in src/lib.rs line 3"),
        (CARGO_PANIC, ["src/lib.rs"], "panic in src/lib.rs line 2"),
        (NODE, ["src/x.js"], "SyntaxError in src/x.js line 3"),
        (NODE_TEST, ["src/x.js"], "TypeError in src/x.js line 2"),
        (JEST, ["src/x.ts"], "SyntaxError in src/x.ts line 3"),
        (VITEST, ["src/x.ts"], "ERROR in src/x.ts line 12"),
        (TSC, ["src/x.ts"], "error in src/x.ts line 3"),
    ],
    ids=[
        "unittest",
        "pytest",
        "pytest-long",
        "go",
        "go-redeclared",
        "go-panic",
        "cargo",
        "cargo-panic",
        "node",
        "node-test",
        "jest",
        "vitest",
        "tsc",
    ],
)
def test_the_file_with_the_error_is_named(output: str, paths: list[str], place: str) -> None:
    assert broken_place(output, ["README.md", *paths]) == place
    assert broken_place(output, ["README.md"]) is None
    assert broken_place(output, []) is None


@pytest.mark.parametrize(
    "output",
    [
        "\nE   AssertionError: assert 1 == 2\ntests/test_x.py:3: AssertionError\n",
        "\npkg/a.py:3\n  /workspace/repo/pkg/a.py:3: DeprecationWarning: invalid escape sequence\n",
        '\n  File "/usr/lib/pkg/a.py", line 3, in f\nValueError: x\n',
        '\n  File "/workspace/repo/other/pkg/a.py", line 3, in f\nValueError: x\n',
        "\n  console.log\n    hello\n      at f (pkg/a.py:3:1)\n",
        "\nFAILED pkg/a.py::doctest - ValueError\n",
    ],
)
def test_other_files_warnings_and_logs_are_not_taken_for_it(output: str) -> None:
    assert broken_place(output, ["pkg/a.py"]) is None
