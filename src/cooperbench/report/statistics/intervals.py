"""A number with its interval, and what the interval rests on.

Three methods: `wilson` takes pairs for independent, `clustered` (the default) does not and uses Student's t with one
degree of freedom less than there are tasks, `bootstrap` draws whole tasks. Few tasks can agree by luck, so a clustered
variance below that of independent pairs is not believed. Where a method has no answer (one task, no variance at all)
that is said in `note`, never papered over. docs/statistics.md has the formulas.

The cluster of a pair is its task: pairs of one task share a repository, a base commit and features (a feature is in
several pairs), so their outcomes hang together: 652 pairs of 30 tasks tell less than 652 independent ones.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cooperbench.report.statistics.distributions import normal_quantile, t_quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cooperbench.report import Method
    from cooperbench.report.records import PairKey

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 20260101
T = TypeVar("T")
_NO_VARIANCE = 1e-24
"""Rounding leaves less than this where values agree exactly."""
FEW_TASKS = 10
"""With fewer, a bootstrap over tasks says so itself."""


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
    """The one place that says so, for standard errors, degrees of freedom and the bootstrap alike."""
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


@dataclass(frozen=True)
class Estimate:
    """A mean (or difference, or ratio) over pairs."""

    value: float | None
    """None where there is nothing to estimate it from."""
    low: float | None
    high: float | None
    """Both None where there is no interval; `note` says why."""
    n: int
    """Pairs."""
    clusters: int
    """Tasks."""
    method: str
    design_effect: float | None = None
    """How many times larger the variance is than that of as many independent pairs; None where that has no meaning."""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def wilson_bounds(share: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The score interval of a rate; `n` may be an effective number."""
    z = normal_quantile(0.5 + confidence / 2.0)
    shrink = 1.0 + z * z / n
    centre = (share + z * z / (2.0 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n))
    # At a rate of 0 or 1 the bound is exactly that, which rounding must not hide.
    return (0.0 if share == 0.0 else max(0.0, centre - half)), (
        1.0 if share == 1.0 else min(1.0, centre + half)
    )


def wilson(passed: int, n: int, confidence: float = CONFIDENCE) -> Estimate:
    """A rate whose trials are independent, e.g. one bucket of a curve as the paper draws it."""
    if not n:
        return _nothing("wilson")
    low, high = wilson_bounds(passed / n, n, confidence)
    return Estimate(passed / n, low, high, n, n, "wilson")


def rate(
    observations: Sequence[Observation], method: Method = "clustered", confidence: float = CONFIDENCE
) -> Estimate:
    """The mean of zeros and ones over pairs, or of other values between 0 and 1."""
    if method == "wilson":
        return _independent(observations, confidence)
    return mean(observations, (0.0, 1.0), method, confidence)


def mean(
    observations: Sequence[Observation],
    limits: tuple[float, float] | None = None,
    method: Method = "clustered",
    confidence: float = CONFIDENCE,
) -> Estimate:
    """A mean over pairs of values within `limits`, which the interval does not leave either; None: no limits."""
    if not observations:
        return _nothing(method)
    clusters = clusters_of(observations)
    n, value, effect = len(observations), _overall(clusters), design_effect(observations)
    if len(clusters) == 1:
        return Estimate(value, None, None, n, 1, method, None, "one task: no interval over tasks")
    independent = _independent_variance(observations, value)
    if independent < _NO_VARIANCE:
        return _all_agree(value, n, len(clusters), limits, confidence)
    note = ""
    if method == "bootstrap":
        low, high = _percentiles([_overall(drawn) for drawn in _resamples(clusters)], confidence)
        note = f"fewer than {FEW_TASKS} tasks: a bootstrap is too narrow" if len(clusters) < FEW_TASKS else ""
    else:
        variance = max(independent, _clustered_variance(clusters))
        half = t_quantile(0.5 + confidence / 2.0, len(clusters) - 1) * math.sqrt(variance)
        low, high = value - half, value + half
    if limits is not None:
        low, high = max(limits[0], low), min(limits[1], high)
    return Estimate(value, low, high, n, len(clusters), method, effect, note)


def ratio(
    above: Sequence[Observation], below: Sequence[Observation], confidence: float = CONFIDENCE
) -> Estimate:
    """Sum over sum, for the same pairs in the same order, with a bootstrap over tasks."""
    upper, lower = clusters_of(above), clusters_of(below)
    total = sum(cluster.total for cluster in lower)
    if not total:
        return Estimate(None, None, None, len(below), len(lower), "bootstrap", note="undefined: divided by 0")
    value = sum(cluster.total for cluster in upper) / total
    if len(lower) == 1:
        return Estimate(
            value, None, None, len(below), 1, "bootstrap", note="one task: no interval over tasks"
        )
    drawn = [
        sum(over.total for over, _ in sample) / divisor
        for sample in _resamples(list(zip(upper, lower, strict=True)))
        if (divisor := sum(under.total for _, under in sample))
    ]
    lost = RESAMPLES - len(drawn)
    note = f"{lost} of {RESAMPLES} resamples left out: divided by 0" if lost else ""
    low, high = _percentiles(drawn, confidence)
    return Estimate(value, low, high, len(below), len(lower), "bootstrap", note=note)


def design_effect(observations: Sequence[Observation]) -> float | None:
    """Clustered variance of the mean over that of independent observations."""
    clusters, n = clusters_of(observations), len(observations)
    if n < 2 or len(clusters) < 2:
        return None
    independent = _independent_variance(observations, _overall(clusters))
    return _clustered_variance(clusters) / independent if independent > _NO_VARIANCE else None


def _nothing(method: str) -> Estimate:
    return Estimate(None, None, None, 0, 0, method, note="no pairs with a verdict")


def _independent(observations: Sequence[Observation], confidence: float) -> Estimate:
    if not observations:
        return _nothing("wilson")
    clusters = clusters_of(observations)
    value = _overall(clusters)
    low, high = wilson_bounds(value, len(observations), confidence)
    effect = design_effect(observations)
    return Estimate(value, low, high, len(observations), len(clusters), "wilson", effect)


def _overall(clusters: Sequence[Cluster]) -> float:
    return math.fsum(cluster.total for cluster in clusters) / sum(cluster.size for cluster in clusters)


def _independent_variance(observations: Sequence[Observation], centre: float) -> float:
    """Of the mean, if pairs had nothing to do with each other."""
    n = len(observations)
    return math.fsum((value - centre) ** 2 for _, value in observations) / (n * (n - 1))


def _clustered_variance(clusters: Sequence[Cluster]) -> float:
    """Of the mean over observations: the sandwich estimator with its correction for few clusters."""
    centre, n, count = _overall(clusters), sum(cluster.size for cluster in clusters), len(clusters)
    squares = math.fsum((cluster.total - cluster.size * centre) ** 2 for cluster in clusters)
    return count / (count - 1) * squares / (n * n)


def _all_agree(
    value: float, n: int, clusters: int, limits: tuple[float, float] | None, confidence: float
) -> Estimate:
    """No variance to go by: as if each task were one trial, the widest reading of pairs that hang together."""
    if limits is None:
        return Estimate(value, None, None, n, clusters, "none", None, "all pairs agree: no interval")
    bottom, top = limits
    if value == 0.0 and bottom < 0.0:
        # Nothing differs: what is uncertain is the share of tasks in which something could.
        high = wilson_bounds(0.0, clusters, confidence)[1] * top
        low = -high
    else:
        low, high = (
            bottom + bound * (top - bottom)
            for bound in wilson_bounds((value - bottom) / (top - bottom), clusters, confidence)
        )
    note = "all pairs agree: Wilson interval over tasks instead"
    return Estimate(value, low, high, n, clusters, "wilson over tasks", None, note)


def _resamples(clusters: Sequence[T]) -> Iterator[list[T]]:
    """Tasks drawn with replacement; the same draws each time."""
    source = random.Random(SEED)  # noqa: S311  # no secret: it has to be the same each time
    for _ in range(RESAMPLES):
        yield source.choices(clusters, k=len(clusters))


def _percentiles(values: list[float], confidence: float) -> tuple[float, float]:
    ordered = sorted(values)
    return _at(ordered, 0.5 - confidence / 2.0), _at(ordered, 0.5 + confidence / 2.0)


def _at(ordered: Sequence[float], share: float) -> float:
    """Between two neighbours linearly, as numpy does."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
