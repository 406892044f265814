from __future__ import annotations

import pytest

from cooperbench.author.mining.culprits import choose_culprit, short_test_name


def patch_of(function: str) -> bytes:
    return (
        "diff --git a/tests/test_a.py b/tests/test_a.py\n"
        "--- a/tests/test_a.py\n+++ b/tests/test_a.py\n"
        f"@@ -1,3 +1,3 @@\n def {function}():\n-    assert area(1) == 1\n+    assert area(1) == 2\n \n"
    ).encode()


def test_who_changes_the_failing_test_is_left_out() -> None:
    tests = {1: patch_of("test_own"), 2: patch_of("test_area"), 3: patch_of("test_x")}
    failed = {1: {"tests/test_a.py::test_area"}, 3: {"tests/test_a.py::test_area"}}
    assert choose_culprit(failed, tests) == 2


def test_without_a_suspect_the_last_that_fails_is_left_out() -> None:
    tests = {1: patch_of("test_own"), 2: patch_of("test_other"), 3: b"not a diff"}
    assert choose_culprit({1: {"test_else"}, 2: set()}, tests) == 2


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("tests/test_a.py::TestA::test_b[1-2.0]", "test_b"),
        ("tests.test_a.A.test_b", "test_b"),
        ("TestB", "TestB"),
        ("tests::works", "works"),
    ],
)
def test_short_names(test: str, name: str) -> None:
    assert short_test_name(test) == name
