"""An analysis, or a comparison, as tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.report.formatting import (
    NOTHING,
    Table,
    area_text,
    basis_text,
    p_text,
    percent_text,
    points_text,
    rate_text,
)
from cooperbench.report.loading import left_out_lines
from cooperbench.report.states import STATES, VERDICTS
from cooperbench.text import duration_text, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cooperbench.report.analysis import Analysis
    from cooperbench.report.compare import Comparison
    from cooperbench.report.rows import RateRow
    from cooperbench.report.statistics.intervals import Estimate

MOST_LINES = 20
MOST_UNPAIRED = 40
_MARKS = "¹²³⁴"
_INTERVALS = {
    "clustered": "95 % intervals, clustered by task (Student's t over tasks)",
    "wilson": "95 % intervals by Wilson, as if pairs were independent: too narrow where tasks hang together",
    "bootstrap": "95 % intervals by a bootstrap over tasks",
}


def analysis_tables(analysis: Analysis) -> Iterator[Table]:
    """In the order in which one reads them; what there is nothing to say about is left out."""
    yield _rates(analysis)
    yield _costs(analysis)
    if analysis.deficits or analysis.without_solo:
        yield _deficits(analysis)
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
        yield Table("No reference", notes=[STATES["no_reference"].sentence, "", *_first(no_reference)])
    if analysis.problems:
        yield Table("Could not be read", notes=_first(analysis.problems))


def _rates(analysis: Analysis) -> Table:
    names = [name for name in VERDICTS if any(name in row.rates for row in analysis.rates)]
    remarks = sorted(
        {
            rate.note
            for row in analysis.rates
            for rates in (row.rates, row.sound_rates)
            for rate in rates.values()
            if rate.note and rate.n
        }
    )
    marks = dict(zip(remarks, _MARKS, strict=False))
    rows = []
    for row in analysis.rates:
        rows.append([_place(row), *_rate_cells(row.rates, names, marks)])
        if row.unsound:
            indent = " " * (len(_place(row)) - len(_place(row).lstrip()) + 2)
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
    yield NOTHING if overall.design_effect is None else f"{overall.design_effect:.1f}"


def _place(row: RateRow) -> str:
    if row.repo is None:
        return f"{row.run}:{row.setting}"
    return f"  {row.repo}" if row.task_id is None else f"  {row.repo}/task{row.task_id}"


def _states(row: RateRow) -> list[str]:
    counted = f"{row.run}:{row.setting}: {plural(row.pairs, 'pair')}"
    if row.left_out:
        left_out = ", ".join(f"{count} {STATES[state].short}" for state, count in row.left_out.items())
        lines = [f"{counted}, {row.judged} judged ({left_out}: not part of the rates)"]
    else:
        lines = [f"{counted}, all judged"]
    if row.unsound:
        count = plural(row.unsound, "unsound pair")
        lines.append(f"{row.run}:{row.setting}: {count}: tests of a feature pass without the feature")
    return lines


def _costs(analysis: Analysis) -> Table:
    rows = [
        [
            f"{row.run}:{row.setting}",
            f"${row.cost:.2f}",
            NOTHING if not row.finished else f"${row.cost / row.finished:.3f}",
            str(row.tokens),
            str(row.steps),
            str(row.messages),
            duration_text(row.agent_seconds),
        ]
        for row in analysis.rates
        if row.repo is None
    ]
    notes = [
        f"{row.run}:{row.setting}: cost without {plural(row.unpriced_calls, 'call')} of models without a known price"
        for row in analysis.rates
        if row.repo is None and row.unpriced_calls
    ]
    headings = ("run", "cost", "a pair", "tokens", "steps", "messages", "agents' time")
    return Table("Cost and time", headings, rows, notes)


def _deficits(analysis: Analysis) -> Table:
    rows = [
        [
            comparison.first,
            comparison.second,
            str(comparison.n),
            rate_text(comparison.first_rate),
            rate_text(comparison.second_rate),
            points_text(comparison.deficit) if comparison.deficit else NOTHING,
            rate_text(comparison.retention) if comparison.retention else NOTHING,
            p_text(comparison.p_value),
        ]
        for comparison in analysis.deficits
    ]
    notes = ["Over the pairs that have a verdict in both; deficit: solo − coop; retention: coop ∕ solo"]
    notes = notes if rows else []
    notes += [line for comparison in analysis.deficits for line in _deficit_notes(comparison)]
    notes += [f"{name}: no solo run of the same agent and model given" for name in analysis.without_solo]
    headings = ("solo", "coop", "n", "solo rate", "coop rate", "deficit", "retention", "McNemar")
    return Table("Coordination deficit", headings if rows else (), rows, notes)


def _deficit_notes(comparison: Comparison) -> list[str]:
    lines = []
    if comparison.unpaired:
        count = plural(len(comparison.unpaired), "pair")
        lines.append(f"{comparison.second}: {count} without a verdict in both, left out")
    if comparison.sound is not None and comparison.sound.deficit is not None:
        without = f"without {plural(len(comparison.unsound), 'unsound pair')}"
        lines.append(f"{comparison.second}, {without}: deficit {points_text(comparison.sound.deficit)}")
    for name, estimate in (("deficit", comparison.deficit), ("retention", comparison.retention)):
        if estimate is not None and estimate.note:
            lines.append(f"{comparison.second}, {name}: {estimate.note}")
    if comparison.deficit is not None:
        lines.append(f"{comparison.second}: {basis_text(comparison.deficit)}")
    return lines


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
        areas = f"solo {area_text(curve.solo_area)}, coop {area_text(curve.coop_area)}"
        lost = f"ΔAUC {area_text(curve.lost_area)}, retention {percent_text(curve.retention)}"
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
        title = "By difficulty" if curve.configuration == "all" else f"By difficulty: {curve.configuration}"
        yield Table(title, ("difficulty", "pairs", "solo", "n", "coop", "n"), rows, notes)


def _repeats(analysis: Analysis) -> Iterator[Table]:
    for repeats in analysis.repeats:
        rows = [
            [f"pass@{k}", rate_text(estimate), str(estimate.n), str(estimate.clusters)]
            for k, estimate in repeats.pass_at.items()
        ]
        flaky = [
            f"flaky: {key.label} ({repeats.tries[key][0]} of {repeats.tries[key][1]} passed)"
            for key in repeats.flaky
        ]
        title = f"Repeated: {', '.join(repeats.runs)} ({repeats.setting})"
        yield Table(title, ("", "rate", "n", "tasks"), rows, _first(flaky) or ["no flaky pairs"])


def _cross_play(analysis: Analysis) -> Table:
    played = analysis.cross_play
    rows = []
    for one in played.configurations:
        cells = [played.cells.get((one, other)) for other in played.configurations]
        rows.append([one, *(NOTHING if cell is None else f"{rate_text(cell)} n={cell.n}" for cell in cells)])
    notes = ["Overall success in coop; rows: agent1 (the lower feature), columns: agent2"]
    if played.unknown:
        notes.append(f"{plural(played.unknown, 'pair')} without a record of who the two were: left out")
    return Table("Who works with whom", ("agent1 ∖ agent2", *played.configurations), rows, notes)


def _first(lines: tuple[str, ...] | list[str]) -> list[str]:
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"… {more} more (--json has all)"] if more > 0 else [])]


def comparison_tables(comparison: Comparison, problems: Sequence[str] = ()) -> Iterator[Table]:
    """The numbers, the flips, and what could not be compared."""
    yield _compared_rates(comparison)
    for title, keys in (
        (f"Lost: passed in {comparison.first}, failed in {comparison.second}", comparison.lost),
        (f"Gained: failed in {comparison.first}, passed in {comparison.second}", comparison.gained),
    ):
        if keys:
            marks = dict.fromkeys(comparison.unsound, " (unsound)")
            yield Table(f"{title} ({len(keys)})", notes=[key.label + marks.get(key, "") for key in keys])
    if comparison.unpaired:
        yield _unpaired(comparison)
    if problems:
        yield Table("Could not be read", notes=problems)


def _compared_rates(comparison: Comparison) -> Table:
    first, second = comparison.first_rate, comparison.second_rate
    rows = [
        [comparison.first, rate_text(first), f"{_count(first.value, first.n)}/{first.n}"],
        [comparison.second, rate_text(second), f"{_count(second.value, second.n)}/{second.n}"],
        ["difference", points_text(comparison.difference), ""],
    ]
    if comparison.deficit is not None:
        rows.append(["coordination deficit (solo − coop)", points_text(comparison.deficit), ""])
    if comparison.retention is not None:
        rows.append(["retention (coop ∕ solo)", rate_text(comparison.retention), ""])
    flips = f"{len(comparison.gained)} gained, {len(comparison.lost)} lost"
    notes = [
        f"difference: {basis_text(comparison.difference)}",
        f"McNemar's exact test: {p_text(comparison.p_value)} ({flips}; it takes pairs for independent)",
    ]
    if comparison.retention is not None and comparison.retention.note:
        notes.append(f"retention: {comparison.retention.note}")
    if comparison.sound is not None:
        notes.append(_without_unsound(comparison.sound, len(comparison.unsound)))
    title = f"{comparison.verdict} over {plural(comparison.n, 'pair')} with a verdict on both sides"
    return Table(title, ("", "", "passed"), rows, notes)


def _without_unsound(sound: Comparison, unsound: int) -> str:
    rates = f"{sound.first} {rate_text(sound.first_rate)}, {sound.second} {rate_text(sound.second_rate)}"
    return f"without {plural(unsound, 'unsound pair')}: {rates}, difference {points_text(sound.difference)}"


def _count(value: float | None, n: int) -> int:
    return round((value or 0.0) * n)


def _unpaired(comparison: Comparison) -> Table:
    unpaired = comparison.unpaired
    rows = [[one.key.label, one.first_state, one.second_state] for one in unpaired[:MOST_UNPAIRED]]
    more = len(unpaired) - len(rows)
    notes = [f"… {more} more (--json has all)"] if more else []
    return Table(
        f"Not compared ({len(unpaired)})", ("pair", comparison.first, comparison.second), rows, notes
    )
