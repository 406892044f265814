"""Confirmation suites as patches: of which tests they are made, and in which form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from cooperbench.eval.canaries import Suite, new_suites
from cooperbench.eval.protected_files import hidden_tests_patch
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Feature, Task
from tests.support.eval.lab import new_file
from tests.support.eval.realgit import RealRepo, base_with, file_in, text

CONTENTS = {
    "tests/test_a.py": "def test_a():\n    assert f(3) == 617\n",
    "a.test.js": "test('a', () => {\n  expect(f(3)).toBe(617);\n});\n",
    "a.test.ts": "it('a', () => {\n  assert.strictEqual(f(3), 617);\n});\n",
    "a_test.go": (
        "package a\n\nfunc TestA(t *testing.T) {\n\tif F(3) != 617 {\n\t\tt.Fatal()\n\t}\n}\n"
    ),
    "tests/a.rs": "#[test]\nfn a() {\n    assert_eq!(f(3), 617);\n}\n",
    "a.typ": "--- a ---\n#test(f(3), 617)\n",
}
NO_CHECKS = {
    "tests/test_a.py": "def test_a():\n    pass\n",
    "src/a.test.ts": "import { it } from 'vitest';\nit('a', () => {});\n",
    "a/a_test.go": "package a\nfunc TestA(t *testing.T) {}\n",
    "tests/a.rs": "#[test]\nfn a() {}\n",
    "a.typ": "--- a ---\n#f()\n",
}


@contextmanager
def feature_with(
    folder: Path, tests: bytes, base: dict[str, str] | None = None
) -> Iterator[tuple[Feature, TreeStore]]:
    feature = Task("r", 1, folder, (1,)).feature(1)
    feature.path.mkdir(exist_ok=True)
    feature.tests.write_bytes(tests)
    feature.patch.write_bytes(b"")
    files = {path: text(content) for path, content in (base or {"README": "x\n"}).items()}
    with TreeStore(base_with(folder, files)) as store:
        yield feature, store


def content_in(store: TreeStore, suite: Suite, path: str) -> str:
    return (file_in(store, store.apply(suite.tests).tree, path) or b"").decode()


@pytest.mark.parametrize(("path", "content"), CONTENTS.items())
def test_every_language_has_copies_changed_tests_and_a_new_test(
    tmp_path: Path, path: str, content: str
) -> None:
    with feature_with(tmp_path, new_file(path, content)) as (feature, store):
        suites = list(new_suites(feature, store, Random(1)))
        kinds = [first.kind for first, _ in suites]
        assert list(dict.fromkeys(kinds)) == ["copies", "in_place", "added"]
        first, second = suites[0]
        assert len(first.originals) == len(second.originals) == 1
        assert first.tests_total == first.tests_with_decoys == 1
        for suite in (first, second):
            assert len(suite.decoys) > 4
            assert content_in(store, suite, path).count("617") == 1
        in_place = [content_in(store, suite, path) for suite in suites[-2]]
        assert sorted(new == content for new in in_place) == [False, True]


@pytest.mark.parametrize(("path", "content"), NO_CHECKS.items())
def test_where_nothing_can_be_changed_a_test_is_added(
    tmp_path: Path, path: str, content: str
) -> None:
    with feature_with(tmp_path, new_file(path, content)) as (feature, store):
        ((added, _),) = new_suites(feature, store, Random(1))
        assert (added.kind, added.decoys) == ("added", ())
        new = content_in(store, added, path)
        assert len(new) > len(content)
        assert all(line in new for line in content.splitlines())


@pytest.mark.parametrize("path", ["tests/data.json", "tests/helper.py", "tests/a.rb", "a/b.go"])
def test_files_without_tests_have_no_suites(tmp_path: Path, path: str) -> None:
    with feature_with(tmp_path, new_file(path, "x = 1\n")) as (feature, store):
        assert list(new_suites(feature, store, Random(1))) == []


def test_only_tests_that_the_patch_adds_are_changed(tmp_path: Path) -> None:
    """Agents know what the others expect."""
    base = "def test_a():\n    assert f(1) == 345\n\n\n"
    real = RealRepo(tmp_path / "real")
    first = real.commit({"test_a.py": text(base)})
    second = real.commit({"test_a.py": text(f"{base}def test_b():\n    assert f(2) == 2\n")}, first)
    patch = real.diff(first, second)
    with feature_with(tmp_path, patch, {"test_a.py": base}) as (feature, store):
        suite = next(new_suites(feature, store, Random(1)))[0]
        new = content_in(store, suite, "test_a.py")
    assert new.count("def test_a():\n") == 1
    assert new.count("345") == 1
    assert {name.partition("_b")[0] for name in (*suite.originals, *suite.decoys)} == {"test"}


@pytest.mark.parametrize("path", CONTENTS)
def test_patches_of_real_runs_and_of_suites_have_the_same_form(tmp_path: Path, path: str) -> None:
    """Otherwise code under test could tell them apart."""

    def form(patch: bytes) -> list[str]:
        lines = patch.decode().partition("@@")[0].splitlines()
        return [re.sub(r"\b[0-9a-f]{40}\b", "ID", line) for line in lines]

    with feature_with(tmp_path, new_file(path, CONTENTS[path])) as (feature, store):
        real = hidden_tests_patch(feature, store)
        assert form(real) != form(feature.tests.read_bytes())
        for suites in new_suites(feature, store, Random(1)):
            assert [form(suite.tests) for suite in suites] == [form(real)] * 2
        assert store.apply(real).tree == store.apply(feature.tests.read_bytes()).tree


def test_hidden_tests_that_do_not_apply_stay_as_they_are(tmp_path: Path) -> None:
    broken = new_file("test_a.py", "x\n").replace(b"new file mode 100644\n", b"")
    with feature_with(tmp_path, broken, {"test_a.py": "y\n"}) as (feature, store):
        assert hidden_tests_patch(feature, store) == broken
        assert list(new_suites(feature, store, Random(1))) == []
