"""What a cluster is: the one place that says so, for standard errors, degrees of freedom and the bootstrap alike.

Pairs of one task share a repository, a base commit and features (a feature is in several pairs), so their outcomes hang
together: 652 pairs of 30 tasks tell less than 652 independent ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cooperbench.report.summary import PairKey


class TaskKey(NamedTuple):
    """A task by its place in the dataset."""

    repo: str
    task_id: int


class Observation(NamedTuple):
    """One number about one pair."""

    key: PairKey
    value: float


class Cluster(NamedTuple):
    """The observations of one cluster, as far as sums of them need to be known."""

    size: int
    total: float


def cluster_of(key: PairKey) -> TaskKey:
    """The cluster of a pair is its task."""
    return TaskKey(key.repo, key.task_id)


def clusters_of(observations: Iterable[Observation]) -> list[Cluster]:
    """One entry a cluster, in the order of tasks, so that a seeded bootstrap does not depend on the input's order."""
    sizes: dict[TaskKey, int] = {}
    totals: dict[TaskKey, float] = {}
    for key, value in observations:
        task = cluster_of(key)
        sizes[task] = sizes.get(task, 0) + 1
        totals[task] = totals.get(task, 0.0) + value
    return [Cluster(sizes[task], totals[task]) for task in sorted(sizes)]
