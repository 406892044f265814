"""`cooperbench author mine`: from a history to tasks that run, in all languages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from tests.support.author.repositories import (
    GO_BASE,
    JAVASCRIPT_BASE,
    PYTHON_BASE,
    RUST_BASE,
    Repository,
    go_feature,
    javascript_feature,
    mixed_history,
    python_feature,
    rust_features,
)
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mine(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    main(["author", "mine", "repo", "--name", "shapes", "--json", *options])
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def run_agent(folder: Path, agent: str) -> dict[str, Any]:
    """The summary of a run with an agent on all pairs."""
    argv = ["run", "-n", agent, "-a", agent, "--backend", "local", "--setting", "solo"]
    main([*argv, "--dataset-dir", "dataset"])
    content: dict[str, Any] = json.loads((folder / "logs" / agent / "summary.json").read_text())
    return content


def successes(summary: dict[str, Any]) -> tuple[int, int]:
    """How many pairs of a run succeeded, and of how many."""
    rate = summary["settings"]["solo"]["rates"]["overall_success"]
    return rate["passed"], rate["of"]


def test_a_history_becomes_a_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = mixed_history(folder / "repo")
    content = mine(capsys)
    (task,) = content["tasks"]
    first = repository.git("rev-list", "--max-parents=0", "HEAD")
    subjects = [repository.git("show", "-s", "--format=%s", commit) for commit in task["commits"]]
    assert task["base"] == first
    assert subjects == ["Add cubes (#1)", "Merge branch 'lines'", "Double sizes (#3)"]
    reasons = {
        repository.git("show", "-s", "--format=%s", commit): reason
        for commit, reason in content["rejected"].items()
    }
    assert reasons["Fix a typo"] == "it changes no code"
    assert reasons["Rename things"] == "its tests pass without it"
    assert "Add towers" in reasons
    made = folder / "dataset/shapes_task/task1"
    assert (made / "combined.patch").stat().st_size
    assert (made / "feature2/feature.md").read_text().startswith("# Add lines\n")
    assert not (folder / "dataset/.mining/shapes_task").exists()


def test_mining_again_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed_history(folder / "repo")
    first = mine(capsys)
    again = mine(capsys)
    assert again["tasks"] == first["tasks"]
    assert [path.name for path in (folder / "dataset/shapes_task").iterdir()] == ["task1"]


def test_a_history_without_features_is_no_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository(folder / "repo")
    repository.commit("Start", PYTHON_BASE)
    assert main(["author", "mine", "repo", "--name", "shapes"]) == 1
    assert "0 tasks from 1 commit" in capsys.readouterr().out


@pytest.mark.parametrize("language", ["python", "javascript", "rust", "go"])
def test_mined_tasks_run_end_to_end(
    folder: Path, capsys: pytest.CaptureFixture[str], language: str
) -> None:
    """The oracle passes everything, and an agent that does nothing passes nothing."""
    write_history(language, folder / "repo")
    content = mine(capsys)
    (task,) = content["tasks"]
    pairs = len(task["commits"]) * (len(task["commits"]) - 1) // 2
    assert successes(run_agent(folder, "oracle")) == (pairs, pairs)
    assert successes(run_agent(folder, "nop")) == (0, pairs)


def write_history(language: str, path: Path) -> None:
    """A repository in which two or three features can be built on the first commit."""
    if language == "python":
        mixed_history(path)
        return
    repository = Repository(path)
    if language == "javascript":
        require_program("node", package="nodejs")
        repository.commit("Start", JAVASCRIPT_BASE)
        repository.commit("Add cubes", javascript_feature("cube", "size ** 3", "27"))
        repository.commit("Add lines", javascript_feature("line", "size", "3"))
    elif language == "rust":
        require_program("cargo", package="cargo")
        repository.commit("Start", RUST_BASE)
        for number, files in enumerate(rust_features(), 1):
            repository.commit(f"Add feature {number}", files)
    else:
        require_program("go", package="golang-go")
        repository.commit("Start", GO_BASE)
        repository.commit("Add cubes", go_feature("Cube", "size * size * size", "27"))
        repository.commit("Add lines", go_feature("Line", "size", "3"))


def test_parts_of_a_monorepo_have_their_own_features(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository(folder / "repo")
    in_part = {"one": PYTHON_BASE, "two": PYTHON_BASE}
    repository.commit("Start", _below(in_part))
    for name, code, expected in (("cube", "size ** 3", "27"), ("line", "size", "3")):
        for part in in_part:
            feature = python_feature(name, code, expected)
            repository.commit(f"Add {name} to {part}", _below({part: feature}))
    bases = []
    for part in in_part:
        (task,) = mine(capsys, "--path", f"parts/{part}")["tasks"]
        subjects = [repository.git("show", "-s", "--format=%s", sha) for sha in task["commits"]]
        assert subjects == [f"Add cube to {part}", f"Add line to {part}"]
        bases.append(task["task"])
    assert bases == ["shapes_task/task1", "shapes_task/task2"]


def _below(parts: dict[str, dict[str, str]]) -> dict[str, str]:
    """Files of parts of a repository, by their paths from its top."""
    files: dict[str, str] = {}
    for part, part_files in parts.items():
        for name, text in part_files.items():
            files[f"parts/{part}/{name}"] = text
    return files
