"""Patches that cost git or the harness more than they may: each is its agent's failure, soon, and no error of ours."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.bounded import LIMIT_ATTRIBUTE
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.test_config import compare_configs, restore_test_configs
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.git import GitError
from tests.support.eval.realgit import base_with, text
from tests.support.hostile import hostile_texts
from tests.support.tiny import text_patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SIDE = ProtectedFiles(frozenset({"tests/test_x.py"}))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TreeStore]:
    with TreeStore(base_with(tmp_path, {"pkg/core.py": text("one\n")})) as store:
        yield store


@pytest.fixture
def before_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets lines of shell run before each command of git, which is in `$*`."""
    folder, real = tmp_path / "bin", shutil.which("git")
    folder.mkdir()

    def before_git(lines: str) -> None:
        (folder / "git").write_text(f'#!/bin/sh\n{lines}\nexec {real} "$@"\n')
        (folder / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return before_git


def test_a_small_patch_of_a_file_that_no_diff_can_be_made_of(
    store: TreeStore, tmp_path: Path
) -> None:
    def git(*words: str) -> bytes:
        return subprocess.run(
            ["git", *words], cwd=tmp_path / "large", capture_output=True, check=True
        ).stdout

    (tmp_path / "large").mkdir()
    git("init")
    (tmp_path / "large/.git/info/attributes").write_text("* binary\n")
    (tmp_path / "large/lines.txt").write_bytes(b"\n" * 60_000_000)
    git("add", ".")
    patch = git("diff", "--cached", "--binary")
    assert len(patch) < 1_000_000
    work = drop_protected_files(patch, SIDE, store)
    assert work.status == "failed"
    assert "emory" in work.error


@pytest.mark.parametrize("depth", [2100, 10_000])
def test_a_path_that_no_file_system_takes(store: TreeStore, depth: int) -> None:
    work = drop_protected_files(
        text_patch("a/" * depth + "x.py", None, ["x\n"]).encode(), SIDE, store
    )
    assert (work.status, work.tree) == ("failed", "")


def test_a_merge_that_git_does_not_survive(
    store: TreeStore, before_git: Callable[[str], None]
) -> None:
    ours, theirs = (
        store.edit(store.base.tree, {"pkg/core.py": one}) for one in (b"two\n", b"three\n")
    )
    before_git('case "$*" in *merge-tree*) kill -9 $$;; esac')
    merge = store.merge([Applied("applied", ours), Applied("applied", theirs)])
    assert (merge.status, merge.strategy) == ("conflict", "none")
    assert "more memory" in merge.detail


def test_a_git_that_fails_by_itself_is_nobodys_fault(
    store: TreeStore, before_git: Callable[[str], None]
) -> None:
    before_git('case "$*" in *update-index*) echo No space left on device >&2; exit 128;; esac')
    with pytest.raises(GitError, match="No space"):
        drop_protected_files(text_patch("tests/a.py", None, ["x\n"]).encode(), SIDE, store)


def test_many_files_that_look_like_tests(
    store: TreeStore, tmp_path: Path, before_git: Callable[[str], None]
) -> None:
    before_git(f'case "$*" in *grep*) echo >>{tmp_path}/searches;; esac')
    files = [text_patch(f"pkg/test_{number}.py", None, ["x\n"]) for number in range(200)]
    used = text_patch("pkg/use.py", None, ["import pkg.test_1\n"])
    work = drop_protected_files("".join([*files, used]).encode(), SIDE, store)
    assert work.status == "applied"
    assert len(work.dropped) == len(files) - 1, "what looks like tests and is imported is no test"
    searches = (tmp_path / "searches").read_text()
    assert 1 <= len(searches) < 50, "each is a search in the whole tree"


def test_a_deep_folder_and_many_imports(store: TreeStore) -> None:
    deep = text_patch("a/" * 1500 + "test_x.py", None, ["x\n"])
    imports = text_patch("pkg/use.py", None, ["import test_x\n"] * 20_000)
    assert drop_protected_files((deep + imports).encode(), SIDE, store).status == "applied"


@pytest.mark.parametrize("form", ["[{}]\n", "{} = 1\n"])
def test_tables_deeper_than_python_recurses(store: TreeStore, form: str) -> None:
    files = {"pyproject.toml": [form.format(".".join("a" * 2000))], "pkg/more.py": ["x\n"]}
    patch = "".join(text_patch(path, None, lines) for path, lines in files.items())
    work = drop_protected_files(patch.encode(), SIDE, store)
    assert work.status == "applied"
    assert [file.path for file in work.dropped] == ["pyproject.toml"]


@pytest.mark.parametrize("name", ["pyproject.toml", "setup.cfg", "Cargo.toml", "package.json"])
def test_configuration_that_takes_long_to_read(store: TreeStore, name: str) -> None:
    """One line of brackets once kept a regular expression busy for hours, deaf to every signal."""
    hostile = hostile_texts(200_000)
    files = {f"{index}/{name}": f"[a]\n{hostile[key]}\n" for index, key in enumerate(hostile)}
    files |= {name: "[" * 200_000, "pkg/more.py": "x\n"}
    patch = "".join(
        text_patch(path, None, [f"{line}\n" for line in content.split("\n")])
        for path, content in files.items()
    )
    started = time.monotonic()
    work = drop_protected_files(patch.encode(), SIDE, store)
    assert time.monotonic() - started < 60
    assert work.status == "applied"
    assert name in {file.path for file in work.dropped}
    assert b"pkg/more.py" in work.patch


def test_configuration_that_cannot_be_read_in_time(
    store: TreeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is the kernel's: whatever parser needs too long, the file is dropped."""
    monkeypatch.setattr(restore_test_configs, LIMIT_ATTRIBUTE, 1, raising=False)
    monkeypatch.setattr(compare_configs, LIMIT_ATTRIBUTE, 1, raising=False)
    lines = [f"a{number} = {number}\n" for number in range(150_000)]
    patches = [text_patch(f"{folder}/pyproject.toml", None, lines) for folder in "abcdef"]
    work = drop_protected_files(
        "".join([*patches, text_patch("pkg/more.py", None, ["x\n"])]).encode(), SIDE, store
    )
    assert work.status == "applied"
    assert [file.reason for file in work.dropped] == ["test_config"] * len(patches)
    assert list(store.changes(work.tree)) == ["pkg/more.py"]


def test_code_that_takes_long_to_search(store: TreeStore) -> None:
    """A new module with the name of a test is read to see whether it has tests."""
    use = text_patch("pkg/use.py", None, ["import importlib\n", 'name = "pkg.test_x"\n'])
    blank = text_patch("pkg/test_x.py", None, ["\n"] * 200_000)
    started = time.monotonic()
    assert drop_protected_files((blank + use).encode(), SIDE, store).status == "applied"
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("text", ["import_module\n", "importlib.import_module("])
def test_many_uses_of_a_name_that_is_searched_for(store: TreeStore, text: str) -> None:
    """With several patterns git once needed time that grows with the square of the size."""
    size = 12_000_000
    tree = store.edit(
        store.base.tree,
        {"pkg/test_x.py": b"x\n", "pkg/use.py": text.encode() * (size // len(text))},
    )
    patch = store.patch_of(tree)
    started = time.process_time()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    work = drop_protected_files(patch, SIDE, store)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert work.status == "applied"
    children = used.ru_utime + used.ru_stime - usage.ru_utime - usage.ru_stime
    assert time.process_time() - started + children < 30
