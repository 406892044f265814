"""Tests of success and failure over several levels, for independent observations.

They count every observation as one of its own. The tests over tasks are in `statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

_NO_VARIANCE = 1e-12
"""Rounding leaves a variance below this where there is none."""


@dataclass(frozen=True)
class Stratum:
    """Successes and observations at each level, of one pair or task."""

    successes: Sequence[float]
    totals: Sequence[float]


@dataclass(frozen=True)
class MantelHaenszel:
    """The Cochran–Mantel–Haenszel test of levels that have an order, or of two levels."""

    statistic: float
    """Distributed as χ² with one degree of freedom if the level has no effect."""
    p: float
    odds_ratio: float | None
    """Common odds ratio of the last level and the first; None for more than two levels, or if it
    is not finite."""


def cochran_armitage(
    successes: Sequence[float], totals: Sequence[float]
) -> tuple[float, float] | None:
    """Return z and the two-sided p-value of a trend over equally spaced levels.

    None if nothing varies.
    """
    count = math.fsum(totals)
    if not count:
        return None
    scores = range(len(totals))
    rate = math.fsum(successes) / count
    center = _weighted_mean(scores, totals)
    trend = math.fsum(
        (score - center) * success for score, success in zip(scores, successes, strict=True)
    )
    spread = math.fsum(
        total * (score - center) ** 2 for score, total in zip(scores, totals, strict=True)
    )
    variance = rate * (1.0 - rate) * spread
    if variance <= _NO_VARIANCE:
        return None
    z = trend / math.sqrt(variance)
    return z, 2.0 * NormalDist().cdf(-abs(z))


def mantel_haenszel(strata: Iterable[Stratum]) -> MantelHaenszel | None:
    """Return the test of a trend over equally spaced levels within strata.

    With two levels this is the Cochran–Mantel–Haenszel test without a continuity correction, and
    with one observation of each pair and level, McNemar's. None if nothing varies within a stratum.
    """
    strata = list(strata)
    deviation = 0.0
    variance = 0.0
    for stratum in strata:
        count = math.fsum(stratum.totals)
        if count < 2:
            continue
        scores = range(len(stratum.totals))
        center = _weighted_mean(scores, stratum.totals)
        passed = math.fsum(stratum.successes)
        spread = 0.0
        for score, success, total in zip(scores, stratum.successes, stratum.totals, strict=True):
            deviation += (score - center) * success
            spread += total * (score - center) ** 2
        # The variance of a hypergeometric sample: the margins of the table are fixed.
        variance += passed * (count - passed) * spread / (count * (count - 1))
    if variance <= _NO_VARIANCE:
        return None
    statistic = deviation**2 / variance
    return MantelHaenszel(
        statistic=statistic,
        p=math.erfc(math.sqrt(statistic / 2.0)),
        odds_ratio=_common_odds_ratio(strata),
    )


def _weighted_mean(scores: Sequence[int], weights: Sequence[float]) -> float:
    total = math.fsum(score * weight for score, weight in zip(scores, weights, strict=True))
    return total / math.fsum(weights)


def _common_odds_ratio(strata: Iterable[Stratum]) -> float | None:
    """Return the odds ratio by Mantel and Haenszel: the odds at the last of two levels."""
    numerator = 0.0
    denominator = 0.0
    for stratum in strata:
        if len(stratum.totals) != 2:
            return None
        count = math.fsum(stratum.totals)
        if not count:
            continue
        first_passed, last_passed = stratum.successes
        first_failed = stratum.totals[0] - first_passed
        last_failed = stratum.totals[1] - last_passed
        numerator += last_passed * first_failed / count
        denominator += first_passed * last_failed / count
    return numerator / denominator if denominator else None


def fisher_exact(successes: int, n: int, other_successes: int, other_n: int) -> float:
    """Return the two-sided p-value of Fisher's exact test for two independent rates."""
    total_successes = successes + other_successes
    tables = math.comb(n + other_n, total_successes)

    def probability(first: int) -> float:
        """Return the probability that so many of the successes belong to the first rate."""
        return math.comb(n, first) * math.comb(other_n, total_successes - first) / tables

    observed = probability(successes)
    lowest, highest = max(0, total_successes - other_n), min(total_successes, n)
    probabilities = [probability(first) for first in range(lowest, highest + 1)]
    # Tables that are as unlikely as the observed one must count in spite of rounding.
    return min(1.0, sum(value for value in probabilities if value <= observed * (1 + 1e-7)))
