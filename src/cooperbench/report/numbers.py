"""Numbers as people read them in reports: a rate with its interval, a difference in points, a p-value."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cooperbench.report.statistics.intervals import Estimate
    from cooperbench.report.summary import PairKey

NOTHING = "–"
_FIXED_SPACE = "\u00a0"
"""A cell that has to be broken is broken before its interval, not before its unit."""


def percent_text(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f}{_FIXED_SPACE}%"


def rate_text(estimate: Estimate) -> str:
    """`62 % [50–73]`; without an interval only the rate."""
    if estimate.low is None or estimate.high is None:
        return percent_text(estimate.value)
    return f"{percent_text(estimate.value)} [{100 * estimate.low:.0f}–{100 * estimate.high:.0f}]"


def points_text(estimate: Estimate) -> str:
    """`−4.2 points [−10.1, +1.7]`, of a difference between rates."""
    if estimate.value is None:
        return NOTHING
    text = f"{_signed(estimate.value)}{_FIXED_SPACE}points"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{_signed(estimate.low)},{_FIXED_SPACE}{_signed(estimate.high)}]"


def _signed(value: float) -> str:
    shown = f"{100 * value:+.1f}"
    return "0.0" if shown in ("+0.0", "-0.0") else shown.replace("-", "−")


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
