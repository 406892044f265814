"""`cooperbench author` on repositories that lack something: a line each, with what to do."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from tests.support.author.repositories import (
    GO_BASE,
    PYTHON_BASE,
    Repository,
    mixed_history,
    python_feature,
    python_repository,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def author(*argv: str) -> int:
    return main(["author", *argv])


def init(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """The exit status of init, and what it has found out."""
    capsys.readouterr()
    status = author("init", "repo", "--json", *options)
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("action", ["init", "mine"])
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.py": "x = 1\n"}, "it has no tests that pytest, unittest"),
        ({"package.json": '{"scripts": {"test": "ava"}}', "test/a.test.js": ""}, "run with ava"),
        ({f"go/{name}": text for name, text in GO_BASE.items()}, "--path go"),
    ],
    ids=["no tests", "framework", "monorepo"],
)
def test_refused_repositories_leave_nothing(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    action: str,
    files: dict[str, str],
    message: str,
) -> None:
    Repository(folder / "repo").commit("Start", files)
    assert author(action, "repo") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["repo"]


def test_tests_that_need_a_network(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = PYTHON_BASE["tests/test_area.py"] + _NEEDS_NETWORK
    Repository(folder / "repo").commit("Start", {**PYTHON_BASE, "tests/test_area.py": test})
    status, content = init(capsys, "--eval-network", "none")
    assert status == 1
    assert content["tests"]["failed_tests"] == ["tests.test_area.Remote.test_address"]
    assert content["tests"]["passed"] == 1


_NEEDS_NETWORK = """

class Remote(unittest.TestCase):
    def test_address(self):
        import socket

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("192.0.2.1", 53))
"""


def test_a_setup_that_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The task stays, because its setup.sh is what has to be edited."""
    pyproject = '[build-system]\nrequires = []\nbuild-backend = "none"\n[project]\nname = "a"\n'
    files = {**PYTHON_BASE, "pyproject.toml": pyproject, "tests/conftest.py": ""}
    Repository(folder / "repo").commit("Start", files)
    assert author("init", "repo") == 1
    output = capsys.readouterr().out
    assert "  problem    setup.sh failed with exit code" in output
    assert "  remedy     edit setup.sh in the task's folder" in output
    assert (folder / "dataset/repo_task/task1/setup.sh").is_file()


def test_uncommitted_changes_are_not_in_the_task(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = python_repository(folder / "repo")
    (repository.path / "shapes/area.py").write_text("broken(\n")
    status, content = init(capsys)
    assert status == 0
    (note,) = content["notes"]
    assert "uncommitted changes" in note


def test_commits_that_a_shallow_clone_lacks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = mixed_history(folder / "full")
    first = full.git("rev-list", "--max-parents=0", "HEAD")
    argv = ["git", "clone", "-q", "--depth", "2", f"file://{full.path}", "repo"]
    subprocess.run(argv, check=True)
    assert author("init", "repo", "--no-run") == 0
    for commit in (first, "HEAD~1"):
        capsys.readouterr()
        assert author("add", "repo", "--from-commit", commit) == 2
        assert "git fetch --unshallow" in capsys.readouterr().err


def test_features_that_change_submodules_or_lfs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = python_repository(folder / "repo")
    commit = repository.git("rev-parse", "HEAD")
    feature = python_feature("tower", "size", "3")
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12\n"
    repository.branch("stored", "Add data", {**feature, "data.bin": pointer})
    repository.git("checkout", "-q", "-b", "linked")
    repository.commit("Add towers", feature)
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},vendored")
    repository.git("commit", "-q", "--amend", "-m", "Add a submodule")
    repository.git("checkout", "-q", "-f", "main")
    assert author("init", "repo", "--no-run") == 0
    capsys.readouterr()
    assert author("add", "repo", "--branch", "linked") == 2
    assert "it changes the submodule vendored" in capsys.readouterr().err
    assert author("add", "repo", "--branch", "stored") == 2
    assert "data.bin, which Git LFS stores outside the repository" in capsys.readouterr().err


def test_a_rewritten_history(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = mixed_history(folder / "repo")
    assert author("mine", "repo", "--max", "1") == 0
    old = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "-q", "--orphan", "new")
    repository.git("commit", "-q", "-m", "Start again")
    repository.git("branch", "-q", "-D", "main")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "-q", "--prune=now")
    capsys.readouterr()
    author("mine", "repo", "--max", "1")
    note = "does not follow the base commit of repo_task/task1: was the history rewritten?"
    assert note in capsys.readouterr().err
    assert author("add", "repo", "--from-commit", old) == 2
    assert "was the history rewritten?" in capsys.readouterr().err
    assert author("add", "repo", "--branch", "new") == 2
    assert "was the history rewritten?" in capsys.readouterr().err
