"""Sample size and power of a comparison of two levels on the same pairs, before there are results.

Each pair succeeds or fails at each level, so only the pairs that succeed at one of the two levels
count, as in McNemar's test. docs/statistics.md has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from cooperbench.errors import UserError
from cooperbench.report.statistics import ERROR_RATE, POWER

DEFAULT_EFFECT = 0.15
DEFAULT_DISCORDANT = 0.5
"""As if the outcomes of a pair at two levels were independent, with a rate of one half each."""


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
        if not 0 < self.effect <= 1:
            raise UserError(f"--effect is {self.effect:g}; it must be above 0 and at most 1")
        if not self.effect <= self.discordant <= 1:
            raise UserError(
                f"--discordant is {self.discordant:g}; it must be from --effect "
                f"({self.effect:g}) to 1, because pairs that do not change have no effect"
            )
        if self.design_effect <= 0:
            raise UserError(f"--design-effect is {self.design_effect:g}; it must be above 0")

    def power(self, pairs: int) -> float:
        """Return the probability that so many pairs show the effect."""
        effective = pairs / self.design_effect
        shift = self.effect * math.sqrt(effective) - self._critical * math.sqrt(self.discordant)
        deviation = math.sqrt(self.discordant - self.effect**2)
        if deviation == 0.0:
            return 1.0 if shift > 0 else 0.0
        return NormalDist().cdf(shift / deviation)

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
