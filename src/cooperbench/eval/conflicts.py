"""Which golden patches of a dataset conflict with each other in a plain git merge: gold_conflict_report.json.

It takes a clone of each repository (`repos_dir`) or anything else that can show a task's base commit, and no
sandbox. A clone is only read. What cannot be judged is named with the reason; the rest goes on. Whether the
golden patches pass their tests is not asked here.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.dataset.images import base_commit
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval.base import base_of_clone
from cooperbench.eval.trees import TreeStore
from cooperbench.gitcall import git_dir_of
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
    if base_of is None:
        if repos_dir is None:
            raise UserError(
                "golden merges need a clone of each repository: say where they are with --repos DIR"
            )
        clones = repos_dir
        if not clones.is_dir():
            raise UserError(
                f"there is no folder {clones}: --repos takes the folder with one clone per repository"
            )

        def base_of(task: Task) -> Base:
            return base_in_clones(task, clones)

    source = base_of
    wanted: dict[tuple[str, int], list[Pair]] = {(task.repo, task.task_id): [] for task in tasks}
    for pair in [pair for task in tasks for pair in task.pairs] if pairs is None else pairs:
        if (pair.task.repo, pair.task.task_id) in wanted:
            wanted[pair.task.repo, pair.task.task_id].append(pair)

    def judge(task: Task) -> tuple[list[PairConflict], list[str]]:
        mine = sorted(wanted[task.repo, task.task_id], key=lambda pair: pair.feature_ids)
        try:
            return _judge_task(task, mine, source) if mine else ([], [])
        except (CooperBenchError, OSError) as error:
            return [], [str(error)]

    ordered = sorted(tasks, key=lambda task: (task.repo, task.task_id))
    with ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="golden-merge") as pool:
        judged = list(pool.map(judge, ordered))
    return ConflictReport(
        tuple(one for conflicts, _ in judged for one in conflicts),
        tuple(
            BrokenTask(task.repo, task.task_id, reason)
            for task, (_, reasons) in zip(ordered, judged, strict=True)
            for reason in reasons
        ),
    )


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
    counts = Counter(pair.status == "conflict" for pair in report.pairs)
    return {
        "schema": SCHEMA,
        "summary": {
            "pairs": len(report.pairs),
            "conflict": counts[True],
            "clean": counts[False],
            "broken": len(report.broken),
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
        "broken": [
            {"repo": broken.repo, "task_id": broken.task_id, "reason": broken.reason}
            for broken in report.broken
        ],
    }


def known_conflicts(dataset_dir: Path) -> dict[tuple[str, int, tuple[int, ...]], bool]:
    """Which pairs conflict, as the dataset's own report says; empty where there is none that `to_json` made."""
    report = read_json(dataset_dir / REPORT_NAME) or {}
    pairs = report["pairs"] if report.get("schema") == SCHEMA else []
    return {(one["repo"], one["task_id"], tuple(one["features"])): one["conflict"] for one in pairs}


def _judge_task(
    task: Task, pairs: Sequence[Pair], base_of: Callable[[Task], Base]
) -> tuple[list[PairConflict], list[str]]:
    reasons: list[str] = []
    patches: dict[int, bytes] = {}
    for feature in {feature.feature_id: feature for pair in pairs for feature in pair.features}.values():
        try:
            patches[feature.feature_id] = feature.patch.read_bytes()
        except OSError as error:
            reasons.append(f"feature {feature.feature_id}: the golden patch cannot be read: {error.strerror}")
    trees: dict[int, str] = {}
    with TreeStore(base_of(task)) as store:
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
    """Twos go through git together: all plain, the conflicts again as unions. Larger groups go one by one."""
    two = {
        pair.feature_ids: (trees[pair.feature_ids[0]], trees[pair.feature_ids[1]])
        for pair in pairs
        if len(pair.feature_ids) == 2
    }
    plain = dict(zip(two, store.merge_pairs(list(two.values())), strict=True))
    conflicts = [features for features, merge in plain.items() if merge.tree is None]
    union = dict(
        zip(conflicts, store.merge_pairs([two[features] for features in conflicts], union=True), strict=True)
    )
    found = []
    for pair in pairs:
        features = pair.feature_ids
        status: MergeStatus
        if features in plain:
            ours, theirs = two[features]
            status = "identical" if ours == theirs else "conflict" if features in union else "clean"
            files = plain[features].files
            resolved = features in union and union[features].tree is not None
        else:
            merged = store.merge([trees[number] for number in features])
            status, files, resolved = merged.status, merged.conflicting_files, merged.strategy == "union"
        found.append(PairConflict(pair.task.repo, pair.task.task_id, features, status, files, resolved))
    return found
