"""What reports say in the terminal: a `Table` for each part of an analysis, a comparison or an ablation.

`formatting` decides how numbers look and how tables are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from cooperbench.report.analysis import TEAM_SUMS, Analysis, CrossPlay, RateRow, TeamRow
from cooperbench.report.compare import Ablation, Comparison, Effect
from cooperbench.report.curves import AgentCurve, Difficulty
from cooperbench.report.fields import listed, mapping
from cooperbench.report.formatting import (
    Cell,
    Rows,
    Table,
    basis_text,
    decimal_text,
    first_lines,
    p_text,
    percent_text,
    points_text,
    rate_text,
)
from cooperbench.report.llm_judge import JudgeReport
from cooperbench.report.loading import left_out_lines
from cooperbench.report.pairs import ENDED, NOT_EVALUATED, STATES, VERDICTS
from cooperbench.report.statistics import POWER, Estimate
from cooperbench.text import dollars_text, duration_text, plural

_INTERVALS = {
    "clustered": "95 % intervals, clustered by task (Student's t over tasks)",
    "wilson": "95 % intervals by Wilson, as if pairs were independent: too narrow where those of a task are correlated",
    "bootstrap": "95 % intervals by a bootstrap over tasks",
}


def analysis_tables(analysis: Analysis) -> Iterator[Table]:
    """In the order in which one reads them; what there is nothing to say about is left out."""
    yield _rates(analysis)
    yield _costs([row for row in analysis.rates if row.repo is None])
    if analysis.coordination_deficits or analysis.coop_without_solo:
        yield _deficits(analysis)
    if analysis.team:
        yield _teams(analysis.team)
    yield from map(_agent_curve, analysis.agent_curves)
    yield from _difficulty(analysis.difficulty)
    for repeats in analysis.repeats:
        rates: Rows = [
            [f"pass@{k}", one, one.n, one.clusters] for k, one in repeats.pass_at.items()
        ]
        flaky = [f"flaky: {one.label} ({one.passed} of {one.of} passed)" for one in repeats.flaky]
        title = f"Repeated: {', '.join(repeats.runs)} ({repeats.setting})"
        yield Table(
            title, ("", "rate", "n", "tasks"), rates, first_lines(flaky) or ["no flaky pairs"]
        )
    if len(analysis.cross_play.configurations) > 1:
        yield _cross_play(analysis.cross_play)
    no_reference = [
        f"{run.name}:{pair.setting} {pair.label}: {pair.error}"
        for run in analysis.runs
        for pair in run.pairs
        if pair.state == "no_reference"
    ]
    if no_reference:
        yield Table(
            "No reference", notes=[STATES["no_reference"].sentence, "", *first_lines(no_reference)]
        )
    if analysis.problems:
        yield Table("Could not be read", notes=first_lines(analysis.problems))


def _rates(analysis: Analysis) -> Table:
    names = [name for name in VERDICTS if any(name in row.rates for row in analysis.rates)]
    remarks = {
        estimate.note for row in analysis.rates for estimate in row.rates.values() if estimate.n
    }
    marks = dict(zip(sorted(remarks - {""}), "¹²³⁴", strict=False))

    def cells(rates: Mapping[str, Estimate]) -> list[Cell]:
        shown = [rates.get(name) for name in names]
        marked = [rate and rate_text(rate) + marks.get(rate.note, "") for rate in shown]
        overall = rates["overall"]
        return [overall.n, overall.clusters, *marked, decimal_text(overall.design_effect, 1)]

    rows: Rows = []
    for row in analysis.rates:
        indent = "" if row.repo is None else "  "
        place = row.name if row.repo is None else f"{indent}{row.repo}"
        rows.append(
            [place if row.task_id is None else f"{place}/task{row.task_id}", *cells(row.rates)]
        )
        if row.unsound:
            rows.append([f"{indent}  without unsound", *cells(row.sound_rates)])
    notes = [f"{mark} {remark}" for remark, mark in marks.items()]
    notes += [
        f"{_INTERVALS[analysis.interval]}; n: judged pairs; deff: design effect of overall",
        "",
    ]
    notes += [
        f"{row.name}: {line}" for row in analysis.rates if row.repo is None for line in _states(row)
    ]
    notes += left_out_lines(analysis.runs)
    notes += ["", *(f"{name}: {VERDICTS[name]}" for name in names)]
    return Table("Rates", ("run", "n", "tasks", *names, "deff"), rows, notes)


def _states(row: RateRow) -> Iterator[str]:
    counts = {state: row.states[state] for state in NOT_EVALUATED}
    left_out = ", ".join(
        f"{count} {STATES[state].short}" for state, count in counts.items() if count
    )
    judged = (
        f"{row.judged} judged ({left_out}: not part of the rates)" if left_out else "all judged"
    )
    yield f"{plural(row.pairs, 'pair')}, {judged}"
    if row.unsound:
        yield f"{plural(row.unsound, 'unsound pair')}: tests of a feature pass without the feature"
    if row.order_conflicts:
        yield f"{plural(row.order_conflicts, 'conflict')} of three and more would merge in another order"
    if row.suspicious:
        yield f"{row.suspicious} suspicious: the tests may not have decided (evidence: eval.json, page)"


def _costs(rows: Sequence[RateRow]) -> Table:
    cells: Rows = []
    for row in rows:
        ended = sum(row.states[state] for state in ENDED)
        each = f"${row.cost / ended:.3f}" if ended else None
        counts = (row.tokens, row.steps, row.messages)
        cells.append(
            [row.name, dollars_text(row.cost), each, *counts, duration_text(row.agent_seconds)]
        )
    notes = [
        f"{row.name}: cost without {plural(row.unpriced_calls, 'call')} of models without a known price"
        for row in rows
        if row.unpriced_calls
    ]
    headings = ("run", "cost", "a pair", "tokens", "steps", "messages", "agents' time")
    return Table("Cost and time", headings, cells, notes)


def _deficits(analysis: Analysis) -> Table:
    rows: Rows = []
    notes = [
        "Over the pairs that have a verdict in both; deficit: solo − coop; retention: coop ∕ solo"
    ]
    for one in analysis.coordination_deficits:
        assert one.coordination_deficit is not None
        assert one.retention is not None
        deficit, p = points_text(one.coordination_deficit), p_text(one.mcnemar_p)
        rows += [
            [
                one.first,
                one.second,
                one.n,
                one.first_rate,
                one.second_rate,
                deficit,
                one.retention,
                p,
            ]
        ]
        notes.append(f"{one.second}: {basis_text(one.coordination_deficit)}")
        if one.unpaired:
            left_out = plural(len(one.unpaired), "pair")
            notes.append(f"{one.second}: {left_out} without a verdict in both, left out")
        if one.retention.note:
            notes.append(f"{one.second}: retention: {one.retention.note}")
    notes = notes if rows else []
    notes += [
        f"{name}: no solo run of the same agent and model given"
        for name in analysis.coop_without_solo
    ]
    headings = ("solo", "coop", "n", "solo rate", "coop rate", "deficit", "retention", "McNemar")
    return Table("Coordination deficit", headings, rows, notes)


def _teams(rows: Sequence[TeamRow]) -> Table:
    cells: Rows = [
        [
            row.run,
            row.pairs,
            row.integrated_by_lead,
            *(f"{row.sums[name]:.0f}" for name in TEAM_SUMS),
        ]
        for row in rows
    ]
    notes = ["by lead: the lead's patch alone passes the tests of all features; part of no verdict"]
    return Table("Teams", ("run", "pairs", "by lead", *TEAM_SUMS.values()), cells, notes)


def _difficulty(difficulty: Difficulty) -> Iterator[Table]:
    for curve in difficulty.curves:
        rows: Rows = [
            [
                f"{one.low:.1f}–{one.high:.1f}",
                one.pairs,
                one.solo,
                one.solo.n,
                one.together,
                one.together.n,
            ]
            for one in curve.buckets
            if one.solo.n or one.together.n
        ]
        areas = (curve.solo_area, curve.together_area, curve.delta_area)
        solo, together, delta = (decimal_text(one, 3) for one in areas)
        lost = f"ΔAUC {delta}, retention {percent_text(curve.retention)}"
        notes = [f"Area under the curve: solo {solo}, {curve.setting} {together}, {lost}"]
        title = f"By difficulty: {curve.configuration} ({curve.setting})"
        if curve is difficulty.curves[0]:
            title = "By difficulty"
            made_of = plural(len(difficulty.configurations), "configuration")
            notes.append(f"Difficulty from the solo results of {made_of}; 95 % Wilson intervals")
            if not curve.is_telling:
                notes.append("Two difficulties are no curve: give solo runs of several models")
            if difficulty.unscored:
                notes.append(
                    f"{plural(difficulty.unscored, 'pair')} without a solo verdict: in no curve"
                )
        yield Table(title, ("difficulty", "pairs", "solo", "n", curve.setting, "n"), rows, notes)


def _agent_curve(curve: AgentCurve) -> Table:
    first, *_ = curve.points
    changes = [None, *(points_text(point.change) for point in curve.points[1:])]
    rows: Rows = [
        [point.agents, point.groups, *point.rates.values(), point.golden, change]
        for point, change in zip(curve.points, changes, strict=True)
    ]
    basis = basis_text(first.rates["overall"]).replace("pair", "largest group")
    notes = [f"Nested groups of the same features: {basis}"]
    if curve.left_out:
        notes.append(
            f"{plural(curve.left_out, 'judged group')} not nested with all sizes: left out"
        )
    if any(point.golden is None for point in curve.points):
        sizes = ",".join(str(point.agents) for point in curve.points)
        known = f"cooperbench validate --conflicts-only --agents {sizes} --report DATASET/gold_conflict_report.json"
        notes.append(f"golden patches: not known for all; {known}")
    what = "features" if curve.setting == "solo" else "agents"
    headings = (what, "groups", *first.rates, "golden merge", f"overall, since {first.agents}")
    return Table(
        f"By number of {what}: {', '.join(curve.runs)} ({curve.setting})", headings, rows, notes
    )


def _cross_play(played: CrossPlay) -> Table:
    cells = {
        (one.agent1, one.agent2): f"{rate_text(one.overall)} n={one.overall.n}"
        for one in played.cells
    }
    names = played.configurations
    rows: Rows = [[one, *(cells.get((one, other)) for other in names)] for one in names]
    notes = ["Overall success in coop; rows: agent1 (the lower feature), columns: agent2"]
    if played.unknown:
        notes.append(
            f"{plural(played.unknown, 'pair')} without a record of who the two were: left out"
        )
    return Table("Who works with whom", ("agent1 ∖ agent2", *names), rows, notes)


def comparison_tables(comparison: Comparison, problems: Sequence[str] = ()) -> Iterator[Table]:
    first, second = comparison.first, comparison.second
    yield _compared_rates(comparison)
    for title, keys in (
        (f"Lost: passed in {first}, failed in {second}", comparison.lost),
        (f"Gained: failed in {first}, passed in {second}", comparison.gained),
    ):
        if keys:
            marks = dict.fromkeys(comparison.unsound, " (unsound)")
            yield Table(
                f"{title} ({len(keys)})", notes=[key.label + marks.get(key, "") for key in keys]
            )
    if comparison.unpaired:
        lines = [
            f"{one.label}: {one.first_state}, {one.second_state}" for one in comparison.unpaired
        ]
        title = f"Not compared ({len(lines)}): state in {first}, in {second}"
        yield Table(title, notes=first_lines(lines))
    if problems:
        yield Table("Could not be read", notes=problems)


def _compared_rates(comparison: Comparison) -> Table:
    sides = ((comparison.first, comparison.first_rate), (comparison.second, comparison.second_rate))
    rows: Rows = [
        [name, one, f"{round((one.value or 0.0) * one.n)}/{one.n}"] for name, one in sides
    ]
    rows.append(["difference", points_text(comparison.difference), ""])
    flips = f"{len(comparison.gained)} gained, {len(comparison.lost)} lost"
    notes = [
        f"difference: {basis_text(comparison.difference)}",
        f"McNemar's exact test: {p_text(comparison.mcnemar_p)} ({flips}; it takes pairs for independent)",
    ]
    if comparison.coordination_deficit is not None and comparison.retention is not None:
        rows.append(
            ["coordination deficit (solo − coop)", points_text(comparison.coordination_deficit), ""]
        )
        rows.append(["retention (coop ∕ solo)", comparison.retention, ""])
        notes += [f"retention: {comparison.retention.note}"] if comparison.retention.note else []
    if comparison.unsound:
        count = plural(len(comparison.unsound), "unsound pair")
        notes.append(f"{count} among them; --sound-only compares without")
    title = f"{comparison.verdict} over {plural(comparison.n, 'pair')} with a verdict on both sides"
    return Table(title, ("", "", "passed"), rows, notes)


def ablation_table(ablation: Ablation) -> Table:
    rows = [
        [
            *(one.part, one.measure, one.difference.n, one.difference.clusters),
            *(_amount(value, one.unit) for value in (one.with_part, one.without)),
            _difference(one),
            *(None if p is None else p_text(p) for p in (one.p, one.p_holm)),
            _amount(one.smallest_effect, one.unit),
            one.pairs_needed,
        ]
        for one in ablation.effects
    ]
    headings = (
        *("part", "measure", "n", "tasks", "with", "without", "difference"),
        *("p", "Holm", "would show", "pairs needed"),
    )
    share = f"{round(100 * POWER)} %"
    notes = [
        "Difference: with the part minus without, over the pairs that both have; 95 % intervals clustered by task",
        "Holm: p corrected over the parts of this table, for each measure",
        f"would show: the smallest effect that so many pairs show with a probability of {share}",
        f"pairs needed: to show an effect like the one seen with {share}, where it was not shown",
        *(f"{name}: {meaning}" for name, meaning in VERDICTS.items()),
        "conflict: the patches conflict in plain git; cost and time: of a pair",
    ]
    return Table(f"What each part is worth: {ablation.study}", headings, rows, notes)


def judge_table(report: JudgeReport) -> Table:
    labels = [label for record in report.records if (label := mapping(record, "label"))]
    symptoms = [one for label in labels for one in listed(label, "symptoms", dict)]
    rows: Rows = [
        [kind, name, count]
        for kind, found in (("cause", labels), ("symptom", symptoms))
        for name, count in Counter(str(one.get(kind)) for one in found).most_common()
    ]
    spent = f"{report.judged} judged now for {dollars_text(report.cost)}, {report.kept} before"
    notes = [f"{spent}; evidence: judge.json beside each pair"]
    if report.unusable:
        notes.append(f"{plural(report.unusable, 'pair')} without a usable answer")
    notes += [f"not judged: {line}" for line in report.errors]
    count = plural(len(labels), "pair")
    title = f"Why pairs of {report.run} failed, in the opinion of {report.model} ({count})"
    return Table(title, ("", "label", "pairs"), rows, notes)


def _amount(value: float | None, unit: str) -> str:
    if unit == "share" or value is None:
        return percent_text(value)
    return f"${decimal_text(value, 3)}" if unit == "dollars" else f"{decimal_text(value, 1)} s"


def _difference(effect: Effect) -> str:
    one = effect.difference
    if effect.unit == "share" or one.value is None:
        return points_text(one)
    digits = 3 if effect.unit == "dollars" else 1
    low, high = decimal_text(one.low, digits), decimal_text(one.high, digits)
    return _amount(one.value, effect.unit) + ("" if one.low is None else f" [{low}, {high}]")
