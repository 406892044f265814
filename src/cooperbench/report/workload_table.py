"""Tables of results over the number of agents at constant workload (`workload.py`)."""

from __future__ import annotations

from cooperbench.dataset.assignment import EVEN
from cooperbench.report.formatting import (
    Cell,
    Rows,
    Table,
    basis_text,
    decimal_text,
    points_text,
    rate_text,
)
from cooperbench.report.statistics import Estimate
from cooperbench.report.workload import MEASURES, RATES, WorkloadCurve, WorkloadPoint
from cooperbench.text import plural

_DIGITS = {"wall_seconds": 1, "tokens": 0, "cost": 3}


def workload_table(curve: WorkloadCurve) -> Table:
    """Return a table with a column for each number of agents.

    Each measure has a row with means, and one with changes since the smallest number of agents.
    """
    rows: Rows = []
    for measure, title in MEASURES.items():
        with_measure = [point for point in curve.points if measure in point.means]
        if not with_measure:
            continue
        first = with_measure[0]
        rows.append([title, *(_mean_cell(point, measure) for point in curve.points)])
        changes = [_change_cell(point, measure, first) for point in curve.points]
        rows.append([f"  since {first.agents}", *changes])
    basis = basis_text(curve.points[0].means["overall"]).replace("pair", "group")
    notes = [f"The same groups with every number of agents: {basis}"]
    if curve.split != EVEN:
        notes.append(f"Features were split {curve.split}")
    if curve.left_out:
        groups = plural(curve.left_out, "group")
        notes.append(f"{groups} without a verdict at every number of agents: left out")
    title = f"{curve.features} features by number of agents: {', '.join(curve.runs)}"
    headings = ["", *(plural(point.agents, "agent") for point in curve.points)]
    return Table(f"{title} ({curve.setting})", headings, rows, notes)


def _mean_cell(point: WorkloadPoint, measure: str) -> Cell:
    estimate = point.means.get(measure)
    if estimate is None:
        return None
    return rate_text(estimate) if measure in RATES else workload_amount_text(estimate, measure)


def _change_cell(point: WorkloadPoint, measure: str, first: WorkloadPoint) -> Cell:
    estimate = point.changes.get(measure)
    if estimate is None or point is first:
        return None
    if measure in RATES:
        return points_text(estimate)
    return workload_amount_text(estimate, measure, is_change=True)


def workload_amount_text(estimate: Estimate, measure: str, *, is_change: bool = False) -> str:
    """Return a number of seconds, tokens or dollars with its interval."""
    digits = _DIGITS[measure]
    text = decimal_text(estimate.value, digits)
    if is_change and (estimate.value or 0.0) > 0:
        text = f"+{text}"
    if measure == "cost":
        text = f"${text}"
    if measure == "wall_seconds":
        text = f"{text} s"
    if estimate.low is None or estimate.high is None:
        return text
    low, high = decimal_text(estimate.low, digits), decimal_text(estimate.high, digits)
    return f"{text} [{low}, {high}]"
