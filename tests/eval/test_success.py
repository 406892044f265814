"""What makes a green run a success: the expected tests, the canary, the size, and what is listed as evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cooperbench.eval.canary import add_canary
from cooperbench.eval.evidence import suspicious_lines
from cooperbench.eval.reference import Reference
from cooperbench.eval.sizes import MOST_PATCH_BYTES, MOST_UNPACKED_BYTES, too_large
from cooperbench.eval.testrun import TestRun, judge
from cooperbench.eval.trees import BaseFile
from cooperbench.sandbox.contract import CommandResult

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


class Base:
    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = {path: BaseFile("100644", data) for path, data in files.items()}

    def listing(self) -> dict[str, str]:
        return {path: file.mode for path, file in self._files.items()}

    def read(self, paths: object) -> dict[str, BaseFile]:
        assert isinstance(paths, list | tuple)
        return {path: self._files[path] for path in paths if path in self._files}


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
def test_a_canary_is_added_in_the_language_of_the_tests(path: str, content: str) -> None:
    first, second = (add_canary(new_file(path, content), Base({})) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.name != second.name
    assert first.name.encode() in first.tests
    assert all(b"+" + line.encode() in first.tests for line in content.splitlines())


def test_the_canary_of_a_python_program_comes_before_its_end() -> None:
    main = "import unittest\nclass A(unittest.TestCase):\n    pass\nif __name__ == '__main__':\n    unittest.main()\n"
    canary = add_canary(new_file("test_a.py", main), Base({}))
    assert canary is not None
    assert canary.tests.index(canary.name.encode()) < canary.tests.index(b"__main__")


@pytest.mark.parametrize("path", ["tests/data.json", "tests/helper.py", "tests/a.rb"])
def test_nothing_is_added_to_what_holds_no_tests(path: str) -> None:
    assert add_canary(new_file(path, "x = 1\n"), Base({})) is None


def test_a_canary_is_seen_only_where_it_decided() -> None:
    canary = add_canary(new_file("t.py", "def test_a():\n    pass\n"), Base({}))
    assert canary is not None
    assert canary.was_seen(replace(GREEN, exit_code=1, output=f"FAILED t.py::Test{canary.name}"))
    assert not canary.was_seen(replace(GREEN, output=f"FAILED t.py::Test{canary.name}"))
    assert not canary.was_seen(replace(GREEN, exit_code=1, output="boom"))
    assert not canary.was_seen(replace(GREEN, exit_code=124, timed_out=True, output=canary.name))


def test_a_patch_is_as_large_as_what_it_unpacks_to() -> None:
    assert too_large(b"diff --git a/x b/x\n+1\n") == ""
    assert "bytes" in too_large(b"x" * (MOST_PATCH_BYTES + 1))
    assert "unpacks" in too_large(b"GIT binary patch\nliteral %d\nzcmb\n" % (MOST_UNPACKED_BYTES + 1))


def test_a_delta_is_as_large_as_its_target() -> None:
    # 100 times a gigabyte of the same base, in ten bytes of numbers
    import base64
    import zlib

    delta = zlib.compress(bytes([0x01, 0x80, 0x80, 0x80, 0x80, 0x04, 0x90, 0x01]))
    delta += bytes(-len(delta) % 4)
    assert "unpacks" in too_large(b"GIT binary patch\ndelta 8\nH" + base64.b85encode(delta) + b"\n")


def test_lines_that_reach_for_the_test_process_are_named() -> None:
    patch = (
        b"--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -3,2 +3,4 @@\n import os\n+os._exit(0)\n x = 1\n+y = 2\n"
        b"--- a/index.js\n+++ b/index.js\n@@ -0,0 +1 @@\n+process.exit(0)\n"
    )
    assert [(one.path, one.line, one.text) for one in suspicious_lines(patch)] == [
        ("pkg/core.py", 4, "os._exit(0)"),
        ("index.js", 1, "process.exit(0)"),
    ]
