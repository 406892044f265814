"""Patches that cost git or the harness more than they may: each is its agent's failure, soon, and no error of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from cooperbench.eval import trees
from cooperbench.eval.test_side import TestSide, judged_patch
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.git import GitError
from tests.eval.realgit import base_with, text
from tests.tiny import text_patch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cooperbench.eval.trees import TreeEntry

SIDE = TestSide(frozenset({"tests/test_x.py"}))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TreeStore]:
    with TreeStore(base_with(tmp_path, {"pkg/core.py": text("one\n")})) as store:
        yield store


def test_a_file_that_no_diff_can_be_made_of(store: TreeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = store.edited(store.base.tree, {"lines.txt": b"\n" * 60_000_000})
    monkeypatch.setattr(store, "apply", lambda patch: Applied("applied", tree))
    work = judged_patch(b"of a few kilobytes", SIDE, store)
    assert work.status == "failed"
    assert "emory" in work.error


@pytest.mark.parametrize("depth", [2100, 40_000])
def test_a_path_that_no_file_system_takes(store: TreeStore, depth: int) -> None:
    work = judged_patch(text_patch("a/" * depth + "x.py", None, ["x\n"]).encode(), SIDE, store)
    assert (work.status, work.tree) == ("failed", "")


def test_a_merge_that_git_does_not_survive(store: TreeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (store.edited(store.base.tree, {"pkg/core.py": one}) for one in (b"two\n", b"three\n"))

    def fail(*_: object) -> None:
        raise GitError("merge-tree", -9, b"")

    monkeypatch.setattr(trees, "_parse_merge", fail)
    merge = store.merge([Applied("applied", ours), Applied("applied", theirs)])
    assert (merge.status, merge.strategy) == ("conflict", "none")
    assert "more memory" in merge.detail


def test_a_git_that_fails_by_itself_is_nobodys_fault(
    store: TreeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tree: str, entries: Mapping[str, TreeEntry | bytes | None]) -> str:
        raise GitError("update-index", 128, b"No space left on device")

    monkeypatch.setattr(store, "edited", full)
    with pytest.raises(GitError, match="No space"):
        judged_patch(text_patch("tests/a.py", None, ["x\n"]).encode(), SIDE, store)


def test_many_files_that_look_like_tests(store: TreeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Mock(side_effect=store.imports_of)
    monkeypatch.setattr(store, "imports_of", search)
    files = [text_patch(f"pkg/test_{number}.py", None, ["x\n"]) for number in range(200)]
    used = text_patch("pkg/use.py", None, ["import pkg.test_1\n"])
    work = judged_patch("".join([*files, used]).encode(), SIDE, store)
    assert work.status == "applied"
    assert len(work.dropped) == len(files) - 1, "what looks like tests and is imported is no test"
    assert search.call_count < 50, "each is a search in the whole tree"


def test_a_deep_folder_and_many_imports(store: TreeStore) -> None:
    deep = text_patch("a/" * 1500 + "test_x.py", None, ["x\n"])
    imports = text_patch("pkg/use.py", None, ["import test_x\n"] * 20_000)
    assert judged_patch((deep + imports).encode(), SIDE, store).status == "applied"


@pytest.mark.parametrize("line", [f"[{'.'.join('a' * 2000)}]\n", f"{'.'.join('a' * 2000)} = 1\n"])
def test_tables_deeper_than_python_recurses(store: TreeStore, line: str) -> None:
    files = {"pyproject.toml": [line], "pkg/more.py": ["x\n"]}
    patch = "".join(text_patch(path, None, lines) for path, lines in files.items())
    work = judged_patch(patch.encode(), SIDE, store)
    assert work.status == "applied"
    assert [file.path for file in work.dropped] == ["pyproject.toml"]
