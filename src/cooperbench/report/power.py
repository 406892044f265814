"""Sample size and power of a comparison of two levels, before there are results.

On the same pairs: each pair succeeds or fails at each level, so only the pairs that succeed at one
of the two levels count, as in McNemar's test. On repetitions of one pair: they are independent, and
compared by Fisher's exact test. docs/statistics.md has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from cooperbench.errors import UserError
from cooperbench.report.contingency import fisher_exact
from cooperbench.report.statistics import ERROR_RATE, POWER

DEFAULT_EFFECT = 0.15
DEFAULT_DISCORDANT = 0.5
"""As if the outcomes of a pair at two levels were independent, with a rate of one half each."""
_ROUNDING_ERROR = 1e-9
_MAX_EXACT_REPETITIONS = 20
"""More repetitions are too many to count all outcomes; an approximation is close by then."""


@dataclass(frozen=True)
class PairedDesign:
    """Assumptions about a comparison of two levels."""

    effect: float = DEFAULT_EFFECT
    """Difference between the two rates."""
    discordant: float = DEFAULT_DISCORDANT
    """Share of pairs that succeed at only one of the levels."""
    design_effect: float = 1.0
    """Variance over tasks, divided by that of independent pairs."""
    tests: int = 1
    """Number of tests that share the error rate."""

    def __post_init__(self) -> None:
        _check_discordant(self.effect, self.discordant)
        if self.design_effect <= 0:
            raise UserError(f"--design-effect is {self.design_effect:g}; it must be above 0")

    def power(self, pairs: int) -> float:
        """Return the probability that so many pairs show the effect."""
        effective = pairs / self.design_effect
        shift = self.effect * math.sqrt(effective) - self._critical * math.sqrt(self.discordant)
        return _probability_above_zero(shift, math.sqrt(self.discordant - self.effect**2))

    def pairs_needed(self, probability: float = POWER) -> int:
        """Return the number of pairs that show the effect with a probability."""
        deviation = math.sqrt(self.discordant - self.effect**2)
        quantile = NormalDist().inv_cdf(probability)
        root = self._critical * math.sqrt(self.discordant) + quantile * deviation
        return math.ceil(self.design_effect * (root / self.effect) ** 2)

    @property
    def _critical(self) -> float:
        """Quantile of the normal distribution at the corrected error rate."""
        return NormalDist().inv_cdf(1.0 - ERROR_RATE / (2 * self.tests))


@dataclass(frozen=True)
class RepeatedDesign:
    """Assumptions about repetitions of one pair in two arms."""

    effect: float = DEFAULT_EFFECT
    """Difference between the two rates."""
    discordant: float = DEFAULT_DISCORDANT
    """Probability that two repetitions, one of each arm, have different outcomes."""

    def __post_init__(self) -> None:
        _check_discordant(self.effect, self.discordant)
        limit = (1 + self.effect**2) / 2
        if self.discordant > limit + _ROUNDING_ERROR:
            raise UserError(
                f"--discordant is {self.discordant:g}; forks of one pair are independent, so that "
                f"it can be at most {limit:g} for --effect {self.effect:g}"
            )

    def power(self, repetitions: int) -> float:
        """Return the probability that so many repetitions of each arm show the effect."""
        if repetitions <= _MAX_EXACT_REPETITIONS:
            return self._exact_power(repetitions)
        root = math.sqrt(repetitions)
        shift = self.effect * (root - 1 / (self.effect * root)) - self._critical
        return _probability_above_zero(shift, self._deviation)

    def repetitions_needed(self, probability: float = POWER) -> int:
        """Return the number of repetitions of each arm that show the effect with a probability."""
        for repetitions in range(1, _MAX_EXACT_REPETITIONS + 1):
            if self._exact_power(repetitions) >= probability:
                return repetitions
        quantile = NormalDist().inv_cdf(probability)
        uncorrected = (self._critical + quantile * self._deviation) / self.effect
        root = (uncorrected + math.sqrt(uncorrected**2 + 4 / self.effect)) / 2
        return max(math.ceil(root**2), _MAX_EXACT_REPETITIONS + 1)

    def _exact_power(self, repetitions: int) -> float:
        """Return the probability of all outcomes that the test takes for an increase."""
        low_rate, high_rate = self._rates
        low = _binomial(repetitions, low_rate)
        high = _binomial(repetitions, high_rate)
        power = 0.0
        for successes in range(repetitions):
            for other_successes in range(successes + 1, repetitions + 1):
                p = fisher_exact(successes, repetitions, other_successes, repetitions)
                if p < ERROR_RATE:
                    power += low[successes] * high[other_successes]
        return min(1.0, power)

    @property
    def _rates(self) -> tuple[float, float]:
        """The two rates that have this difference and this probability of different outcomes.

        One minus these rates are the other solution, which has the same power.
        """
        discriminant = (1 - self.effect) ** 2 - 2 * (self.discordant - self.effect)
        low = (1 - self.effect - math.sqrt(max(0.0, discriminant))) / 2
        return low, min(1.0, low + self.effect)

    @property
    def _critical(self) -> float:
        """Difference that is significant, times the root of the number of repetitions."""
        mean = sum(self._rates) / 2
        return NormalDist().inv_cdf(1.0 - ERROR_RATE / 2) * math.sqrt(2 * mean * (1 - mean))

    @property
    def _deviation(self) -> float:
        """Standard deviation of the difference, times the root of the number of repetitions."""
        return math.sqrt(sum(rate * (1 - rate) for rate in self._rates))


def _check_discordant(effect: float, discordant: float) -> None:
    """Raise UserError if no two rates have this difference and share."""
    if not 0 < effect <= 1:
        raise UserError(f"--effect is {effect:g}; it must be above 0 and at most 1")
    if not effect <= discordant <= 1:
        raise UserError(
            f"--discordant is {discordant:g}; it must be from --effect "
            f"({effect:g}) to 1, because pairs that do not change have no effect"
        )


def _probability_above_zero(mean: float, deviation: float) -> float:
    """Return the probability that a normally distributed value is above zero."""
    if deviation == 0.0:
        return 1.0 if mean > 0 else 0.0
    return NormalDist().cdf(mean / deviation)


def _binomial(trials: int, rate: float) -> list[float]:
    """Return the probability of each number of successes."""
    return [
        math.comb(trials, successes) * rate**successes * (1 - rate) ** (trials - successes)
        for successes in range(trials + 1)
    ]
