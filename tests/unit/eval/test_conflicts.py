"""Golden pairs of a dataset, merged in clones that are never written to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cooperbench.dataset.discovery import discover, load_tasks
from cooperbench.errors import InfraError, UserError
from cooperbench.eval.conflicts import golden_conflicts
from cooperbench.models import Pair
from tests.support.dataset.factory import feature_files, write_dataset
from tests.support.eval.realgit import RealRepo, base_with, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cooperbench.eval.base_commit import Base
    from cooperbench.models import Task

LINES = "".join(f"line {number}\n" for number in range(1, 21))
BASE = {"src/a.py": text(LINES), "src/b.py": text(LINES * 2), "docs/c.md": text("# Title\n")}
CHANGES: dict[int, dict[str, str | None]] = {
    1: {"src/a.py": LINES.replace("line 2\n", "one\n")},
    2: {"src/a.py": LINES.replace("line 2\n", "two\n")},
    3: {"src/a.py": LINES.replace("line 19\n", "three\n")},
    10: {"src/a.py": LINES.replace("line 2\n", "one\n")},
    11: {"docs/c.md": None, "src/a.py": LINES.replace("line 19\n", "eleven\n")},
    12: {"docs/c.md": "# Title\n\nWords\n"},
}


class Fixture:
    """A dataset whose golden patches are real, and the clone they belong to."""

    def __init__(self, root: Path, layout: Mapping[str, Mapping[int, list[int]]]) -> None:
        self.dataset, self.repos = root / "dataset", root / "repos"
        self.repo = RealRepo(root / "work")
        self.repo.commit({"README": text("history\n")})
        self.base = self.repo.commit(BASE)
        for repo in layout:
            self.repo.git("clone", "-q", "--bare", str(self.repo.path), str(self.repos / repo))
        patches = {number: self._patch(number) for number in CHANGES}

        def features(repo: str, task_id: int, feature_id: int) -> dict[str, str]:
            return feature_files(repo, task_id, feature_id) | {"feature.patch": patches[feature_id]}

        def scripts(repo: str, task_id: int) -> dict[str, str]:
            return {"setup.sh": f"git clone https://example.com/x\ngit checkout {self.base}\n"}

        write_dataset(self.dataset, layout, feature_content=features, task_content=scripts)

    def _patch(self, number: int) -> str:
        after = {path: file for path, file in BASE.items() if path not in CHANGES[number]}
        after |= {path: text(words) for path, words in CHANGES[number].items() if words is not None}
        return self.repo.diff(self.base, self.repo.commit(after, self.base)).decode()

    @property
    def tasks(self) -> tuple[Task, ...]:
        return load_tasks(self.dataset)

    def report(self) -> dict[str, object]:
        return golden_conflicts(self.tasks, repos_dir=self.repos)


def row(
    task_id: int, features: list[int], status: str, *files: str, union: bool = False
) -> dict[str, object]:
    return {
        "repo": "alpha_task",
        "task_id": task_id,
        "features": features,
        "status": status,
        "conflict": status == "conflict",
        "files": list(files),
        "union": union,
    }


def test_the_report(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path, {"alpha_task": {10: [3, 12], 2: [10, 2, 1, 3], 9: [11, 12]}})
    assert fixture.report() == {
        "schema": "cooperbench.gold_conflicts/1",
        "summary": {"pairs": 8, "conflict": 3, "clean": 5, "broken": 0},
        "pairs": [
            row(2, [1, 2], "conflict", "src/a.py", union=True),
            row(2, [1, 3], "clean"),
            row(2, [1, 10], "identical"),
            row(2, [2, 3], "clean"),
            row(2, [2, 10], "conflict", "src/a.py", union=True),
            row(2, [3, 10], "clean"),
            row(9, [11, 12], "conflict", "docs/c.md"),
            row(10, [3, 12], "clean"),
        ],
        "broken": [],
    }
    again = golden_conflicts(tuple(reversed(fixture.tasks)), repos_dir=fixture.repos, workers=1)
    assert json.dumps(again) == json.dumps(fixture.report())


def test_groups_are_merged_in_feature_order_and_counted_by_size(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path, {"alpha_task": {2: [1, 2, 3, 10]}})
    pairs = discover(fixture.dataset, group_sizes=[2, 3, 4]).pairs
    report = golden_conflicts(fixture.tasks, pairs=pairs, repos_dir=fixture.repos)
    assert report["summary"] == {
        "pairs": 11, "conflict": 6, "clean": 5, "broken": 0,
        "by_agents": {
            "2": {"pairs": 6, "conflict": 2, "clean": 4},
            "3": {"pairs": 4, "conflict": 3, "clean": 1},
            "4": {"pairs": 1, "conflict": 1, "clean": 0},
        },
    }  # fmt: skip
    assert row(2, [1, 2, 3, 10], "conflict", "src/a.py", union=True) in report["pairs"]
    assert row(2, [1, 3, 10], "clean") in report["pairs"]


def test_the_answers_are_those_of_git_merge(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path, {"alpha_task": {0: sorted(CHANGES)}})
    commits = {}
    for feature in fixture.tasks[0].features:
        tree = fixture.repo.tree_with(fixture.base, feature.patch.read_bytes())
        made = fixture.repo.git("commit-tree", tree, "-p", fixture.base, "-m", "golden")
        commits[feature.feature_id] = made.decode().strip()
    for pair in golden_conflicts(fixture.tasks, repos_dir=fixture.repos)["pairs"]:
        first, second = pair["features"]
        expected = fixture.repo.merge(commits[first], commits[second])
        assert (not pair["conflict"], pair["files"]) == (
            expected.clean,
            [*expected.conflicting_files],
        )


def test_only_the_pairs_asked_for(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path, {"alpha_task": {0: [1, 2, 3, 12], 1: [1, 2]}})
    first, second = fixture.tasks
    pairs = [
        Pair(first, (2, 3)),
        Pair(first, (1, 3, 12)),
        Pair(first, (1, 2, 12)),
        Pair(second, (1, 2)),
    ]
    report = golden_conflicts([first], pairs=pairs, repos_dir=fixture.repos)
    assert report["pairs"] == [
        row(0, [1, 2, 12], "conflict", "src/a.py", union=True),
        row(0, [1, 3, 12], "clean"),
        row(0, [2, 3], "clean"),
    ]
    assert golden_conflicts([first], pairs=[], repos_dir=fixture.repos)["pairs"] == []
    assert golden_conflicts([], repos_dir=fixture.repos)["pairs"] == []


def as_it_is(fixture: Fixture) -> None:
    """A bare clone, named like the dataset's folder."""


def with_suffix(fixture: Fixture) -> None:
    (fixture.repos / "alpha_task").rename(fixture.repos / "alpha_task.git")


def with_work_tree(fixture: Fixture) -> None:
    bare = (fixture.repos / "alpha_task").rename(fixture.repos / "elsewhere")
    fixture.repo.git("clone", "-q", str(bare), str(fixture.repos / "alpha_task"))


def as_worktree(fixture: Fixture) -> None:
    (fixture.repos / "alpha_task").rename(fixture.repos / "elsewhere")
    place = str(fixture.repos / "alpha_task")
    fixture.repo.git("worktree", "add", "-q", "--detach", place, fixture.base)


@pytest.mark.parametrize("rearrange", [as_it_is, with_suffix, with_work_tree, as_worktree])
def test_every_kind_of_clone_is_only_read(
    tmp_path: Path, rearrange: Callable[[Fixture], None]
) -> None:
    fixture = Fixture(tmp_path, {"alpha_task": {0: [1, 2, 11, 12]}})
    rearrange(fixture)
    before = snapshot(tmp_path)
    folders = [path for path in [tmp_path, *tmp_path.rglob("*")] if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        report = golden_conflicts(fixture.tasks, repos_dir=fixture.repos)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert (len(report["pairs"]), report["broken"]) == (6, [])
    assert snapshot(tmp_path) == before


def snapshot(root: Path) -> dict[str, bytes]:
    """Without times: git touches an object of the clone that it would have written itself."""
    paths = [path for path in root.rglob("*") if not path.is_symlink()]
    return {str(path): b"" if path.is_dir() else path.read_bytes() for path in paths}


def test_what_is_broken_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    names = ("alpha_task", "bare_task", "empty_task", "nameless_task", "shallow_task")
    fixture = Fixture(tmp_path, {name: {0: [1, 2, 3, 12]} for name in names})
    alpha = fixture.dataset / "alpha_task" / "task0"
    (alpha / "feature1" / "feature.patch").write_text("")
    stale = (alpha / "feature2" / "feature.patch").read_text().replace("-line 2", "-line two")
    (alpha / "feature2" / "feature.patch").write_text(stale)
    (fixture.repos / "bare_task").rename(fixture.repos / "gone")
    (fixture.repos / "empty_task" / "HEAD").unlink()
    (fixture.dataset / "nameless_task" / "task0" / "setup.sh").write_text("git clone x\n")
    (fixture.dataset / "shallow_task" / "task0" / "setup.sh").write_text(
        f"git checkout {'12' * 20}\n"
    )
    report = golden_conflicts(fixture.tasks, repos_dir=fixture.repos)
    assert report["pairs"] == [row(0, [3, 12], "clean")]
    reasons = [(broken["repo"], broken["reason"]) for broken in report["broken"]]
    assert [repo for repo, _ in reasons] == ["alpha_task", *names]
    for (_, reason), part in zip(
        reasons,
        (
            "feature 1: the golden patch changes nothing",
            "feature 2: the golden patch does not apply: patch failed: src/a.py:1",
            "there is no clone at",
            "there is no clone at",
            "neither setup.sh nor the Dockerfile in",
            f"commit {'12' * 20} is not in",
        ),
        strict=True,
    ):
        assert part in reason
        assert "\n" not in reason
    assert report["summary"] == {"pairs": 1, "conflict": 0, "clean": 1, "broken": 6}


def test_base_trees_may_come_from_elsewhere(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path, {"alpha_task": {0: [1, 2]}, "beta_task": {0: [1, 2]}})

    def base_of(task: Task) -> Base:
        if task.repo == "beta_task":
            raise InfraError("the sandbox is gone")
        return base_with(tmp_path, BASE)

    report = golden_conflicts(fixture.tasks, base_of=base_of)
    assert [(pair["repo"], pair["status"]) for pair in report["pairs"]] == [
        ("alpha_task", "conflict")
    ]
    assert report["broken"] == [
        {"repo": "beta_task", "task_id": 0, "reason": "the sandbox is gone"}
    ]


def test_a_source_of_commits_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--repos DIR"):
        golden_conflicts([])
    with pytest.raises(UserError, match="--repos DIR"):
        golden_conflicts([], repos_dir=tmp_path / "nowhere")
