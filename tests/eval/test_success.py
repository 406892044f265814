"""What makes a green run a success: the expected tests, the canary, the size, and what is listed as evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.canary import Canary, add_canary
from cooperbench.eval.evidence import suspicious_lines
from cooperbench.eval.reference import Reference
from cooperbench.eval.testrun import TestRun, judge
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Feature
from cooperbench.sandbox.contract import CommandResult
from tests.eval.realgit import base_with, text

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE = Reference(
    "q", "x/task1", 1, "sha256:0", "none", False, True, 0, 2, 0, 0, "pytest", False, 1.0, None,
    ("t.py::a", "t.py::b"),
)  # fmt: skip


def ran(*lines: str, summary: str) -> TestRun:
    return judge(CommandResult(0, "\n".join([*lines, summary, ""]).encode()), 1.0, 60)


GREEN = ran("PASSED t.py::a", "PASSED t.py::b", summary="2 passed in 0.01s")


def test_a_run_like_the_golden_one_is_a_success() -> None:
    assert GREEN.held_against(REFERENCE) == GREEN
    assert GREEN.success


def test_every_expected_test_has_to_pass() -> None:
    one = ran("PASSED t.py::a", "PASSED t.py::c", summary="2 passed in 0.01s").held_against(REFERENCE)
    assert not one.success
    assert one.missing_tests == ("t.py::b",)
    assert one.error == "1 of 2 expected tests did not run: t.py::b"
    skipped = ran("PASSED t.py::a", "XFAIL t.py::b", summary="1 passed, 1 xfailed in 0.01s")
    assert skipped.held_against(REFERENCE).skipped_tests == ("t.py::b",)
    assert not skipped.held_against(REFERENCE).success


def test_flaky_tests_are_not_required() -> None:
    one = ran("PASSED t.py::a", summary="1 passed in 0.01s")
    assert one.held_against(replace(REFERENCE, flaky_tests=("t.py::b",))).success


def test_without_names_the_numbers_decide() -> None:
    nameless = replace(REFERENCE, passed_tests=(), tests_passed=3, tests_skipped=1)
    fewer = ran(summary="2 passed in 0.01s").held_against(nameless)
    assert fewer.error == "only 2 tests passed, 3 do with the golden patch"
    more_skipped = ran(summary="3 passed, 2 skipped in 0.01s").held_against(nameless)
    assert more_skipped.error == "2 tests were skipped, 1 are with the golden patch"
    assert ran(summary="4 passed, 1 skipped in 0.01s").held_against(nameless).success


def canary_in(folder: Path, path: str, content: str) -> Canary | None:
    """Added to hidden tests of one new file."""
    feature = Feature(1, folder / "feature1")
    feature.tests.parent.mkdir(exist_ok=True)
    feature.tests.write_bytes(new_file(path, content))
    feature.patch.write_bytes(b"")
    with TreeStore(base_with(folder, {"README": text("x\n")})) as store:
        return add_canary(feature, store)


def new_file(path: str, content: str) -> bytes:
    lines = "".join(f"+{line}\n" for line in content.splitlines())
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{content.count(chr(10))} @@\n{lines}".encode()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("tests/test_a.py", "def test_a():\n    pass\n"),
        ("src/a.test.ts", "import { it } from 'vitest';\nit('a', () => {});\n"),
        ("a/a_test.go", "package a\nfunc TestA(t *testing.T) {}\n"),
        ("tests/a.rs", "#[test]\nfn a() {}\n"),
    ],
)
def test_a_canary_is_added_in_the_language_of_the_tests(tmp_path: Path, path: str, content: str) -> None:
    first, second = (canary_in(tmp_path, path, content) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.name != second.name
    assert first.name.encode() in first.tests
    assert all(b"+" + line.encode() in first.tests for line in content.splitlines())


def test_the_canary_of_a_python_program_comes_before_its_end(tmp_path: Path) -> None:
    main = "import unittest\nclass A(unittest.TestCase):\n    pass\nif __name__ == '__main__':\n    unittest.main()\n"
    canary = canary_in(tmp_path, "test_a.py", main)
    assert canary is not None
    assert canary.tests.index(canary.name.encode()) < canary.tests.index(b"__main__")


@pytest.mark.parametrize("path", ["tests/data.json", "tests/helper.py", "tests/a.rb"])
def test_nothing_is_added_to_what_holds_no_tests(tmp_path: Path, path: str) -> None:
    assert canary_in(tmp_path, path, "x = 1\n") is None


BROKEN = {
    "test_a.py": "import unittest\n\n\nclass A(unittest.TestCase):\n    def test_a(self):\n        self.b(\n"
    "            1)\n\n    def helper(self):\n        pass\n\n\nasync def test_b():\n\tpass\n\n\ndef test_c(): pass\n",
    "a.test.js": "test('test_a', async () => {\n  if (x) {\n    y();\n  }\n});\nit(\"test_b\", function (t) {\n});\n"
    "test('test_c', () => x());\n",
}


@pytest.mark.parametrize("path", BROKEN)
def test_a_canary_lets_the_hidden_tests_fail_at_their_end(tmp_path: Path, path: str) -> None:
    canary = canary_in(tmp_path, path, BROKEN[path])
    assert canary is not None
    assert canary.broken == {"test_a", "test_b"}
    lines = [line[1:].strip() for line in canary.tests.decode().splitlines() if line.startswith("+")]
    places = [number for number, line in enumerate(lines) if "0 == 1" in line]
    assert [lines[place - 1] for place in places] == (
        ["1)", "pass"] if path.endswith(".py") else ["}", 'it("test_b", function (t) {']
    )
    both = ran("FAILED t.py::A::test_a[1] - x", "FAILED t.py::test_b - x", summary="2 failed in 0.01s")
    assert canary.all_failed(both)
    assert canary.failed_tests(both) == {"t.py::A::test_a[1]", "t.py::test_b"}
    one = ran("FAILED t.py::A::test_a - x", "PASSED t.py::test_b", summary="1 failed, 1 passed in 0.01s")
    assert not canary.all_failed(one)


def test_tests_that_cannot_be_parsed_have_a_canary_all_the_same(tmp_path: Path) -> None:
    canary = canary_in(tmp_path, "test_a.py", "def test_a():\n    print 1\n")
    assert canary is not None
    assert not canary.broken


def test_a_canary_is_seen_only_where_it_decided(tmp_path: Path) -> None:
    canary = canary_in(tmp_path, "t.py", "def test_a():\n    pass\n")
    assert canary is not None
    assert canary.was_seen(replace(GREEN, exit_code=1, output=f"FAILED t.py::Test{canary.name}"))
    assert not canary.was_seen(replace(GREEN, output=f"FAILED t.py::Test{canary.name}"))
    assert not canary.was_seen(replace(GREEN, exit_code=1, output="boom"))
    assert not canary.was_seen(replace(GREEN, exit_code=124, timed_out=True, output=canary.name))


def test_lines_that_reach_for_the_test_process_are_named() -> None:
    patch = (
        b"--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -3,2 +3,5 @@\n import os\n+++ b/x.txt\n+os._exit(0)\n x = 1\n+y = 2\n"
        b"--- a/index.js\n+++ b/index.js\n@@ -0,0 +1 @@\n+process.exit(0)\n"
    )
    assert [(one.path, one.line, one.text) for one in suspicious_lines(patch)] == [
        ("pkg/core.py", 5, "os._exit(0)"),
        ("index.js", 1, "process.exit(0)"),
    ]


@pytest.mark.timeout(20)
def test_a_long_line_is_searched_in_little_time() -> None:
    line = "def __eq__(" * 100_000 + " os._exit(0)"
    (found,) = suspicious_lines(new_file("src/a.py", f"{line}\n"))
    assert len(found.text) == 200
