"""Tables of studies: results by level of each factor, and the effects (`studies.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from cooperbench.report.formatting import (
    Cell,
    Rows,
    Table,
    basis_text,
    decimal_text,
    p_text,
    percent_text,
    points_text,
    rate_text,
)
from cooperbench.report.pairs import VERDICTS
from cooperbench.report.registration import status_lines
from cooperbench.report.statistics import POWER, Estimate
from cooperbench.report.studies import MEASURES, Effect, FactorCurve, LevelPoint, Study

_DIGITS = {"dollars": 3, "seconds": 1}


def study_tables(study: Study) -> Iterator[Table]:
    """Yield a table by level for each factor with more than two levels, and that of all effects."""
    for curve in study.factors:
        if len(curve.points) > 2:
            yield level_table(study.study, curve)
    yield effects_table(study)


def level_table(study: str, curve: FactorCurve) -> Table:
    """Return the means of all measures at each level of a factor, a row for each level."""
    with_values: set[str] = set()
    for point in curve.points:
        with_values.update(point.means)
    measures = [measure for measure in MEASURES if measure in with_values]
    rows: Rows = []
    for point in curve.points:
        row: list[Cell] = [point.level]
        for measure in measures:
            row.append(_mean_cell(point.means.get(measure), MEASURES[measure]))
            if measure == "overall":
                row.append(_change_cell(point, curve))
        rows.append(row)
    headings = [curve.factor]
    for measure in measures:
        headings.append(measure)
        if measure == "overall":
            headings.append(f"since {curve.points[0].level}")
    overall = curve.points[-1].means.get("overall")
    notes = ["The same pairs at every level; 95 % intervals clustered by task"]
    if overall is not None:
        notes.append(f"overall: {basis_text(overall)}")
    return Table(f"By {curve.factor}: {study}", headings, rows, notes)


def _mean_cell(estimate: Estimate | None, unit: str) -> Cell:
    if estimate is None:
        return None
    return rate_text(estimate) if unit == "share" else _amount_estimate(estimate, unit)


def _change_cell(point: LevelPoint, curve: FactorCurve) -> Cell:
    change = point.changes.get("overall")
    return None if change is None or point is curve.points[0] else points_text(change)


def effects_table(study: Study) -> Table:
    """Return the effect of each factor on each measure."""
    headings = [
        *("factor", "measure", "plan", "n", "tasks", "from", "to", "difference", "per step"),
        *("p", "Holm", "would show", "pairs needed", "CMH by task"),
    ]
    rows = [_effect_row(effect) for effect in study.effects]
    if not any(effect.slope for effect in study.effects):
        column = headings.index("per step")
        del headings[column]
        for row in rows:
            del row[column]
    return Table(f"Effects: {study.study}", headings, rows, list(_effect_notes(study)))


def _effect_row(effect: Effect) -> list[Cell]:
    stratified = effect.stratified
    by_task = stratified.by_task if stratified else None
    return [
        effect.factor,
        effect.measure,
        effect.status,
        effect.difference.n,
        effect.difference.clusters,
        f"{effect.first_level}: {amount_text(effect.first, effect.unit)}",
        f"{effect.last_level}: {amount_text(effect.last, effect.unit)}",
        change_text(effect.difference, effect.unit),
        None if effect.slope is None else change_text(effect.slope, effect.unit),
        None if effect.p is None else p_text(effect.p),
        None if effect.p_holm is None else p_text(effect.p_holm),
        amount_text(effect.smallest_effect, effect.unit),
        effect.pairs_needed,
        None if by_task is None else p_text(by_task.p),
    ]


def _effect_notes(study: Study) -> Iterator[str]:
    power = f"{round(100 * POWER)} %"
    yield from study.registration.lines()
    yield from _incomplete_lines(study)
    yield from status_lines(effect.status for effect in study.effects)
    yield (
        "difference: the last level minus the first, over the pairs with a value at all levels;"
        " 95 % intervals clustered by task"
    )
    if any(effect.slope for effect in study.effects):
        yield "per step: by a straight line through equally spaced levels"
    yield "p: of the trend over all levels, clustered by task (of two levels: the difference)"
    if any(effect.test == "heterogeneity" for effect in study.effects):
        yield "p of levels without an order: the smallest of all comparisons, times their number"
    yield "Holm: p corrected over the factors of this table, for each measure"
    yield f"would show: the smallest effect that this many pairs show with a probability of {power}"
    yield (
        f"pairs needed: to show an effect as large as the observed one with {power},"
        " if it was not shown"
    )
    yield "CMH by task: Cochran–Mantel–Haenszel, which counts results within a task as independent"
    for name, meaning in VERDICTS.items():
        yield f"{name}: {meaning}"
    yield "conflict: the patches conflict in plain git; cost and time: of a pair"


def _incomplete_lines(study: Study) -> Iterator[str]:
    """Yield a line for each planned test that has fewer pairs than planned."""
    plan = study.registration.plan
    for effect in study.effects:
        if plan is not None and effect.status != "exploratory":
            pairs, planned = effect.difference.n, len(plan.pairs)
            if pairs < planned:
                yield f"{effect.factor}, {effect.measure}: {pairs:,} of {planned:,} planned pairs"


def amount_text(value: float | None, unit: str) -> str:
    """Return a rate, dollars or seconds."""
    if unit == "share" or value is None:
        return percent_text(value)
    text = decimal_text(value, _DIGITS[unit])
    return f"${text}" if unit == "dollars" else f"{text} s"


def change_text(estimate: Estimate, unit: str) -> str:
    """Return a difference with its interval."""
    if unit == "share" or estimate.value is None:
        return points_text(estimate)
    return _amount_estimate(estimate, unit)


def _amount_estimate(estimate: Estimate, unit: str) -> str:
    """Return dollars or seconds with their interval."""
    amount = amount_text(estimate.value, unit)
    if estimate.low is None or estimate.high is None:
        return amount
    return f"{amount} [{_bounds_text(estimate.low, estimate.high, _DIGITS[unit])}]"


def _bounds_text(low: float, high: float, digits: int) -> str:
    return f"{decimal_text(low, digits)}, {decimal_text(high, digits)}"
