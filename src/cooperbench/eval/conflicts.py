"""Which golden patches of a dataset conflict with each other in a plain git merge: gold_conflict_report.json.

Without a sandbox where there are clones, which are only read. What cannot be judged is named with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from cooperbench.dataset.image_names import base_commit
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval.trees import Base, TreeStore, base_of_clone
from cooperbench.git import git_dir_of
from cooperbench.models import Pair, Task
from cooperbench.storage import read_json

SCHEMA = "cooperbench.gold_conflicts/1"


def golden_conflicts(
    tasks: Sequence[Task],
    *,
    pairs: Sequence[Pair] | None = None,
    repos_dir: Path | None = None,
    base_of: Callable[[Task], Base] | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """How the golden patches of the tasks' pairs merge; base commits from `base_of`, else the clones in `repos_dir`.

    `pairs` are those that could be judged, `broken` is what was in the way of the others; both sorted.
    """
    if base_of is None and (repos_dir is None or not repos_dir.is_dir()):
        raise UserError("golden merges need a folder with a clone of each repository: --repos DIR")
    ordered = sorted(tasks, key=lambda task: (task.repo, task.task_id))
    every = [pair for task in tasks for pair in task.pairs] if pairs is None else pairs

    def judge(task: Task) -> tuple[list[dict[str, Any]], list[str]]:
        mine = sorted({pair.feature_ids: pair for pair in every if pair.task == task}.items())
        if not mine:
            return [], []
        reasons: list[str] = []
        try:
            base = base_of(task) if base_of else base_in_clones(task, cast("Path", repos_dir))
            return list(_merged(base, [pair for _, pair in mine], reasons)), reasons
        except (CooperBenchError, OSError) as error:
            return [], [str(error)]

    with ThreadPoolExecutor(
        workers or os.cpu_count() or 1, thread_name_prefix="golden-merge"
    ) as pool:
        judged = list(pool.map(judge, ordered))
    found = [one for merges, _ in judged for one in merges]
    broken = [
        {"repo": task.repo, "task_id": task.task_id, "reason": reason}
        for task, (_, reasons) in zip(ordered, judged, strict=True)
        for reason in reasons
    ]
    summary: dict[str, Any] = {**_counts(found), "broken": len(broken)}
    sizes = sorted({len(one["features"]) for one in found})
    if sizes not in ([], [2]):
        summary["by_agents"] = {
            str(size): _counts([one for one in found if len(one["features"]) == size])
            for size in sizes
        }
    return {"schema": SCHEMA, "summary": summary, "pairs": found, "broken": broken}


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


def _counts(pairs: Sequence[dict[str, Any]]) -> dict[str, int]:
    conflicts = sum(pair["conflict"] for pair in pairs)
    return {"pairs": len(pairs), "conflict": conflicts, "clean": len(pairs) - conflicts}


def known_conflicts(dataset_dir: Path) -> dict[tuple[str, int, tuple[int, ...]], bool]:
    """Which pairs conflict, as the dataset's own report says; empty where there is none of ours."""
    report = read_json(dataset_dir / "gold_conflict_report.json") or {}
    pairs = report["pairs"] if report.get("schema") == SCHEMA else []
    return {(one["repo"], one["task_id"], tuple(one["features"])): one["conflict"] for one in pairs}


def _merged(base: Base, pairs: Sequence[Pair], reasons: list[str]) -> Iterator[dict[str, Any]]:
    """How the pairs of one task merge; adds why some cannot be judged."""
    features = {feature.feature_id: feature for pair in pairs for feature in pair.features}
    trees: dict[int, str] = {}
    with TreeStore(base) as store:
        for number, feature in sorted(features.items()):
            try:
                applied = store.apply(feature.patch.read_bytes())
            except OSError as error:
                reasons.append(
                    f"feature {number}: the golden patch cannot be read: {error.strerror}"
                )
                continue
            if applied.status == "applied":
                trees[number] = applied.tree
            else:
                reasons.append(
                    f"feature {number}: {applied.error.replace('patch', 'golden patch', 1)}"
                )
        whole = [pair for pair in pairs if trees.keys() >= set(pair.feature_ids)]
        merges = store.merge_groups(
            [[trees[number] for number in pair.feature_ids] for pair in whole]
        )
    for pair, merge in zip(whole, merges, strict=True):
        yield {
            "repo": pair.task.repo,
            "task_id": pair.task.task_id,
            "features": list(pair.feature_ids),
            "status": merge.status,
            "conflict": merge.status == "conflict",
            "files": list(merge.conflicting_files),
            # A conflict that a union merge resolves.
            "union": merge.strategy == "union",
        }
