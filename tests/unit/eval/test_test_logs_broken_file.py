"""Of a union merge that fails its tests, the file that broke is named, where the output names it."""

from __future__ import annotations

import pytest

from cooperbench.eval.test_logs import find_named_file

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
    ("output", "path"),
    [
        pytest.param(UNITTEST, "pkg/b.py", id="unittest"),
        pytest.param(PYTEST, "pkg/a.py", id="pytest"),
        pytest.param(PYTEST_LONG, "pkg/a.py", id="pytest-long"),
        pytest.param(GO, "pkg/a.go", id="go"),
        pytest.param(GO_PANIC, "pkg/a.go", id="go-panic"),
        pytest.param(CARGO, "src/lib.rs", id="cargo"),
        pytest.param(CARGO_PANIC, "src/lib.rs", id="cargo-panic"),
        pytest.param(NODE, "src/x.js", id="node"),
        pytest.param(NODE_TEST, "src/x.js", id="node-test"),
        pytest.param(JEST, "src/x.ts", id="jest"),
        pytest.param(VITEST, "src/x.ts", id="vitest"),
        pytest.param(TSC, "src/x.ts", id="tsc"),
    ],
)
def test_the_file_that_broke_is_named(output: str, path: str) -> None:
    assert find_named_file(output, ["README.md", "pkg/a.py", path]) == path
    assert find_named_file(output, ["README.md"]) is None
    assert find_named_file(output, []) is None


@pytest.mark.parametrize(
    "output",
    [
        "\nE   AssertionError: assert 1 == 2\ntests/test_x.py:3: AssertionError\n",
        '\n  File "/usr/lib/pkg/a.py", line 3, in f\nValueError: x\n',
        '\n  File "/workspace/repo/other/pkg/a.py", line 3, in f\nValueError: x\n',
    ],
)
def test_other_files_are_not_taken_for_it(output: str) -> None:
    assert find_named_file(output, ["pkg/a.py"]) is None
