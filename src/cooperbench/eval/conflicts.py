"""Conflicts between golden patches in a plain git merge: gold_conflict_report.json.

With clones of the repositories, which are only read, no sandbox is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import msgspec

from cooperbench.dataset.image_names import base_commit
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval.base_commit import Base, base_of_clone
from cooperbench.eval.trees import TreeStore
from cooperbench.git import git_dir_of
from cooperbench.models import Feature, Pair, Task
from cooperbench.records.files import JsonObject
from cooperbench.storage import read_json

SCHEMA = "cooperbench.gold_conflicts/1"


class GoldenMerge(msgspec.Struct, frozen=True):
    """Result of merging the golden patches of one pair."""

    repo: str
    task_id: int
    features: list[int]
    status: str
    conflict: bool
    files: list[str]
    """Conflicting files."""
    union: bool
    """Whether keeping both sides resolves the conflict."""


class BrokenTask(msgspec.Struct, frozen=True):
    """A task with a pair whose golden patches cannot be merged, and why."""

    repo: str
    task_id: int
    reason: str


@dataclass
class _TaskMerges:
    """Merges of the pairs of one task, and the problems with the others."""

    merges: list[GoldenMerge] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def golden_conflicts(
    tasks: Sequence[Task],
    *,
    pairs: Sequence[Pair] | None = None,
    repos_dir: Path | None = None,
    base_of: Callable[[Task], Base] | None = None,
    workers: int | None = None,
) -> JsonObject:
    """Return the content of gold_conflict_report.json for the pairs of these tasks.

    Base commits come from `base_of`, or else from the clones in `repos_dir`. In the report, `pairs`
    are those that could be merged, and `broken` says why others could not.
    """
    if base_of is None:
        if repos_dir is None or not repos_dir.is_dir():
            raise UserError(
                "merging golden patches needs a folder with a clone of each repository: --repos DIR"
            )
        clones = repos_dir

        def base_of(task: Task) -> Base:
            return base_in_clones(task, clones)

    if pairs is None:
        pairs = list(chain.from_iterable(task.pairs for task in tasks))
    ordered = sorted(tasks, key=lambda task: (task.repo, task.task_id))
    distinct_pairs = [_pairs_of(task, pairs) for task in ordered]
    with ThreadPoolExecutor(
        workers or os.cpu_count() or 1, thread_name_prefix="golden-merge"
    ) as pool:
        results = list(
            pool.map(lambda task_pairs: _merge_task(task_pairs, base_of), distinct_pairs)
        )

    merges: list[GoldenMerge] = []
    broken: list[BrokenTask] = []
    for task, result in zip(ordered, results, strict=True):
        merges += result.merges
        broken += [BrokenTask(task.repo, task.task_id, reason) for reason in result.problems]
    return {
        "schema": SCHEMA,
        "summary": {**_summarize(merges), "broken": len(broken), **_summarize_by_size(merges)},
        "pairs": msgspec.to_builtins(merges),
        "broken": msgspec.to_builtins(broken),
    }


def _summarize_by_size(merges: Sequence[GoldenMerge]) -> JsonObject:
    """Return the summary per number of features, unless all are pairs."""
    by_size: dict[int, list[GoldenMerge]] = {}
    for merge in merges:
        by_size.setdefault(len(merge.features), []).append(merge)
    if set(by_size) <= {2}:
        return {}
    return {"by_agents": {str(size): _summarize(by_size[size]) for size in sorted(by_size)}}


def _pairs_of(task: Task, pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of one task, sorted by their features, each once."""
    by_features = {pair.feature_ids: pair for pair in pairs if pair.task == task}
    return [by_features[features] for features in sorted(by_features)]


def base_in_clones(task: Task, repos_dir: Path) -> Base:
    """Return a task's base commit in the clone of its repository."""
    path, bare_path = repos_dir / task.repo, repos_dir / f"{task.repo}.git"
    git_dir = git_dir_of(path) or git_dir_of(bare_path)
    if git_dir is None:
        raise UserError(f"there is no clone at {path} (nor {bare_path.name})")
    commit = base_commit(task)
    if commit is None:
        raise UserError(f"neither setup.sh nor the Dockerfile in {task.path} names the base commit")
    return base_of_clone(git_dir, commit)


def _summarize(merges: Sequence[GoldenMerge]) -> dict[str, int]:
    conflicts = [merge for merge in merges if merge.conflict]
    return {
        "pairs": len(merges),
        "conflict": len(conflicts),
        "clean": len(merges) - len(conflicts),
    }


def known_conflicts(dataset_dir: Path) -> dict[tuple[str, int, tuple[int, ...]], bool]:
    """Return which pairs conflict according to the dataset's report; empty without a report."""
    report = read_json(dataset_dir / "gold_conflict_report.json", follow_link=True)
    if report is None or report.get("schema") != SCHEMA:
        return {}
    merges = msgspec.convert(report["pairs"], list[GoldenMerge])
    return {(merge.repo, merge.task_id, tuple(merge.features)): merge.conflict for merge in merges}


def _merge_task(pairs: Sequence[Pair], base_of: Callable[[Task], Base]) -> _TaskMerges:
    """Merge the golden patches of all pairs of one task."""
    if not pairs:
        return _TaskMerges()
    try:
        with TreeStore(base_of(pairs[0].task)) as store:
            return _merge_pairs(pairs, store)
    except (CooperBenchError, OSError) as error:
        return _TaskMerges(problems=[str(error)])


def _merge_pairs(pairs: Sequence[Pair], store: TreeStore) -> _TaskMerges:
    result = _TaskMerges()
    features: dict[int, Feature] = {}
    for pair in pairs:
        features |= {feature.feature_id: feature for feature in pair.features}
    trees: dict[int, str] = {}
    for feature_id, feature in sorted(features.items()):
        try:
            applied = store.apply(feature.patch.read_bytes())
        except OSError as error:
            result.problems.append(
                f"feature {feature_id}: the golden patch cannot be read: {error.strerror}"
            )
            continue
        if applied.status == "applied":
            trees[feature_id] = applied.tree
        else:
            reason = applied.error.replace("patch", "golden patch", 1)
            result.problems.append(f"feature {feature_id}: {reason}")
    complete = [pair for pair in pairs if trees.keys() >= set(pair.feature_ids)]
    groups = []
    for pair in complete:
        groups.append([trees[number] for number in pair.feature_ids])  # noqa: PERF401  # plainer
    for pair, merge in zip(complete, store.merge_groups(groups), strict=True):
        result.merges.append(
            GoldenMerge(
                repo=pair.task.repo,
                task_id=pair.task.task_id,
                features=list(pair.feature_ids),
                status=merge.status,
                conflict=merge.status == "conflict",
                files=list(merge.conflicting_files),
                union=merge.strategy == "union",
            )
        )
    return result
