"""Numbers as people read them in reports: a rate with its interval, a difference in points, a p-value."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cooperbench.report.statistics.intervals import Estimate
    from cooperbench.report.summary import PairKey

NOTHING = "–"
_FIXED_SPACE = "\u00a0"
"""A cell that has to be broken is broken before its interval, not before its unit."""


def hundredths_text(share: float, digits: int = 0) -> str:
    """`63` for 0.625: halves go away from zero. `hundredths` in the page's 2_format.js says the same of every share.

    29/200 is 14.5 %, though 100 times its nearest floating-point number is a little less: so what differs in the tenth
    decimal only does not count.
    """
    exact = Decimal(100 * share).quantize(Decimal("1e-9"), ROUND_HALF_UP)
    shown = exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{abs(shown) if shown.is_zero() else shown}".replace("-", "−")


def percent_text(value: float | None) -> str:
    return NOTHING if value is None else f"{hundredths_text(value)}{_FIXED_SPACE}%"


def rate_text(estimate: Estimate) -> str:
    """`63 % [50–73]`; without an interval only the rate."""
    if estimate.low is None or estimate.high is None:
        return percent_text(estimate.value)
    return (
        f"{percent_text(estimate.value)} [{hundredths_text(estimate.low)}–{hundredths_text(estimate.high)}]"
    )


def points_text(estimate: Estimate) -> str:
    """`−4.2 points [−10.1, +1.7]`, of a difference between rates."""
    if estimate.value is None:
        return NOTHING
    text = f"{_signed(estimate.value)}{_FIXED_SPACE}points"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{_signed(estimate.low)},{_FIXED_SPACE}{_signed(estimate.high)}]"


def _signed(value: float) -> str:
    shown = hundredths_text(value, 1)
    return shown if shown == "0.0" or shown.startswith("−") else f"+{shown}"


def basis_text(estimate: Estimate) -> str:
    """What an interval rests on: `24 pairs of 4 tasks, design effect 1.3`."""
    pairs = f"{estimate.n} pair{'' if estimate.n == 1 else 's'}"
    tasks = f"{estimate.clusters} task{'' if estimate.clusters == 1 else 's'}"
    effect = "" if estimate.design_effect is None else f", design effect {estimate.design_effect:.1f}"
    return f"{pairs} of {tasks}{effect}" + (f"; {estimate.note}" if estimate.note else "")


def p_text(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def area_text(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}".replace("-", "−")


def key_text(key: PairKey) -> str:
    return f"{key.repo}/task{key.task_id} " + "_".join(f"f{number}" for number in key.features)
