from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.author.mining.history import (
    Candidate,
    Commit,
    quick_problem,
    read_candidate,
    read_main_line,
)
from tests.support.author.repositories import PYTHON_BASE, Repository, python_feature

if TYPE_CHECKING:
    from pathlib import Path


def repository(path: Path) -> Repository:
    """A history with a squashed feature, a merged one, and commits that are not features."""
    made = Repository(path / "repo")
    made.commit("Start", PYTHON_BASE)
    made.commit("Add cubes (#1)", python_feature("cube", "size ** 3", "27"))
    made.git("checkout", "-q", "-b", "lines")
    made.commit("Add a module", {"shapes/line.py": "def line(size):\n    return size\n"})
    made.commit(
        "Test it", {"tests/test_line.py": "from shapes.line import line\n\nassert line(1)\n"}
    )
    made.git("checkout", "-q", "main")
    made.git("merge", "-q", "--no-ff", "-m", "Merge branch 'lines'", "lines")
    made.commit("Fix a typo", {"README.md": "Shapes\n"})
    made.commit('Revert "Add cubes (#1)"', {"shapes/cube.py": None, "tests/test_cube.py": None})
    made.commit("More tests", {"tests/test_more.py": "assert True\n"})
    made.commit("Refactor", {"shapes/names.py": "NAMES = []\nMORE = []\nLESS = []\n"})
    return made


def examine(made: Repository) -> dict[str, Candidate | str]:
    git_dir = made.path / ".git"
    results: dict[str, Candidate | str] = {}
    for commit in read_main_line(git_dir, "HEAD", 100):
        results[commit.subject] = quick_problem(commit) or read_candidate(git_dir, commit)
    return results


def test_only_changes_of_code_and_tests_are_candidates(tmp_path: Path) -> None:
    results = examine(repository(tmp_path))
    reasons = {subject: result for subject, result in results.items() if isinstance(result, str)}
    assert reasons == {
        "Start": "it has no parent",
        "Fix a typo": "it changes no code",
        'Revert "Add cubes (#1)"': "it reverts a commit",
        "More tests": "it changes only tests",
        "Refactor": "it changes no tests",
    }
    squashed = results["Add cubes (#1)"]
    assert isinstance(squashed, Candidate)
    assert squashed.feature_paths == ("shapes/cube.py",)
    assert squashed.test_paths == ("tests/test_cube.py",)
    assert "CHANGELOG.md" not in squashed.changes


def test_a_merged_branch_is_one_change(tmp_path: Path) -> None:
    merged = examine(repository(tmp_path))["Merge branch 'lines'"]
    assert isinstance(merged, Candidate)
    assert merged.feature_paths == ("shapes/line.py",)
    assert merged.test_paths == ("tests/test_line.py",)


def test_large_changes_are_rejected(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repo")
    made.commit("Start", PYTHON_BASE)
    large = python_feature("cube", "size ** 3", "27")
    large["shapes/cube.py"] += "".join(f"VALUE_{number} = {number}\n" for number in range(1000))
    made.commit("Add cubes", large)
    assert examine(made)["Add cubes"] == "it changes more than 400 lines of code"


def test_a_part_of_a_monorepo_is_mined_alone(tmp_path: Path) -> None:
    made = repository(tmp_path)
    commits = read_main_line(made.path / ".git", "HEAD", 100)
    problems = {commit.subject: quick_problem(commit, "other") for commit in commits}
    assert problems["Add cubes (#1)"] == "it changes no code"


@pytest.mark.parametrize(
    "subject",
    [
        "Merge branch '8.1.x'",
        "Merge branch '2.9-maintenance'",
        "Merge remote-tracking branch 'origin/3.0.x'",
        "Merge stable into main (#3521)",
        "Merge `stable` into `main`; Release 8.2.0 (#2873)",
        "Merge branch 'master' of github.com:pallets/jinja",
        "Merge branch 'release/1.2' into develop",
        "Merge from develop into release/15.x",
    ],
)
def test_merges_of_release_branches_are_not_features(subject: str) -> None:
    assert problem_of(subject) == "it merges a branch of a release"


@pytest.mark.parametrize(
    "subject",
    ["Merge pull request #12 from a/main", "Merge branch 'stable-sort'", "Merge sorted lists"],
)
def test_other_merges_may_be_features(subject: str) -> None:
    assert problem_of(subject) == ""


def problem_of(subject: str) -> str:
    files = {"shapes/cube.py": 10, "tests/test_cube.py": 10}
    return quick_problem(Commit("a" * 40, "b" * 40, subject, 0, files))
