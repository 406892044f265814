"""A number with its interval, and what the interval rests on.

Three methods: `wilson` takes pairs for independent, `clustered` (the default) does not and uses Student's t with one
degree of freedom less than there are tasks, `bootstrap` draws whole tasks. Few tasks can agree by luck, so a clustered
variance below that of independent pairs is not believed. Where a method has no answer (one task, no variance at all)
`note` says so. docs/statistics.md has the formulas.

The cluster of a pair is its task: pairs of one task share a repository, a base commit and features (a feature is in
several pairs), so their outcomes are correlated: 652 pairs of 30 tasks tell less than 652 independent ones.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cooperbench.report import Method
    from cooperbench.report.records import PairKey

RESAMPLES = 2000
SEED = 20260101
FEW_TASKS = 10
"""With fewer, a bootstrap over tasks says that it is too narrow."""
T = TypeVar("T")
POWER = 0.8
_ERROR = 0.05
_TAIL = 0.975
"""Both sides of a 95 % interval."""
_NO_VARIANCE = 1e-24
"""Rounding leaves less than this where values agree exactly."""


class Observation(NamedTuple):
    """One number about one pair."""

    key: PairKey
    value: float


class Cluster(NamedTuple):
    """The observations of one task."""

    size: int
    total: float


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


def cluster_of(key: PairKey) -> tuple[str, int]:
    """The one place that says so, for standard errors, degrees of freedom and the bootstrap alike."""
    return key.repo, key.task_id


def clusters_of(observations: Iterable[Observation]) -> list[Cluster]:
    """In the order of tasks, so that a seeded bootstrap does not depend on the input's order."""
    values: dict[tuple[str, int], list[float]] = {}
    for key, value in observations:
        values.setdefault(cluster_of(key), []).append(value)
    return [Cluster(len(values[task]), sum(values[task])) for task in sorted(values)]


def wilson(passed: int, n: int) -> Estimate:
    """A rate whose trials are independent, e.g. one bucket of a curve as the paper draws it."""
    if not n:
        return _nothing("wilson")
    return Estimate(passed / n, *_wilson_bounds(passed / n, n), n, n, "wilson")


def rate(observations: Sequence[Observation], method: Method = "clustered") -> Estimate:
    """The mean of zeros and ones over pairs, or of other values between 0 and 1."""
    if method != "wilson" or not observations:
        return mean(observations, (0.0, 1.0), method)
    clusters = clusters_of(observations)
    value, n = _overall(clusters), len(observations)
    bounds = _wilson_bounds(value, n)
    return Estimate(value, *bounds, n, len(clusters), "wilson", design_effect(observations))


def mean(
    observations: Sequence[Observation],
    limits: tuple[float, float] | None = None,
    method: Method = "clustered",
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
        return _all_agree(value, n, len(clusters), limits)
    note = ""
    if method == "bootstrap":
        low, high = _percentiles([_overall(drawn) for drawn in _resamples(clusters)])
        note = f"fewer than {FEW_TASKS} tasks: a bootstrap is too narrow" if len(clusters) < FEW_TASKS else ""
    else:
        half = t_quantile(_TAIL, len(clusters) - 1) * standard_error(observations)
        low, high = value - half, value + half
    if limits is not None:
        low, high = max(limits[0], low), min(limits[1], high)
    return Estimate(value, low, high, n, len(clusters), method, effect, note)


def ratio(above: Sequence[Observation], below: Sequence[Observation]) -> Estimate:
    """Sum over sum, for the same pairs in the same order, with a bootstrap over tasks."""
    upper, lower = clusters_of(above), clusters_of(below)
    n, tasks, total = len(below), len(lower), sum(cluster.total for cluster in lower)
    if not total:
        return Estimate(None, None, None, n, tasks, "bootstrap", note="undefined: divided by 0")
    value = sum(cluster.total for cluster in upper) / total
    if tasks == 1:
        return Estimate(value, None, None, n, 1, "bootstrap", note="one task: no interval over tasks")
    drawn = [
        sum(over.total for over, _ in sample) / divisor
        for sample in _resamples(list(zip(upper, lower, strict=True)))
        if (divisor := sum(under.total for _, under in sample))
    ]
    lost = RESAMPLES - len(drawn)
    note = f"{lost} of {RESAMPLES} resamples left out: divided by 0" if lost else ""
    return Estimate(value, *_percentiles(drawn), n, tasks, "bootstrap", note=note)


def design_effect(observations: Sequence[Observation]) -> float | None:
    """Clustered variance of the mean over that of independent observations."""
    clusters = clusters_of(observations)
    if len(clusters) < 2:
        return None
    independent = _independent_variance(observations, _overall(clusters))
    return _clustered_variance(clusters) / independent if independent > _NO_VARIANCE else None


def standard_error(observations: Sequence[Observation]) -> float:
    """Of the mean over pairs of at least two tasks."""
    clusters = clusters_of(observations)
    independent = _independent_variance(observations, _overall(clusters))
    return math.sqrt(max(independent, _clustered_variance(clusters)))


def p_value(observations: Sequence[Observation]) -> float | None:
    """Two-sided, for a mean of zero, by the same t as the clustered interval; None with fewer than two tasks.

    Where all pairs agree there is no variance: then by the sign test over tasks.
    """
    clusters = clusters_of(observations)
    if len(clusters) < 2:
        return None
    value, error = _overall(clusters), standard_error(observations)
    if error**2 < _NO_VARIANCE:
        return 2.0 ** (1 - len(clusters)) if value else 1.0
    return 2.0 * (1.0 - t_cdf(abs(value) / error, len(clusters) - 1))


def holm(values: Sequence[float]) -> list[float]:
    """p-values of several tests, corrected so that one false finding among all of them stays as rare as in one test."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted


class Power(NamedTuple):
    """What a probability of `POWER` to show a mean that is not zero takes; None where there is no variance."""

    smallest_effect: float | None = None
    """That these pairs show with it."""
    pairs_needed: int | None = None
    """To show a mean like the one seen, with as many pairs in a task as here; None where that is zero, too."""


def power(observations: Sequence[Observation], tests: int = 1) -> Power:
    """`tests`: how many share the error rate."""
    clusters = clusters_of(observations)
    if len(clusters) < 2 or (error := standard_error(observations)) ** 2 < _NO_VARIANCE:
        return Power()
    tail, normal, degrees = 1.0 - _ERROR / (2 * tests), NormalDist(), len(clusters) - 1
    smallest = (t_quantile(tail, degrees) + t_quantile(POWER, degrees)) * error
    needed = (normal.inv_cdf(tail) + normal.inv_cdf(POWER)) * error
    value = _overall(clusters)
    return Power(smallest, math.ceil(len(observations) * (needed / value) ** 2) if value else None)


def mcnemar_exact(one_way: int, other_way: int) -> float:
    """Two-sided p-value of the flips in both directions: under no difference each direction is a fair coin's toss."""
    flips = one_way + other_way
    tail = sum(math.comb(flips, count) for count in range(min(one_way, other_way) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**flips)))


def _nothing(method: str) -> Estimate:
    return Estimate(None, None, None, 0, 0, method, note="no pairs with a verdict")


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


def _all_agree(value: float, n: int, clusters: int, limits: tuple[float, float] | None) -> Estimate:
    """No variance to go by: as if each task were one trial, the widest reading of correlated pairs."""
    if limits is None:
        return Estimate(value, None, None, n, clusters, "none", None, "all pairs agree: no interval")
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
    ordered = sorted(values)
    return _at(ordered, 1.0 - _TAIL), _at(ordered, _TAIL)


def _at(ordered: Sequence[float], share: float) -> float:
    """Between two neighbours linearly, as numpy does."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """The value that Student's t does not exceed with this probability (at least one half), by bisection."""
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        low, high = high, 2.0 * high
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2.0


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
