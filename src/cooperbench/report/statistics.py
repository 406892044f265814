"""Numbers with intervals, and what the intervals rest on; docs/statistics.md has the formulas.

The cluster of a pair is its task: pairs of one task share a base commit and features, so their
outcomes are correlated. Few tasks can agree by chance, so a clustered variance below that of
independent pairs is replaced by the latter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, quantiles
from typing import NamedTuple, TypeVar

from cooperbench.report import Method
from cooperbench.report.pairs import PairData, PairKey

RESAMPLES = 2000
SEED = 20260101
FEW_TASKS = 10
"""With fewer tasks, an interval by bootstrap is too narrow, which a note says."""
POWER = 0.8
SHARE = (0.0, 1.0)
"""Limits of a rate."""
CHANGE_OF_SHARE = (-1.0, 1.0)
"""Limits of a difference of two rates."""
_TOO_NARROW = f"fewer than {FEW_TASKS} tasks: a bootstrap is too narrow"
_ONE_TASK = "one task: no interval over tasks"
ERROR_RATE = 0.05
_TAIL = 0.975
"""Probability below the upper end of a 95 % interval."""
_NO_VARIANCE = 1e-24
"""Rounding leaves a variance below this where values agree exactly."""
Limits = tuple[float, float]
K = TypeVar("K")
T = TypeVar("T")


class Observation(NamedTuple):
    """The value of one pair."""

    key: PairKey
    value: float


class Cluster(NamedTuple):
    """The pairs of one task: their number, and the sum of their values."""

    size: int
    total: float


@dataclass(frozen=True)
class Estimate:
    """A mean, a difference or a ratio over pairs, with its interval."""

    value: float | None
    low: float | None
    """Ends of the interval; None if there is none, and `note` says why."""
    high: float | None
    n: int
    clusters: int
    method: str
    design_effect: float | None = None
    """Variance divided by that of as many independent pairs."""
    note: str = ""


def cluster_of(key: PairKey) -> tuple[str, int]:
    """Return the task of a pair, which is its cluster in every computation."""
    return key.repo, key.task_id


def clusters_of(observations: Iterable[Observation]) -> list[Cluster]:
    """Return the clusters in the order of tasks, so that a seeded bootstrap is reproducible."""
    values = grouped((cluster_of(key), value) for key, value in observations)
    return [Cluster(len(values[task]), sum(values[task])) for task in sorted(values)]


def observe(
    pairs: Iterable[PairData], value_of: Callable[[PairData], float | None]
) -> list[Observation]:
    """Return the values of the pairs that have one."""
    observations = []
    for pair in pairs:
        value = value_of(pair)
        if value is not None:
            observations.append(Observation(pair.key, float(value)))
    return observations


def observe_verdict(pairs: Iterable[PairData], verdict: str = "overall") -> list[Observation]:
    """Return 1 or 0 for each pair that has this verdict."""
    return observe(pairs, lambda pair: pair.verdicts.get(verdict))


def grouped(items: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the values by key, in their order."""
    groups: dict[K, list[T]] = {}
    for key, value in items:
        groups.setdefault(key, []).append(value)
    return groups


def means_by_pair(observations: Iterable[Observation]) -> dict[PairKey, float]:
    """Return the mean of each pair over its repetitions, in the order of pairs."""
    return {key: fmean(values) for key, values in grouped(sorted(observations)).items()}


def differences(
    minuends: Sequence[Observation], subtrahends: Sequence[Observation]
) -> list[Observation]:
    """Return the differences of two lists with the same pairs in the same order."""
    return [
        Observation(minuend.key, minuend.value - subtrahend.value)
        for minuend, subtrahend in zip(minuends, subtrahends, strict=True)
    ]


class Sample:
    """A mean over observations, and its variance for independent pairs and for clusters."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        """Compute the mean and both variances; they are 0 for a single task."""
        self.clusters = clusters_of(observations)
        self.n = len(observations)
        self.tasks = len(self.clusters)
        self.mean = _mean_of_clusters(self.clusters)
        self.independent_variance = 0.0
        self.clustered_variance = 0.0
        if self.tasks > 1:
            squares = math.fsum((value - self.mean) ** 2 for _, value in observations)
            self.independent_variance = squares / (self.n * (self.n - 1))
            # The sandwich estimator with its correction for few clusters.
            squares = math.fsum(
                (cluster.total - cluster.size * self.mean) ** 2 for cluster in self.clusters
            )
            self.clustered_variance = self.tasks / (self.tasks - 1) * squares / self.n**2

    @property
    def varies(self) -> bool:
        """Whether there are at least two tasks and not all values agree."""
        return self.independent_variance >= _NO_VARIANCE

    @property
    def design_effect(self) -> float | None:
        """Clustered variance divided by that of independent pairs; None without variance."""
        return self.clustered_variance / self.independent_variance if self.varies else None

    @property
    def standard_error(self) -> float:
        """Standard error of the mean, by the larger of the two variances."""
        return math.sqrt(max(self.independent_variance, self.clustered_variance))


def rate(observations: Sequence[Observation], method: Method = "clustered") -> Estimate:
    """Estimate the mean of zeros and ones over pairs, or of other values between 0 and 1."""
    return mean(observations, SHARE, method)


def mean(
    observations: Sequence[Observation], limits: Limits | None = None, method: Method = "clustered"
) -> Estimate:
    """Estimate a mean over pairs.

    Args:
        observations: The values.
        limits: Smallest and largest possible value, which the interval does not exceed either.
        method: How to compute the interval. Wilson is for rates only; other means are clustered.
    """
    if not observations:
        return Estimate(None, None, None, 0, 0, method, note="no pairs with a verdict")
    sample = Sample(observations)
    if method == "wilson" and limits == SHARE:
        low, high = wilson_bounds(sample.mean, sample.n)
        return _sample_estimate(sample, low, high, "wilson")
    if sample.tasks == 1:
        shown_method = "clustered" if method == "wilson" else method
        return Estimate(sample.mean, None, None, sample.n, 1, shown_method, note=_ONE_TASK)
    if not sample.varies:
        return _estimate_without_variance(sample, limits)
    if method == "bootstrap":
        means = [_mean_of_clusters(clusters) for clusters in _resamples(sample.clusters)]
        low, high = _percentile_interval(means)
        note = _TOO_NARROW if sample.tasks < FEW_TASKS else ""
        return _sample_estimate(sample, *_clamp(low, high, limits), "bootstrap", note)
    half_width = t_quantile(_TAIL, sample.tasks - 1) * sample.standard_error
    low, high = sample.mean - half_width, sample.mean + half_width
    return _sample_estimate(sample, *_clamp(low, high, limits), "clustered")


def _sample_estimate(
    sample: Sample, low: float, high: float, method: str, note: str = ""
) -> Estimate:
    return Estimate(
        value=sample.mean,
        low=low,
        high=high,
        n=sample.n,
        clusters=sample.tasks,
        method=method,
        design_effect=sample.design_effect,
        note=note,
    )


def _clamp(low: float, high: float, limits: Limits | None) -> tuple[float, float]:
    if limits is None:
        return low, high
    return max(limits[0], low), min(limits[1], high)


def ratio(numerators: Sequence[Observation], denominators: Sequence[Observation]) -> Estimate:
    """Estimate a sum divided by a sum, for the same pairs in the same order.

    The interval is a bootstrap over tasks.
    """
    clusters = list(zip(clusters_of(numerators), clusters_of(denominators), strict=True))
    n, tasks = len(denominators), len(clusters)
    value = _ratio_of_clusters(clusters)
    if value is None:
        return Estimate(None, None, None, n, tasks, "bootstrap", note="undefined: divided by 0")
    if tasks == 1:
        return Estimate(value, None, None, n, 1, "bootstrap", note=_ONE_TASK)
    resampled = [_ratio_of_clusters(sample) for sample in _resamples(clusters)]
    defined = [ratio for ratio in resampled if ratio is not None]
    notes = []
    if tasks < FEW_TASKS:
        notes.append(_TOO_NARROW)
    undefined = RESAMPLES - len(defined)
    if undefined:
        notes.append(f"{undefined} of {RESAMPLES} resamples left out: divided by 0")
    low, high = _percentile_interval(defined)
    return Estimate(value, low, high, n, tasks, "bootstrap", note="; ".join(notes))


def _ratio_of_clusters(clusters: Sequence[tuple[Cluster, Cluster]]) -> float | None:
    """Return the sum of the first clusters divided by that of the second; None if that is 0."""
    divisor = sum(denominator.total for _, denominator in clusters)
    if not divisor:
        return None
    return sum(numerator.total for numerator, _ in clusters) / divisor


def p_value(observations: Sequence[Observation]) -> float | None:
    """Return the two-sided p-value for a mean of zero, by the same t as the clustered interval.

    If all pairs agree, there is no variance, and the sign test over tasks is used.

    Returns:
        None with fewer than two tasks.
    """
    if not observations:
        return None
    sample = Sample(observations)
    if sample.tasks < 2:
        return None
    if not sample.varies:
        return 2.0 ** (1 - sample.tasks) if sample.mean else 1.0
    return 2.0 * (1.0 - t_cdf(abs(sample.mean) / sample.standard_error, sample.tasks - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm.

    One false finding among all tests is then as rare as in a single test.
    """
    ascending = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(ascending):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def power(observations: Sequence[Observation], tests: int = 1) -> tuple[float | None, int | None]:
    """Return what these pairs can show.

    Args:
        observations: The values.
        tests: Number of tests that share the error rate.

    Returns:
        The smallest mean that these pairs show with a probability of `POWER`, and the number of
        pairs (with as many per task) needed to show a mean like the observed one. None without
        variance.
    """
    if not observations:
        return None, None
    sample = Sample(observations)
    if not sample.varies:
        return None, None
    tail = 1.0 - ERROR_RATE / (2 * tests)
    degrees = sample.tasks - 1
    quantiles_sum = t_quantile(tail, degrees) + t_quantile(POWER, degrees)
    smallest = quantiles_sum * sample.standard_error
    if not sample.mean:
        return smallest, None
    normal = NormalDist()
    needed = (normal.inv_cdf(tail) + normal.inv_cdf(POWER)) * sample.standard_error
    return smallest, math.ceil(sample.n * (needed / sample.mean) ** 2)


def mcnemar_exact(one_way: int, other_way: int) -> float:
    """Return the two-sided p-value of the changes in both directions.

    Without a difference each direction is as likely as heads or tails of a fair coin.
    """
    changes = one_way + other_way
    fewer = min(one_way, other_way)
    tail = sum(math.comb(changes, count) for count in range(fewer + 1))
    return min(1.0, 2 * tail / (1 << changes))


def wilson_bounds(share: float, n: float) -> tuple[float, float]:
    """Return the ends of the Wilson score interval of a rate."""
    z = NormalDist().inv_cdf(_TAIL)
    shrink = 1.0 + z * z / n
    centre = (share + z * z / (2.0 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n))
    # At a rate of 0 or 1 the bound is exactly that, which rounding must not hide.
    low = 0.0 if share == 0.0 else max(0.0, centre - half)
    high = 1.0 if share == 1.0 else min(1.0, centre + half)
    return low, high


def _mean_of_clusters(clusters: Sequence[Cluster]) -> float:
    total = math.fsum(cluster.total for cluster in clusters)
    return total / sum(cluster.size for cluster in clusters)


def _estimate_without_variance(sample: Sample, limits: Limits | None) -> Estimate:
    """Return an estimate for pairs that all agree.

    Each task counts as one trial, which gives the widest interval for correlated pairs.
    """
    if limits is None:
        note = "all pairs agree: no interval"
        return Estimate(sample.mean, None, None, sample.n, sample.tasks, "none", note=note)
    bottom, top = limits
    if sample.mean == 0.0 and bottom < 0.0:
        # Nothing differs: what is uncertain is the share of tasks in which something could.
        high = wilson_bounds(0.0, sample.tasks)[1] * top
        low = -high
    else:
        span = top - bottom
        low_share, high_share = wilson_bounds((sample.mean - bottom) / span, sample.tasks)
        low, high = bottom + low_share * span, bottom + high_share * span
    return Estimate(
        value=sample.mean,
        low=low,
        high=high,
        n=sample.n,
        clusters=sample.tasks,
        method="wilson over tasks",
        note="all pairs agree: Wilson interval over tasks instead",
    )


def _resamples(clusters: Sequence[T]) -> Iterator[list[T]]:
    """Yield lists of tasks drawn with replacement, the same lists each time."""
    source = random.Random(SEED)  # noqa: S311  # not for secrets: the draws must be reproducible
    for _ in range(RESAMPLES):
        yield source.choices(clusters, k=len(clusters))


def _percentile_interval(values: list[float]) -> tuple[float, float]:
    """Return the ends of a 95 % interval, interpolated linearly between values as numpy does."""
    if len(values) < 2:
        return values[0], values[-1]
    cuts = quantiles(values, n=40, method="inclusive")
    return cuts[0], cuts[-1]


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """Return the value that Student's t does not exceed with a probability of at least one half.

    It is found by bisection.
    """
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        low, high = high, 2.0 * high
    while True:
        middle = (low + high) / 2.0
        if not low < middle < high:
            return middle
        if t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle


def t_cdf(value: float, degrees: int) -> float:
    """Return P(T ≤ value) of Student's t.

    For whole degrees of freedom it is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    angle = math.atan(value / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    is_odd = degrees % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = term if degrees > 1 else 0.0
    for factor in range(3 if is_odd else 2, degrees - 1, 2):
        term *= square * (factor - 1) / factor
        total += term
    central = math.sin(angle) * total
    if is_odd:
        return 0.5 + (angle + central) / math.pi
    return 0.5 + central / 2.0
