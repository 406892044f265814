"""Changes are split by the rules of evaluations, and nothing of a repository is run for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.author.split import is_release_notes, split_branch, split_commit
from cooperbench.errors import UserError
from tests.support.author.repositories import Repository, python_repository

if TYPE_CHECKING:
    from pathlib import Path


def test_a_commit_is_split_into_feature_and_tests(tmp_path: Path) -> None:
    repository = python_repository(tmp_path / "repo")
    patches = split_commit(repository.path, "cube")
    assert patches.feature_paths == ("shapes/cube.py",)
    assert patches.test_paths == ("tests/test_cube.py",)
    assert patches.left_out == ("CHANGELOG.md",)
    assert b"size ** 3" in patches.feature_patch
    assert b"unittest" not in patches.feature_patch
    assert b"size ** 3" not in patches.tests_patch
    assert not patches.problem


def test_a_merge_commit_is_its_change_to_the_first_parent(tmp_path: Path) -> None:
    repository = python_repository(tmp_path / "repo")
    repository.commit("Other work", {"shapes/other.py": "x = 1\n"})
    repository.git("merge", "-q", "--no-ff", "-m", "Merge cube", "cube")
    patches = split_commit(repository.path, "HEAD")
    assert patches.feature_paths == ("shapes/cube.py",)
    # Commits of a branch are one feature, without what the main branch did since.
    assert split_branch(repository.path, "line", "main").feature_paths == ("shapes/line.py",)


def test_split_of_pytest_files(
    tmp_path: Path,
) -> None:
    repository = python_repository(tmp_path / "repo")
    files: dict[str, str | None] = {
        "pyproject.toml": "[project]\nname = 'shapes'\n[tool.pytest.ini_options]\naddopts = '-q'\n",
        "conftest.py": "",
        "shapes/area.py": None,
    }
    repository.commit("Configure", files)
    patches = split_commit(repository.path, "HEAD")
    assert patches.feature_paths == ("pyproject.toml", "shapes/area.py")
    assert patches.test_paths == ("conftest.py",)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"shapes/area.py": "x = 1\n"}, "it changes no tests"),
        ({"tests/test_x.py": "x = 1\n"}, "it changes only tests"),
        ({"CHANGELOG.md": "New\n"}, "it changes nothing but release notes"),
    ],
)
def test_what_is_not_a_feature_says_why(
    tmp_path: Path, files: dict[str, str | None], problem: str
) -> None:
    repository = python_repository(tmp_path / "repo")
    repository.commit("Change", files)
    assert split_commit(repository.path, "HEAD").problem == problem


def test_bad_input_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    repository = python_repository(tmp_path / "repo")
    with pytest.raises(UserError, match="no parent"):
        split_commit(repository.path, "main")
    with pytest.raises(UserError, match="was the history rewritten"):
        split_commit(repository.path, "1234567")
    with pytest.raises(UserError, match="--path"):
        split_commit(repository.path / "shapes", "cube")
    shallow = tmp_path / "shallow"
    repository.git("checkout", "-q", "cube")
    repository.git("clone", "-q", "--depth=1", f"file://{repository.path}", str(shallow))
    with pytest.raises(UserError, match="--unshallow"):
        split_commit(shallow, "HEAD")


def test_submodules_and_pointers_of_lfs_are_rejected(tmp_path: Path) -> None:
    repository = python_repository(tmp_path / "repo")
    repository.commit(
        "Large", {"data.bin": "version https://git-lfs.github.com/spec/v1\noid sha256:1\n"}
    )
    with pytest.raises(UserError, match="Git LFS"):
        split_commit(repository.path, "HEAD")
    commit = repository.git("rev-parse", "HEAD")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},vendor")
    repository.git("commit", "-q", "-m", "Submodule")
    with pytest.raises(UserError, match="submodule vendor"):
        split_commit(repository.path, "HEAD")


def test_programs_that_a_repository_configures_do_not_run(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repo")
    witness = tmp_path / "witness"
    repository.commit("Start", {".gitattributes": "*.py filter=x diff=x\n", "a.py": "x = 1\n"})
    for name in ("filter.x.clean", "filter.x.smudge", "diff.x.textconv", "diff.x.command"):
        repository.git("config", name, f"touch {witness}; cat")
    repository.git("config", "core.fsmonitor", f"touch {witness}")
    repository.git("-c", "core.fsmonitor=false", "rm", "-q", "--cached", "a.py")
    repository.git("-c", "core.fsmonitor=false", "commit", "-q", "-m", "Remove")
    witness.unlink(missing_ok=True)
    split_commit(repository.path, "HEAD")
    assert not witness.exists()


@pytest.mark.parametrize("path", ["CHANGES.rst", "docs/changelog.md", "newsfragments/1.bugfix.rst"])
def test_release_notes(path: str) -> None:
    assert is_release_notes(path)


@pytest.mark.parametrize("path", ["changes/apply.py", "src/history.py", "docs/releasing.md"])
def test_code_is_not_taken_for_release_notes(path: str) -> None:
    assert not is_release_notes(path)
