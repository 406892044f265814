"""A number with its interval, and what the interval rests on; docs/statistics.md has the formulas.

The cluster of a pair is its task: pairs of one task share a base commit and features, so their outcomes are correlated.
Few tasks can agree by luck, so a clustered variance below that of independent pairs is not believed.
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
"""With fewer, a bootstrap over tasks says that it is too narrow."""
_TOO_NARROW = f"fewer than {FEW_TASKS} tasks: a bootstrap is too narrow"
POWER = 0.8
SHARE = (0.0, 1.0)
CHANGE_OF_SHARE = (-1.0, 1.0)
_ERROR = 0.05
_TAIL = 0.975
"""Both sides of a 95 % interval."""
_NO_VARIANCE = 1e-24
"""Rounding leaves less than this where values agree exactly."""
K = TypeVar("K")
T = TypeVar("T")


class Observation(NamedTuple):
    key: PairKey
    value: float


class Cluster(NamedTuple):
    size: int
    total: float


@dataclass(frozen=True)
class Estimate:
    """A mean (or difference, or ratio) over pairs."""

    value: float | None
    low: float | None
    high: float | None
    """None where there is no interval; `note` says why."""
    n: int
    clusters: int
    method: str
    design_effect: float | None = None
    """How many times larger the variance is than that of as many independent pairs."""
    note: str = ""


def cluster_of(key: PairKey) -> tuple[str, int]:
    """For standard errors, degrees of freedom and the bootstrap alike."""
    return key.repo, key.task_id


def clusters_of(observations: Iterable[Observation]) -> list[Cluster]:
    """In the order of tasks, so that a seeded bootstrap does not depend on the input's order."""
    values = grouped((cluster_of(key), value) for key, value in observations)
    return [Cluster(len(values[task]), sum(values[task])) for task in sorted(values)]


def observe(
    pairs: Iterable[PairData], value: Callable[[PairData], float | None]
) -> list[Observation]:
    """The value of each pair that has one."""
    known = ((pair.key, value(pair)) for pair in pairs)
    return [Observation(key, float(one)) for key, one in known if one is not None]


def observe_verdict(pairs: Iterable[PairData], name: str = "overall") -> list[Observation]:
    return observe(pairs, lambda pair: pair.verdicts.get(name))


def grouped(items: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """What comes with the same key together, in the order given."""
    found: dict[K, list[T]] = {}
    for key, one in items:
        found.setdefault(key, []).append(one)
    return found


def means_by_pair(observations: Iterable[Observation]) -> dict[PairKey, float]:
    """Over all values where a pair was run several times; in the order of pairs."""
    return {key: fmean(values) for key, values in grouped(sorted(observations)).items()}


def differences(above: Sequence[Observation], below: Sequence[Observation]) -> list[Observation]:
    """For the same pairs in the same order."""
    return [
        Observation(one.key, one.value - other.value)
        for one, other in zip(above, below, strict=True)
    ]


class Sample:
    """A mean over observations, and its variance as if pairs were independent and as tasks have it."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self.clusters = clusters_of(observations)
        self.n, self.tasks = len(observations), len(self.clusters)
        self.mean = _overall(self.clusters)
        self.independent = self.clustered = 0.0
        if self.tasks > 1:
            squares = math.fsum((value - self.mean) ** 2 for _, value in observations)
            self.independent = squares / (self.n * (self.n - 1))
            # The sandwich estimator with its correction for few clusters.
            squares = math.fsum((one.total - one.size * self.mean) ** 2 for one in self.clusters)
            self.clustered = self.tasks / (self.tasks - 1) * squares / self.n**2

    @property
    def varies(self) -> bool:
        """Among at least two tasks."""
        return self.independent >= _NO_VARIANCE

    @property
    def design_effect(self) -> float | None:
        return self.clustered / self.independent if self.varies else None

    @property
    def standard_error(self) -> float:
        return math.sqrt(max(self.independent, self.clustered))


def rate(observations: Sequence[Observation], method: Method = "clustered") -> Estimate:
    """The mean of zeros and ones over pairs, or of other values between 0 and 1."""
    return mean(observations, SHARE, method)


def mean(
    observations: Sequence[Observation],
    limits: tuple[float, float] | None = None,
    method: Method = "clustered",
) -> Estimate:
    """A mean over pairs of values within `limits`, which the interval does not leave either; None: no limits.

    Wilson is for rates only: another mean is clustered.
    """
    if not observations:
        return Estimate(None, None, None, 0, 0, method, note="no pairs with a verdict")
    sample = Sample(observations)
    n, tasks, value, note = sample.n, sample.tasks, sample.mean, ""
    if method == "wilson" and limits == SHARE:
        return Estimate(value, *_wilson_bounds(value, n), n, tasks, method, sample.design_effect)
    method = "clustered" if method == "wilson" else method
    if tasks == 1:
        return Estimate(value, None, None, n, 1, method, None, "one task: no interval over tasks")
    if not sample.varies:
        return _all_agree(value, n, tasks, limits)
    if method == "bootstrap":
        low, high = _percentiles([_overall(drawn) for drawn in _resamples(sample.clusters)])
        note = _TOO_NARROW if tasks < FEW_TASKS else ""
    else:
        half = t_quantile(_TAIL, tasks - 1) * sample.standard_error
        low, high = value - half, value + half
    if limits is not None:
        low, high = max(limits[0], low), min(limits[1], high)
    return Estimate(value, low, high, n, tasks, method, sample.design_effect, note)


def ratio(above: Sequence[Observation], below: Sequence[Observation]) -> Estimate:
    """Sum over sum, for the same pairs in the same order, with a bootstrap over tasks."""
    upper, lower = clusters_of(above), clusters_of(below)
    n, tasks, total = len(below), len(lower), sum(cluster.total for cluster in lower)
    if not total:
        return Estimate(None, None, None, n, tasks, "bootstrap", note="undefined: divided by 0")
    value = sum(cluster.total for cluster in upper) / total
    if tasks == 1:
        return Estimate(
            value, None, None, n, 1, "bootstrap", note="one task: no interval over tasks"
        )
    drawn = [
        sum(over.total for over, _ in sample) / divisor
        for sample in _resamples(list(zip(upper, lower, strict=True)))
        if (divisor := sum(under.total for _, under in sample))
    ]
    notes = []
    if tasks < FEW_TASKS:
        notes.append(_TOO_NARROW)
    if lost := RESAMPLES - len(drawn):
        notes.append(f"{lost} of {RESAMPLES} resamples left out: divided by 0")
    return Estimate(value, *_percentiles(drawn), n, tasks, "bootstrap", note="; ".join(notes))


def p_value(observations: Sequence[Observation]) -> float | None:
    """Two-sided, for a mean of zero, by the same t as the clustered interval; None with fewer than two tasks.

    Where all pairs agree there is no variance: then by the sign test over tasks.
    """
    if not observations or (sample := Sample(observations)).tasks < 2:
        return None
    if not sample.varies:
        return 2.0 ** (1 - sample.tasks) if sample.mean else 1.0
    return 2.0 * (1.0 - t_cdf(abs(sample.mean) / sample.standard_error, sample.tasks - 1))


def holm(values: Sequence[float]) -> list[float]:
    """p-values of several tests, corrected so that one false finding among all of them stays as rare as in one test."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted


def power(observations: Sequence[Observation], tests: int = 1) -> tuple[float | None, int | None]:
    """The smallest mean that these pairs show with a probability of `POWER`, and how many pairs (as many in a task)
    it takes to show a mean like the one seen; None where there is no variance. `tests`: how many share the error rate.
    """
    if not observations or not (sample := Sample(observations)).varies:
        return None, None
    tail, normal, degrees = 1.0 - _ERROR / (2 * tests), NormalDist(), sample.tasks - 1
    smallest = (t_quantile(tail, degrees) + t_quantile(POWER, degrees)) * sample.standard_error
    needed = (normal.inv_cdf(tail) + normal.inv_cdf(POWER)) * sample.standard_error
    return smallest, math.ceil(sample.n * (needed / sample.mean) ** 2) if sample.mean else None


def mcnemar_exact(one_way: int, other_way: int) -> float:
    """Two-sided p-value of the flips in both directions: under no difference each direction is a fair coin's toss."""
    flips = one_way + other_way
    tail = sum(math.comb(flips, count) for count in range(min(one_way, other_way) + 1))
    return min(1.0, 2 * tail / (1 << flips))


def _wilson_bounds(share: float, n: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(_TAIL)
    shrink = 1.0 + z * z / n
    centre = (share + z * z / (2.0 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n))
    # At a rate of 0 or 1 the bound is exactly that, which rounding must not hide.
    low = 0.0 if share == 0.0 else max(0.0, centre - half)
    high = 1.0 if share == 1.0 else min(1.0, centre + half)
    return low, high


def _overall(clusters: Sequence[Cluster]) -> float:
    return math.fsum(cluster.total for cluster in clusters) / sum(
        cluster.size for cluster in clusters
    )


def _all_agree(value: float, n: int, clusters: int, limits: tuple[float, float] | None) -> Estimate:
    """No variance to go by: as if each task were one trial, the widest reading of correlated pairs."""
    if limits is None:
        return Estimate(
            value, None, None, n, clusters, "none", None, "all pairs agree: no interval"
        )
    bottom, top = limits
    if value == 0.0 and bottom < 0.0:
        # Nothing differs: what is uncertain is the share of tasks in which something could.
        high = _wilson_bounds(0.0, clusters)[1] * top
        low = -high
    else:
        bounds = _wilson_bounds((value - bottom) / (top - bottom), clusters)
        low, high = (bottom + bound * (top - bottom) for bound in bounds)
    note = "all pairs agree: Wilson interval over tasks instead"
    return Estimate(value, low, high, n, clusters, "wilson over tasks", None, note)


def _resamples(clusters: Sequence[T]) -> Iterator[list[T]]:
    """Tasks drawn with replacement; the same draws each time."""
    source = random.Random(SEED)  # noqa: S311  # no secret: it has to be the same each time
    for _ in range(RESAMPLES):
        yield source.choices(clusters, k=len(clusters))


def _percentiles(values: list[float]) -> tuple[float, float]:
    """The two ends of a 95 % interval; between two neighbours linearly, as numpy does."""
    cuts = quantiles(values, n=40, method="inclusive") if len(values) > 1 else values
    return cuts[0], cuts[-1]


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """The value that Student's t does not exceed with this probability (at least one half), by bisection."""
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        low, high = high, 2.0 * high
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return middle


def t_cdf(value: float, degrees: int) -> float:
    """P(T ≤ value) of Student's t: for whole degrees a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(value / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for factor in range(2 + odd, degrees - 1, 2):
        term *= square * (factor - 1) / factor
        total += term
    central = math.sin(angle) * total
    return 0.5 + ((angle + central) / math.pi if odd else central / 2.0)
