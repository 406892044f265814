"""Quantiles and tails that the standard library lacks: Student's t, and the binomial at one half."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

_PRECISION = 1e-15
_TINY = 1e-300
_MOST_TERMS = 10_000


def normal_quantile(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        # The fraction converges fast only on this side.
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    logarithm = (
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + a * math.log(x)
        + b * math.log1p(-x)
        - math.log(a)
    )
    return math.exp(logarithm) * _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluated from the front (Lentz): each round multiplies in two terms until they change nothing any more."""
    numerator, denominator = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = denominator
    for term in range(1, _MOST_TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        change = 1.0
        for coefficient in (even, odd):
            denominator = 1.0 / _away_from_zero(1.0 + coefficient * denominator)
            numerator = _away_from_zero(1.0 + coefficient / numerator)
            change = numerator * denominator
            value *= change
        if abs(change - 1.0) < _PRECISION:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def t_cdf(value: float, degrees: float) -> float:
    """P(T ≤ value) of Student's t."""
    tail = 0.5 * incomplete_beta(degrees / 2.0, 0.5, degrees / (degrees + value * value))
    return 1.0 - tail if value > 0 else tail


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """The value that T does not exceed with this probability, by bisection: slow enough to be cached, and safe."""
    if not 0.0 < probability < 1.0 or degrees < 1:
        raise ValueError(f"no t quantile for probability {probability} and {degrees} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, degrees)
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        low, high = high, 2.0 * high
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2.0


def mcnemar_exact(one_way: int, other_way: int) -> float:
    """Two-sided p-value of the flips in both directions: under no difference each direction is a fair coin's toss."""
    flips = one_way + other_way
    if not flips:
        return 1.0
    tail = sum(math.comb(flips, count) for count in range(min(one_way, other_way) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**flips)))
