"""Which golden patches of a dataset conflict with each other in a plain git merge: gold_conflict_report.json.

It takes a clone of each repository (`repos_dir`) or anything else that can show a task's base commit, and no
sandbox. A clone is only read. What cannot be judged is named with the reason; the rest goes on. Whether the
golden patches pass their tests is not asked here.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

from cooperbench.dataset.images import base_commit
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval.base import base_of_clone
from cooperbench.eval.trees import TreeStore
from cooperbench.git import git_dir_of
from cooperbench.storage import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cooperbench.eval.base import Base
    from cooperbench.models import MergeStatus, Pair, Task

SCHEMA = "cooperbench.gold_conflicts/1"
REPORT_NAME = "gold_conflict_report.json"
"""In the dataset's folder."""


@dataclass(frozen=True)
class PairConflict:
    """How the golden patches of one pair merge."""

    repo: str
    task_id: int
    feature_ids: tuple[int, ...]
    status: MergeStatus
    files: tuple[str, ...]
    """The conflicting ones, sorted."""
    union: bool
    """A conflict that a union merge resolves."""


@dataclass(frozen=True)
class BrokenTask:
    """Something that keeps a task's pairs, or some of them, from being judged."""

    repo: str
    task_id: int
    reason: str


@dataclass(frozen=True)
class ConflictReport:
    """All pairs that could be judged, and what was in the way of the others; sorted, numbers as numbers."""

    pairs: tuple[PairConflict, ...]
    broken: tuple[BrokenTask, ...]


def golden_conflicts(
    tasks: Sequence[Task],
    *,
    pairs: Sequence[Pair] | None = None,
    repos_dir: Path | None = None,
    base_of: Callable[[Task], Base] | None = None,
    workers: int | None = None,
) -> ConflictReport:
    """Merge the golden patches of every pair of the tasks, or of those of them given.

    The base commits come from `base_of`, else from the clones in `repos_dir`.
    """
    if base_of is None and (repos_dir is None or not repos_dir.is_dir()):
        raise UserError("golden merges need a folder with a clone of each repository: --repos DIR")
    ordered = sorted(tasks, key=lambda task: (task.repo, task.task_id))
    every = [pair for task in tasks for pair in task.pairs] if pairs is None else pairs

    def judge(task: Task) -> tuple[list[PairConflict], list[str]]:
        mine = sorted({pair.feature_ids: pair for pair in every if pair.task == task}.items())
        if not mine:
            return [], []
        try:
            base = base_of(task) if base_of else base_in_clones(task, cast("Path", repos_dir))
            return _judge_task(base, [pair for _, pair in mine])
        except (CooperBenchError, OSError) as error:
            return [], [str(error)]

    with ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="golden-merge") as pool:
        judged = list(pool.map(judge, ordered))
    broken = (
        BrokenTask(task.repo, task.task_id, reason)
        for task, (_, reasons) in zip(ordered, judged, strict=True)
        for reason in reasons
    )
    return ConflictReport(tuple(one for conflicts, _ in judged for one in conflicts), tuple(broken))


def base_in_clones(task: Task, repos_dir: Path) -> Base:
    """A task's base commit in the clone of its repository."""
    places = (repos_dir / task.repo, repos_dir / f"{task.repo}.git")
    git_dir = next((found for place in places if (found := git_dir_of(place)) is not None), None)
    if git_dir is None:
        raise UserError(f"there is no clone at {places[0]} (nor {places[1].name})")
    commit = base_commit(task)
    if commit is None:
        raise UserError(f"neither setup.sh nor the Dockerfile in {task.path} names the base commit")
    return base_of_clone(git_dir, commit)


def to_json(report: ConflictReport) -> dict[str, object]:
    """The report as it stands in gold_conflict_report.json."""
    sizes = sorted({len(pair.feature_ids) for pair in report.pairs})
    by_agents = {
        str(size): _counts([pair for pair in report.pairs if len(pair.feature_ids) == size]) for size in sizes
    }
    return {
        "schema": SCHEMA,
        "summary": {
            **_counts(report.pairs),
            "broken": len(report.broken),
            **({"by_agents": by_agents} if sizes not in ([], [2]) else {}),
        },
        "pairs": [
            {
                "repo": pair.repo,
                "task_id": pair.task_id,
                "features": list(pair.feature_ids),
                "status": pair.status,
                "conflict": pair.status == "conflict",
                "files": list(pair.files),
                "union": pair.union,
            }
            for pair in report.pairs
        ],
        "broken": [asdict(broken) for broken in report.broken],
    }


def _counts(pairs: Sequence[PairConflict]) -> dict[str, int]:
    conflicts = sum(pair.status == "conflict" for pair in pairs)
    return {"pairs": len(pairs), "conflict": conflicts, "clean": len(pairs) - conflicts}


def known_conflicts(dataset_dir: Path) -> dict[tuple[str, int, tuple[int, ...]], bool]:
    """Which pairs conflict, as the dataset's own report says; empty where there is none that `to_json` made."""
    report = read_json(dataset_dir / REPORT_NAME) or {}
    pairs = report["pairs"] if report.get("schema") == SCHEMA else []
    return {(one["repo"], one["task_id"], tuple(one["features"])): one["conflict"] for one in pairs}


def _judge_task(base: Base, pairs: Sequence[Pair]) -> tuple[list[PairConflict], list[str]]:
    reasons: list[str] = []
    patches: dict[int, bytes] = {}
    for feature in {feature.feature_id: feature for pair in pairs for feature in pair.features}.values():
        try:
            patches[feature.feature_id] = feature.patch.read_bytes()
        except OSError as error:
            reasons.append(f"feature {feature.feature_id}: the golden patch cannot be read: {error.strerror}")
    trees: dict[int, str] = {}
    with TreeStore(base) as store:
        for feature_id, patch in sorted(patches.items()):
            applied = store.apply(patch)
            if applied.status == "applied" and applied.tree is not None:
                trees[feature_id] = applied.tree
            elif applied.status == "empty":
                reasons.append(f"feature {feature_id}: the golden patch changes nothing")
            else:
                reasons.append(f"feature {feature_id}: the golden patch does not apply: {applied.error}")
        whole = [pair for pair in pairs if trees.keys() >= set(pair.feature_ids)]
        return _merge_all(store, trees, whole), reasons


def _merge_all(store: TreeStore, trees: Mapping[int, str], pairs: Sequence[Pair]) -> list[PairConflict]:
    """As `TreeStore.merge`, all groups at once: at each step one patch more, plain, the conflicts again as unions."""
    merged: dict[Pair, str | None] = {pair: trees[pair.feature_ids[0]] for pair in pairs}
    files: dict[Pair, set[str]] = {}
    for step in range(1, max((len(pair.feature_ids) for pair in pairs), default=0)):
        both = {
            pair: (tree, trees[pair.feature_ids[step]])
            for pair, tree in merged.items()
            if tree is not None and len(pair.feature_ids) > step
        }
        different = [*dict.fromkeys(both.values())]
        plain = dict(zip(different, store.merge_pairs(different), strict=True))
        again = [one for one in different if plain[one].tree is None]
        unions = dict(zip(again, store.merge_pairs(again, union=True), strict=True))
        for pair, one in both.items():
            if one in unions:
                files.setdefault(pair, set()).update(plain[one].files)
            merged[pair] = unions[one].tree if one in unions else plain[one].tree
    found = []
    for pair in pairs:
        status: MergeStatus = "conflict" if pair in files else "clean"
        if len({trees[number] for number in pair.feature_ids}) == 1:
            status = "identical"
        union = status == "conflict" and merged[pair] is not None
        place = (pair.task.repo, pair.task.task_id, pair.feature_ids)
        found.append(PairConflict(*place, status, tuple(sorted(files.get(pair, ()))), union))
    return found
