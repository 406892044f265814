"""Attributes in patches: those of protected files are left out, all others stay."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.trees import TreeEntry, TreeStore
from tests.support.eval.realgit import base_with, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

HIDDEN = "pkg/checks/area.py"
BASE = {
    ".gitattributes": "*.bat eol=crlf\npkg/data/* -text\n",
    "pkg/core.py": "one\n",
    "pkg/conftest.py": "one\n",
    "pkg/data/x.txt": "one\n",
    "run.bat": "one\n",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TreeStore]:
    base = base_with(tmp_path, {path: text(content) for path, content in BASE.items()})
    with TreeStore(base) as store:
        yield store


def dropped_files(store: TreeStore, files: Mapping[str, str | bytes | TreeEntry]) -> dict[str, str]:
    """Return which files of a patch that writes these are dropped, and why."""
    entries = {
        path: content.encode() if isinstance(content, str) else content
        for path, content in {**files, "pkg/core.py": "two\n"}.items()
    }
    patch = store.patch_of(store.edit(store.base.tree, entries))
    protected = ProtectedFiles(frozenset({HIDDEN}), base=store.base.paths)
    applied = drop_protected_files(patch, protected, store)
    assert applied.status == "applied"
    for file in applied.dropped:
        before = BASE.get(file.path)
        change = store.changes(applied.tree).get(file.path)
        assert change is None, f"{file.path} is {before!r} again"
    return dict(applied.dropped)


@pytest.mark.parametrize(
    "rules",
    [
        "* working-tree-encoding=UTF-16",
        "*.py eol=crlf",
        "pkg/checks/* ident",
        "**/area.py filter=lfs",
        "[attr]odd text eol=crlf\n*.py odd",
        "* export-ignore",
        "pkg/conftest.py eol=crlf",
        "# harmless\n" * 10 + '"pkg/checks/ar\\145a.py" text',
        "#\0\n* ident",
        "* ident" + " " * 3000 + "#",
        "/*.png binary\n" * 2000,
    ],
)
def test_attributes_of_protected_files(store: TreeStore, rules: str) -> None:
    content = BASE[".gitattributes"] + rules
    dropped = dropped_files(store, {".gitattributes": content})
    assert dropped == {".gitattributes": "git_attributes"}


@pytest.mark.parametrize(
    "rules",
    [
        "/*.png binary",
        "pkg/core.py eol=crlf",
        "* linguist-language=Python",
        "*.py eol=crlf\n*.py !eol",
        "docs/* text",
    ],
)
def test_attributes_of_other_files(store: TreeStore, rules: str) -> None:
    assert not dropped_files(store, {".gitattributes": BASE[".gitattributes"] + rules})
    assert not dropped_files(store, {"pkg/.gitattributes": "core.py eol=crlf"})


def test_attributes_in_folders(store: TreeStore) -> None:
    files = {
        "pkg/.gitattributes": "checks/* ident",
        "pkg/checks/.gitattributes": "* -ident",
        "pkg/data/.gitattributes": "* text",
    }
    assert dropped_files(store, files) == {
        "pkg/.gitattributes": "git_attributes",
        "pkg/checks/.gitattributes": "git_attributes",
    }


def test_files_that_rely_on_each_other(store: TreeStore) -> None:
    """Without the first rule the second, which cancels it, would have an effect."""
    files = {
        ".gitattributes": "pkg/checks/* eol=crlf\npkg/conftest.py ident",
        "pkg/checks/.gitattributes": "* !eol",
    }
    assert ".gitattributes" in dropped_files(store, files)


def test_a_removed_rule(store: TreeStore, tmp_path: Path) -> None:
    base = base_with(
        tmp_path, {".gitattributes": text("*.py eol=crlf\n"), "pkg/core.py": text("one\n")}
    )
    with TreeStore(base) as with_rule:
        dropped = dropped_files(with_rule, {".gitattributes": "*.py eol=lf\n"})
        assert dropped == {".gitattributes": "git_attributes"}


def test_a_link(store: TreeStore) -> None:
    rules = store.edit(store.base.tree, {"rules": b"* ident\n", "link": b"rules"})
    object_id = store.changes(rules)["link"].after
    assert object_id
    files: dict[str, str | TreeEntry] = {
        "pkg/.gitattributes": TreeEntry("120000", object_id.object_id),
        "rules": "* ident\n",
    }
    assert dropped_files(store, files) == {"pkg/.gitattributes": "git_attributes"}


def test_bytes_on_disk(store: TreeStore, tmp_path: Path) -> None:
    """The runner's git writes hidden tests byte for byte as the dataset has them."""
    content = b"x = '$Id$'\n"
    files = {"pkg/.gitattributes": b"checks/* eol=crlf\n", "pkg/core.py": b"two\n"}
    patch = store.patch_of(store.edit(store.base.tree, files))
    tests = store.patch_of(store.edit(store.base.tree, {HIDDEN: content}))
    protected = ProtectedFiles(frozenset({HIDDEN}), base=store.base.paths)
    evaluated = drop_protected_files(patch, protected, store).patch

    def apply(name: str, feature: bytes) -> bytes:
        """Apply a patch and the tests as runners do; return the hidden test on disk."""
        clone = tmp_path / name
        subprocess.run(["git", "init", "-q", clone], check=True)
        (clone / "pkg").mkdir()
        (clone / "pkg/core.py").write_text(BASE["pkg/core.py"])
        for part in (feature, tests):
            subprocess.run(["git", "-C", clone, "apply"], input=part, check=True)
        return (clone / HIDDEN).read_bytes()

    assert apply("as handed in", patch) == content.replace(b"\n", b"\r\n")
    assert apply("as evaluated", evaluated) == content
