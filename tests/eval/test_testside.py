"""What belongs to the tests by its path."""

from __future__ import annotations

import pytest

from cooperbench.eval.testside import TestSide

BASE = ("pkg/__init__.py", "pkg/core.py", "src/lib/__init__.py", "setup.py", "tools/build.py", "json.py")
SIDE = TestSide(
    frozenset({"tests/test_x.py"}), frozenset({"tests/golden_helper.py"}), BASE, lambda: frozenset({"attr"})
)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("tests/helper.py", "test_file"),
        ("tests/__init__.py", "test_file"),
        ("pkg/tests/data.json", "test_file"),
        ("pkg/test_more.py", "test_file"),
        ("pkg/more_test.py", "test_file"),
        ("src/__mocks__/fs.js", "test_file"),
        ("src/a.test.tsx", "test_file"),
        ("src/a.spec.mjs", "test_file"),
        ("src/__snapshots__/a.snap", "test_file"),
        ("x/init_test.go", "test_file"),
        ("x/testdata/golden.txt", "test_file"),
        ("Tests/helper.py", "test_file"),
        ("tests/api.rs", "test_file"),
        ("pkg/__pycache__/core.cpython-311.pyc", "compiled_file"),
        ("pkg/_speed.so", "compiled_file"),
        ("build/addon.node", "compiled_file"),
        ("attr/__init__.py", "shadows_module"),
        ("attr/_make.py", "shadows_module"),
        ("src/attr.py", "shadows_module"),
        ("decimal.py", "shadows_module"),
        ("tools/decimal.py", "shadows_module"),
        ("decimal.pyi", "shadows_module"),
    ],
)
def test_it_does_not_come_from_an_agent(path: str, reason: str) -> None:
    assert SIDE.reason_to_drop(path) == reason


@pytest.mark.parametrize(
    "path",
    [
        "pkg/core.py",
        "pkg/decimal.py",
        "pkg/testing.py",
        "pkg/contest.py",
        "src/lib/attr.py",
        "src/newlib/__init__.py",
        "newtool.py",
        "json.py",
        "attr.js",
        "docs/tests.md",
        "src/latest/a.go",
        "src/parser/tests.rs",
        "src/parser/tests/mod.rs",
        "tests/golden_helper.py",
    ],
)
def test_it_is_an_agents_work(path: str) -> None:
    assert SIDE.reason_to_drop(path) is None


def test_the_image_is_asked_only_where_a_module_is_new_at_an_import_root() -> None:
    def asked() -> frozenset[str]:
        raise AssertionError("asked")

    side = TestSide(frozenset(), frozenset(), BASE, asked)
    assert side.reason_to_drop("pkg/new.py") is None
    assert side.reason_to_drop("src/lib/sub/new.py") is None
    with pytest.raises(AssertionError):
        side.reason_to_drop("new.py")
