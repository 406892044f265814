"""What a task cannot contain: a note for each."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from cooperbench.author.repository import describe_limits, find_version
from tests.support.author.repositories import Repository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "repo")
    repository.commit("Start", {"a.py": "x = 1\n"})
    return repository


def notes_of(repository: Repository) -> str:
    notes = describe_limits(repository.path, "HEAD")
    assert all("\n" not in note for note in notes)
    return " | ".join(notes)


def test_a_clean_clone_has_no_notes(repository: Repository) -> None:
    assert notes_of(repository) == ""


def test_uncommitted_changes(repository: Repository) -> None:
    (repository.path / "a.py").write_text("x = 2\n")
    assert "has uncommitted changes, which are not in the task" in notes_of(repository)


def test_staged_changes(repository: Repository) -> None:
    (repository.path / "b.py").write_text("x = 2\n")
    repository.git("add", "b.py")
    assert "has uncommitted changes" in notes_of(repository)


def test_a_removed_file(repository: Repository) -> None:
    (repository.path / "a.py").unlink()
    assert "has uncommitted changes" in notes_of(repository)


def test_a_file_with_another_time_is_not_changed(repository: Repository) -> None:
    os.utime(repository.path / "a.py", (1, 1))
    assert notes_of(repository) == ""


def test_a_shallow_clone(repository: Repository, tmp_path: Path) -> None:
    repository.commit("More", {"a.py": "x = 2\n"})
    source, clone = f"file://{repository.path}", tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth", "1", source, clone], check=True)
    (note,) = describe_limits(clone, "HEAD")
    assert "is a shallow clone" in note
    assert "git fetch --unshallow" in note


def test_a_submodule(repository: Repository) -> None:
    commit = repository.git("rev-parse", "HEAD")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},vendored")
    repository.git("commit", "-q", "-m", "Add a submodule")
    assert "the submodule vendored is empty in the task" in notes_of(repository)


def test_files_of_lfs(repository: Repository) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12\n"
    attributes = "*.bin -text\n"
    repository.commit("Add data", {".gitattributes": attributes, "data.bin": pointer})
    attributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
    repository.commit("Use LFS", {".gitattributes": attributes})
    assert "only pointers for 1 file of Git LFS (data.bin)" in notes_of(repository)


def test_the_version_is_that_of_the_newest_tag(repository: Repository) -> None:
    assert find_version(repository.path, "HEAD") == ""
    repository.git("tag", "v1.2.3")
    repository.commit("More", {"a.py": "x = 2\n"})
    assert find_version(repository.path, "HEAD") == "1.2.3"
