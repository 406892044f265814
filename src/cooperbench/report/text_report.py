"""An analysis, or a comparison, as tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.report.formatting import (
    NOTHING,
    Table,
    basis_text,
    decimal_text,
    first_lines,
    p_text,
    percent_text,
    points_text,
    rate_text,
)
from cooperbench.report.loading import left_out_lines
from cooperbench.report.states import ENDED, NOT_JUDGED, STATES, VERDICTS
from cooperbench.text import dollars_text, duration_text, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cooperbench.report.agent_curve import AgentCurve
    from cooperbench.report.analysis import Analysis
    from cooperbench.report.compare import Comparison
    from cooperbench.report.rows import RateRow
    from cooperbench.report.statistics import Estimate

_INTERVALS = {
    "clustered": "95 % intervals, clustered by task (Student's t over tasks)",
    "wilson": "95 % intervals by Wilson, as if pairs were independent: too narrow where those of a task are correlated",
    "bootstrap": "95 % intervals by a bootstrap over tasks",
}


def analysis_tables(analysis: Analysis) -> Iterator[Table]:
    """In the order in which one reads them; what there is nothing to say about is left out."""
    yield _rates(analysis)
    yield _costs([row for row in analysis.rates if row.repo is None])
    if analysis.deficits or analysis.without_solo:
        yield _deficits(analysis)
    yield from (_agent_curve(curve) for curve in analysis.curves)
    yield from _difficulty(analysis)
    yield from _repeats(analysis)
    if len(analysis.cross_play.configurations) > 1:
        yield _cross_play(analysis)
    no_reference = [
        f"{run.name}:{pair.setting} {pair.label}: {pair.error}"
        for run in analysis.runs
        for pair in run.pairs
        if pair.state == "no_reference"
    ]
    if no_reference:
        yield Table("No reference", notes=[STATES["no_reference"].sentence, "", *first_lines(no_reference)])
    if analysis.problems:
        yield Table("Could not be read", notes=first_lines(analysis.problems))


def _rates(analysis: Analysis) -> Table:
    names = [name for name in VERDICTS if any(name in row.rates for row in analysis.rates)]
    remarks = {estimate.note for row in analysis.rates for estimate in row.rates.values() if estimate.n}
    marks = dict(zip(sorted(remarks - {""}), "¹²³⁴", strict=False))
    rows = []
    for row in analysis.rates:
        place = row.name if row.repo is None else f"  {row.repo}"
        place += "" if row.task_id is None else f"/task{row.task_id}"
        rows.append([place, *_rate_cells(row.rates, names, marks)])
        if row.unsound:
            indent = "  " if row.repo is None else "    "
            rows.append([f"{indent}without unsound", *_rate_cells(row.sound_rates, names, marks)])
    notes = [f"{mark} {remark}" for remark, mark in marks.items()]
    notes += [f"{_INTERVALS[analysis.method]}; n: judged pairs; deff: design effect of overall", ""]
    notes += [line for row in analysis.rates if row.repo is None for line in _states(row)]
    notes += left_out_lines(analysis.runs)
    notes += ["", *(f"{name}: {VERDICTS[name]}" for name in names)]
    return Table("Rates", ("run", "n", "tasks", *names, "deff"), rows, notes)


def _rate_cells(
    rates: Mapping[str, Estimate], names: Sequence[str], marks: Mapping[str, str]
) -> Iterator[str]:
    overall = rates["overall"]
    yield str(overall.n)
    yield str(overall.clusters)
    for rate in (rates.get(name) for name in names):
        yield NOTHING if rate is None else rate_text(rate) + marks.get(rate.note, "")
    yield decimal_text(overall.design_effect, 1)


def _states(row: RateRow) -> Iterator[str]:
    counted = f"{row.name}: {plural(row.pairs, 'pair')}"
    counts = {state: row.states[state] for state in NOT_JUDGED}
    left_out = ", ".join(f"{count} {STATES[state].short}" for state, count in counts.items() if count)
    yield (
        f"{counted}, {row.judged} judged ({left_out}: not part of the rates)"
        if left_out
        else f"{counted}, all judged"
    )
    if row.unsound:
        count = plural(row.unsound, "unsound pair")
        yield f"{row.name}: {count}: tests of a feature pass without the feature"
    if row.order_conflicts:
        yield f"{row.name}: {plural(row.order_conflicts, 'conflict')} of three and more would merge in another order"
    if row.suspicious:
        yield f"{row.name}: {row.suspicious} suspicious: the tests may not have decided (evidence: eval.json, page)"


def _costs(rows: Sequence[RateRow]) -> Table:
    cells = [
        [
            row.name,
            dollars_text(row.cost),
            f"${row.cost / ended:.3f}" if (ended := sum(row.states[state] for state in ENDED)) else NOTHING,
            str(row.tokens),
            str(row.steps),
            str(row.messages),
            duration_text(row.agent_seconds),
        ]
        for row in rows
    ]
    notes = [
        f"{row.name}: cost without {plural(row.unpriced_calls, 'call')} of models without a known price"
        for row in rows
        if row.unpriced_calls
    ]
    headings = ("run", "cost", "a pair", "tokens", "steps", "messages", "agents' time")
    return Table("Cost and time", headings, cells, notes)


def _deficits(analysis: Analysis) -> Table:
    rows, notes = [], []
    for one in analysis.deficits:
        if one.coordination_deficit is None or one.retention is None:
            continue
        rates = (rate_text(one.first_rate), rate_text(one.second_rate))
        deficit, retention = points_text(one.coordination_deficit), rate_text(one.retention)
        rows.append([one.first, one.second, str(one.n), *rates, deficit, retention, p_text(one.mcnemar_p)])
        notes.append(f"{one.second}: {basis_text(one.coordination_deficit)}")
        if one.unpaired:
            notes.append(
                f"{one.second}: {plural(len(one.unpaired), 'pair')} without a verdict in both, left out"
            )
        notes += [f"{one.second}: retention: {one.retention.note}"] if one.retention.note else []
    if rows:
        notes.insert(
            0, "Over the pairs that have a verdict in both; deficit: solo − coop; retention: coop ∕ solo"
        )
    notes += [f"{name}: no solo run of the same agent and model given" for name in analysis.without_solo]
    headings = ("solo", "coop", "n", "solo rate", "coop rate", "deficit", "retention", "McNemar")
    return Table("Coordination deficit", headings if rows else (), rows, notes)


def _difficulty(analysis: Analysis) -> Iterator[Table]:
    difficulty = analysis.difficulty
    for place, curve in enumerate(difficulty.curves):
        rows = [
            [
                f"{bucket.low:.1f}–{bucket.high:.1f}",
                str(bucket.pairs),
                rate_text(bucket.solo),
                str(bucket.solo.n),
                rate_text(bucket.coop),
                str(bucket.coop.n),
            ]
            for bucket in curve.buckets
            if bucket.solo.n or bucket.coop.n
        ]
        areas = f"solo {decimal_text(curve.solo_area, 3)}, coop {decimal_text(curve.coop_area, 3)}"
        lost = f"ΔAUC {decimal_text(curve.delta_area, 3)}, retention {percent_text(curve.retention)}"
        notes = [f"Area under the curve: {areas}, {lost}"]
        if place == 0:
            made_of = plural(len(difficulty.configurations), "configuration")
            notes.append(f"Difficulty from the solo results of {made_of}; 95 % Wilson intervals")
            if not curve.is_telling:
                notes.append(
                    "Two difficulties are no curve: give solo runs of several models, or several runs"
                )
            if difficulty.unscored:
                notes.append(f"{plural(difficulty.unscored, 'pair')} without a solo verdict: in no curve")
        title = "By difficulty" if place == 0 else f"By difficulty: {curve.configuration}"
        yield Table(title, ("difficulty", "pairs", "solo", "n", "coop", "n"), rows, notes)


def _agent_curve(curve: AgentCurve) -> Table:
    names = [*curve.points[0].rates]
    rows = [
        [
            str(point.agents),
            str(point.groups),
            *(rate_text(point.rates[name]) for name in names),
            NOTHING if point.golden is None else rate_text(point.golden),
            NOTHING if point is curve.points[0] else points_text(point.change),
        ]
        for point in curve.points
    ]
    sizes = ",".join(row[0] for row in rows)
    basis = basis_text(curve.points[0].rates["overall"]).replace("pair", "largest group")
    notes = [f"Nested groups of the same features: {basis}"]
    notes += (
        [f"{plural(curve.left_out, 'judged group')} not nested with all sizes: left out"]
        if curve.left_out
        else []
    )
    if any(point.golden is None for point in curve.points):
        known = f"cooperbench validate --conflicts-only --agents {sizes} --report DATASET/gold_conflict_report.json"
        notes.append(f"golden patches: not known for all; {known}")
    what = "features" if curve.setting == "solo" else "agents"
    headings = (what, "groups", *names, "golden merge", f"overall, since {rows[0][0]}")
    title = f"By number of {what}: {', '.join(curve.runs)} ({curve.setting})"
    return Table(title, headings, rows, notes)


def _repeats(analysis: Analysis) -> Iterator[Table]:
    for repeats in analysis.repeats:
        rows = [
            [f"pass@{k}", rate_text(estimate), str(estimate.n), str(estimate.clusters)]
            for k, estimate in repeats.pass_at.items()
        ]
        flaky = [f"flaky: {one.label} ({one.passed} of {one.of} passed)" for one in repeats.flaky]
        title = f"Repeated: {', '.join(repeats.runs)} ({repeats.setting})"
        yield Table(title, ("", "rate", "n", "tasks"), rows, first_lines(flaky) or ["no flaky pairs"])


def _cross_play(analysis: Analysis) -> Table:
    played = analysis.cross_play
    cells = {(one.agent1, one.agent2): f"{rate_text(one.overall)} n={one.overall.n}" for one in played.cells}
    names = played.configurations
    rows = [[one, *(cells.get((one, other), NOTHING) for other in names)] for one in names]
    notes = ["Overall success in coop; rows: agent1 (the lower feature), columns: agent2"]
    if played.unknown:
        notes.append(f"{plural(played.unknown, 'pair')} without a record of who the two were: left out")
    return Table("Who works with whom", ("agent1 ∖ agent2", *names), rows, notes)


def comparison_tables(comparison: Comparison, problems: Sequence[str] = ()) -> Iterator[Table]:
    """The numbers, the flips, and what could not be compared."""
    first, second = comparison.first, comparison.second
    yield _compared_rates(comparison)
    for title, keys in (
        (f"Lost: passed in {first}, failed in {second}", comparison.lost),
        (f"Gained: failed in {first}, passed in {second}", comparison.gained),
    ):
        if keys:
            marks = dict.fromkeys(comparison.unsound, " (unsound)")
            yield Table(f"{title} ({len(keys)})", notes=[key.label + marks.get(key, "") for key in keys])
    if comparison.unpaired:
        lines = [f"{one.label}: {one.first_state}, {one.second_state}" for one in comparison.unpaired]
        title = f"Not compared ({len(lines)}): state in {first}, in {second}"
        yield Table(title, notes=first_lines(lines))
    if problems:
        yield Table("Could not be read", notes=problems)


def _compared_rates(comparison: Comparison) -> Table:
    rows = [
        [name, rate_text(estimate), f"{round((estimate.value or 0.0) * estimate.n)}/{estimate.n}"]
        for name, estimate in (
            (comparison.first, comparison.first_rate),
            (comparison.second, comparison.second_rate),
        )
    ]
    rows.append(["difference", points_text(comparison.difference), ""])
    flips = f"{len(comparison.gained)} gained, {len(comparison.lost)} lost"
    notes = [
        f"difference: {basis_text(comparison.difference)}",
        f"McNemar's exact test: {p_text(comparison.mcnemar_p)} ({flips}; it takes pairs for independent)",
    ]
    if comparison.coordination_deficit is not None and comparison.retention is not None:
        rows.append(["coordination deficit (solo − coop)", points_text(comparison.coordination_deficit), ""])
        rows.append(["retention (coop ∕ solo)", rate_text(comparison.retention), ""])
        notes += [f"retention: {comparison.retention.note}"] if comparison.retention.note else []
    if comparison.unsound:
        count = plural(len(comparison.unsound), "unsound pair")
        notes.append(f"{count} among them; --sound-only compares without")
    title = f"{comparison.verdict} over {plural(comparison.n, 'pair')} with a verdict on both sides"
    return Table(title, ("", "", "passed"), rows, notes)
