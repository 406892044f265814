"""Terminal reports: a `Table` for each part of an analysis or a comparison.

`formatting` decides how numbers look and how tables are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cooperbench.dataset.coupling import COUPLINGS
from cooperbench.report.analysis import (
    TEAM_SUMS,
    Analysis,
    CrossPlay,
    RateRow,
    Repeats,
    TeamRow,
)
from cooperbench.report.compare import Comparison
from cooperbench.report.coupling import CouplingRow
from cooperbench.report.curves import AgentCurve, Curve, Difficulty
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
from cooperbench.report.mismatch import (
    MARK,
    MARK_NOTE,
    Mismatch,
    mismatch_lines,
    unchecked_lines,
)
from cooperbench.report.pairs import (
    NOT_EVALUATED,
    STATES,
    VERDICTS,
    applicable_verdicts,
    verdict_meaning,
)
from cooperbench.report.statistics import Estimate
from cooperbench.report.workload_table import workload_table
from cooperbench.text import dollars_text, duration_text, plural

INTERVALS = {
    "clustered": "95 % intervals, clustered by task (Student's t over tasks)",
    "wilson": (
        "95 % intervals by Wilson, as if pairs were independent:"
        " too narrow where the pairs of a task are correlated"
    ),
    "bootstrap": "95 % intervals by a bootstrap over tasks",
}
_FOOTNOTE_MARKS = "¹²³⁴"


def analysis_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield the tables of `cooperbench report` in reading order, without empty ones."""
    yield _rates_table(analysis)
    yield _costs_table([row for row in analysis.rates if row.repo is None])
    if analysis.coordination_deficits or analysis.coop_without_solo:
        yield _deficits_table(analysis)
    if analysis.coupling:
        side_runs = [row.run for row in analysis.coupling]
        yield mark_title(coupling_table(analysis.coupling), side_runs, analysis.mismatches)
    if analysis.team:
        team_runs = [row.run for row in analysis.team]
        yield mark_title(_teams_table(analysis.team), team_runs, analysis.mismatches)
    every_run = [run.name for run in analysis.runs]
    yield from _curve_tables(analysis)
    for table in _difficulty_tables(analysis.difficulty):
        yield mark_title(table, every_run, analysis.mismatches)
    for repeats in analysis.repeats:
        yield mark_title(_repeats_table(repeats), repeats.runs, analysis.mismatches)
    if len(analysis.cross_play.configurations) > 1:
        table = _cross_play_table(analysis.cross_play)
        yield mark_title(table, every_run, analysis.mismatches)
    if no_reference := _pairs_without_reference(analysis):
        sentence = STATES["no_reference"].sentence
        yield Table("No reference", notes=[sentence, "", *first_lines(no_reference)])
    yield from mismatch_tables(analysis.mismatches)
    if analysis.problems:
        yield Table("Could not be read", notes=first_lines(analysis.problems))


def _curve_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield the tables over numbers of features and agents."""
    for agent_curve in analysis.agent_curves:
        yield mark_title(_agent_curve_table(agent_curve), agent_curve.runs, analysis.mismatches)
    for workload in analysis.workload_curves:
        yield mark_title(workload_table(workload), workload.runs, analysis.mismatches)


def mark_title(table: Table, runs: Sequence[str], mismatches: Sequence[Mismatch]) -> Table:
    """Return a table whose title is marked if a mismatch affects rates of these runs."""
    for mismatch in mismatches:
        if "overall" in mismatch.affects and not set(runs).isdisjoint(mismatch.runs):
            return replace(table, title=f"{table.title} {MARK}")
    return table


def mismatch_tables(mismatches: Sequence[Mismatch]) -> Iterator[Table]:
    """Yield what does not fit together, and what cannot be checked, a line each."""
    lines = mismatch_lines(mismatches)
    if lines:
        yield Table(f"Mismatches ({len(lines):,}): numbers marked {MARK} rest on them", notes=lines)
    if unchecked := unchecked_lines(mismatches):
        yield Table("Not checked", notes=unchecked)


def _rates_table(analysis: Analysis) -> Table:
    verdicts = [name for name in VERDICTS if any(name in row.rates for row in analysis.rates)]
    marks = _footnote_marks(analysis.rates)

    def cells(rates: Mapping[str, Estimate], affected: Sequence[str]) -> list[Cell]:
        texts: list[Cell] = []
        for verdict in verdicts:
            rate = rates.get(verdict)
            mark = MARK if verdict in affected else ""
            texts.append(
                None if rate is None else rate_text(rate) + marks.get(rate.note, "") + mark
            )
        overall = rates["overall"]
        return [overall.n, overall.clusters, *texts, decimal_text(overall.design_effect, 1)]

    rows: Rows = []
    for row in analysis.rates:
        rows.append([_row_title(row), *cells(row.rates, row.affected)])
        if row.unsound:
            indent = "  " if row.repo is None else "    "
            rows.append([f"{indent}without unsound", *cells(row.sound_rates, row.affected)])
    notes = [f"{mark} {note}" for note, mark in marks.items()]
    if any(row.affected for row in analysis.rates):
        notes.append(MARK_NOTE)
    interval = INTERVALS[analysis.interval]
    notes += [f"{interval}; n: evaluated pairs; deff: design effect of overall", ""]
    for row in analysis.rates:
        if row.repo is None:
            notes += [f"{row.name}: {line}" for line in _state_lines(row)]
    notes += left_out_lines(analysis.runs)
    notes += ["", *_verdict_notes(verdicts, analysis.rates)]
    return Table("Rates", ("run", "n", "tasks", *verdicts, "deff"), rows, notes)


def _row_title(row: RateRow) -> str:
    if row.repo is None:
        return row.name
    if row.task_id is None:
        return f"  {row.repo}"
    return f"  {row.repo}/task{row.task_id}"


def _footnote_marks(rows: Sequence[RateRow]) -> dict[str, str]:
    """Return the mark of each remark on a rate, by the remark."""
    remarks: set[str] = set()
    for row in rows:
        remarks |= {estimate.note for estimate in row.rates.values() if estimate.n}
    return dict(zip(sorted(remarks - {""}), _FOOTNOTE_MARKS, strict=False))


def _verdict_notes(verdicts: Sequence[str], rows: Sequence[RateRow]) -> Iterator[str]:
    """Yield what each verdict means; solo and shared workspaces have meanings of their own."""
    has_solo = any(row.setting == "solo" for row in rows)
    has_shared = any(row.is_shared for row in rows)
    has_others = any(row.setting != "solo" and not row.is_shared for row in rows)
    for verdict in verdicts:
        solo_meaning = verdict_meaning(verdict, "solo")
        if has_others:
            yield f"{verdict}: {VERDICTS[verdict]}"
        if has_solo and solo_meaning != VERDICTS[verdict]:
            yield f"{verdict} (solo): {solo_meaning}"
        if has_shared and verdict in applicable_verdicts("coop", shared=True):
            meaning = verdict_meaning(verdict, "coop", shared=True)
            yield f"{verdict} (shared workspace): {meaning}"


def _state_lines(row: RateRow) -> Iterator[str]:
    left_out = [
        f"{row.states[state]:,} {STATES[state].short}"
        for state in NOT_EVALUATED
        if row.states[state]
    ]
    evaluated = "all evaluated"
    if left_out:
        evaluated = f"{row.judged:,} evaluated ({', '.join(left_out)}: not part of the rates)"
    yield f"{plural(row.pairs, 'pair')}, {evaluated}"
    if row.unsound:
        yield f"{plural(row.unsound, 'unsound pair')}: tests of a feature pass without the feature"
    if row.order_conflicts:
        conflicts = plural(row.order_conflicts, "conflict")
        yield f"{conflicts} of three or more agents would merge in another order"
    if row.unconfirmed:
        successes = f"{row.unconfirmed:,} of {plural(row.successes, 'success', 'successes')}"
        yield f"{successes} of a patch with a feature not confirmed by tests that must fail"
    if row.suspicious:
        pairs = plural(row.suspicious, "suspicious pair")
        yield f"{pairs}: the tests may not have decided (evidence: eval.json, page)"
    if row.review_notes:
        pairs = plural(row.review_notes, "pair")
        yield f"{pairs} with review notes: lines that reach for the test process (eval.json, page)"
    if row.attempted_again:
        pairs = plural(row.attempted_again, "pair")
        ends = [f"{count:,} {status}" for status, count in row.earlier_attempts.items()]
        earlier = ", ".join(ends) or "not recorded"
        yield f"{pairs} with more than one attempt; earlier ones: {earlier}"


def _pairs_without_reference(analysis: Analysis) -> list[str]:
    lines: list[str] = []
    for run in analysis.runs:
        pairs = [pair for pair in run.pairs if pair.state == "no_reference"]
        lines += [f"{run.name}:{pair.setting} {pair.label}: {pair.error}" for pair in pairs]
    return lines


def _costs_table(rows: Sequence[RateRow]) -> Table:
    cells: Rows = []
    for row in rows:
        cost_per_pair = None
        if row.cost_per_pair is not None:
            cost_per_pair = f"${row.cost_per_pair:,.3f}"
        cells.append(
            [
                row.name,
                dollars_text(row.cost) + (MARK if "cost" in row.affected else ""),
                cost_per_pair,
                row.tokens,
                row.steps,
                row.messages,
                duration_text(row.agent_seconds),
            ]
        )
    notes = []
    for row in rows:
        if row.unpriced_calls:
            calls = plural(row.unpriced_calls, "call")
            notes.append(f"{row.name}: cost excludes {calls} to models without a known price")
    headings = ("run", "cost", "per pair", "tokens", "steps", "messages", "agents' time")
    return Table("Cost and time", headings, cells, notes)


def _deficits_table(analysis: Analysis) -> Table:
    rows: Rows = []
    notes = []
    for comparison in analysis.coordination_deficits:
        deficit, retention = comparison.coordination_deficit, comparison.retention
        assert deficit is not None
        assert retention is not None
        rows.append(
            [
                _marked_label(comparison.first, comparison),
                _marked_label(comparison.second, comparison),
                comparison.n,
                comparison.first_rate,
                comparison.second_rate,
                points_text(deficit),
                retention,
                p_text(comparison.mcnemar_p),
            ]
        )
        notes.append(f"{comparison.second}: {basis_text(deficit)}")
        if comparison.unpaired:
            pairs = plural(len(comparison.unpaired), "pair")
            notes.append(f"{comparison.second}: {pairs} without a verdict in both, left out")
        if retention.note:
            notes.append(f"{comparison.second}: retention: {retention.note}")
    if rows:
        basis = "Over the pairs that have a verdict in both"
        notes.insert(0, f"{basis}; deficit: solo − coop; retention: coop ∕ solo")
    notes += [
        f"{name}: there is no solo run of the same agent and model"
        for name in analysis.coop_without_solo
    ]
    headings = ("solo", "coop", "n", "solo rate", "coop rate", "deficit", "retention", "McNemar")
    return Table("Coordination deficit", headings, rows, notes)


def _marked_label(side: str, comparison: Comparison) -> str:
    return side + (MARK if side in comparison.affected else "")


def coupling_table(coupling_rows: Sequence[CouplingRow]) -> Table:
    """Return success by how closely the golden patches of a pair are coupled."""
    rows: Rows = []
    for row in coupling_rows:
        deficit = row.coordination_deficit
        rows.append(
            [
                f"{row.run}:{row.setting}",
                row.coupling,
                row.overall.n,
                row.merge,
                row.overall,
                row.solo,
                points_text(deficit) if deficit else None,
            ]
        )
    present = {row.coupling for row in coupling_rows}
    notes = [f"{name}: {meaning}" for name, meaning in COUPLINGS.items() if name in present]
    notes.append("Classes by golden patches: `cooperbench tasks --stats` counts them")
    headings = ("run", "coupling", "n", "merge", "overall", "solo", "deficit")
    return Table("By coupling", headings, rows, notes)


def _teams_table(team_rows: Sequence[TeamRow]) -> Table:
    rows: Rows = []
    for row in team_rows:
        sums = [f"{row.sums[name]:,.0f}" for name in TEAM_SUMS]
        rows.append([row.run, row.pairs, row.integrated_by_lead, *sums])
    notes = [
        "by lead: the lead's patch alone passes the tests of all features; not part of any verdict"
    ]
    return Table("Teams", ("run", "pairs", "by lead", *TEAM_SUMS.values()), rows, notes)


def _difficulty_tables(difficulty: Difficulty) -> Iterator[Table]:
    for curve in difficulty.curves:
        rows: Rows = [
            [
                f"{bucket.low:.1f}–{bucket.high:.1f}",
                bucket.pairs,
                bucket.solo,
                bucket.solo.n,
                bucket.together,
                bucket.together.n,
            ]
            for bucket in curve.buckets
            if bucket.solo.n or bucket.together.n
        ]
        notes = [_area_note(curve)] if curve.has_enough_difficulties else []
        title = f"By difficulty: {curve.configuration} ({curve.setting})"
        if curve is difficulty.curves[0]:
            title = "By difficulty"
            notes += _difficulty_notes(difficulty, curve)
        yield Table(title, ("difficulty", "pairs", "solo", "n", curve.setting, "n"), rows, notes)


def _area_note(curve: Curve) -> str:
    solo = decimal_text(curve.solo_area, 3)
    together = decimal_text(curve.together_area, 3)
    delta = decimal_text(curve.delta_area, 3)
    return (
        f"Area under the curve: solo {solo}, {curve.setting} {together},"
        f" ΔAUC {delta}, retention {percent_text(curve.retention)}"
    )


def _difficulty_notes(difficulty: Difficulty, curve: Curve) -> Iterator[str]:
    configurations = plural(len(difficulty.configurations), "configuration")
    yield f"Difficulty from the solo results of {configurations}; 95 % Wilson intervals"
    if not curve.has_enough_difficulties:
        yield (
            "All pairs have one of two difficulties, which is not enough for a curve:"
            " add solo runs of other models"
        )
    if difficulty.unscored:
        yield f"{plural(difficulty.unscored, 'pair')} without a solo verdict: in no curve"


def _agent_curve_table(curve: AgentCurve) -> Table:
    first = curve.points[0]
    rows: Rows = []
    for point in curve.points:
        change = None if point is first else points_text(point.change)
        rows.append([point.agents, point.groups, *point.rates.values(), point.golden, change])
    basis = basis_text(first.rates["overall"]).replace("pair", "largest group")
    notes = [f"Nested groups of the same features: {basis}"]
    if curve.left_out:
        groups = plural(curve.left_out, "evaluated group")
        notes.append(f"{groups} not nested with all sizes: left out")
    if any(point.golden is None for point in curve.points):
        sizes = ",".join(str(point.agents) for point in curve.points)
        command = (
            f"cooperbench validate --conflicts-only --agents {sizes}"
            " --report DATASET/gold_conflict_report.json"
        )
        notes.append(f"golden patches: not known for all; {command}")
    noun = curve.unit
    title = f"By number of {noun}: {', '.join(curve.runs)} ({curve.setting})"
    headings = (noun, "groups", *first.rates, "golden merge", f"overall, since {first.agents}")
    return Table(title, headings, rows, notes)


def _repeats_table(repeats: Repeats) -> Table:
    rows: Rows = [
        [f"pass@{tries}", estimate, estimate.n, estimate.clusters]
        for tries, estimate in repeats.pass_at.items()
    ]
    flaky = [f"flaky: {pair.label} ({pair.passed} of {pair.of} passed)" for pair in repeats.flaky]
    title = f"Repeated: {', '.join(repeats.runs)} ({repeats.setting})"
    return Table(title, ("", "rate", "n", "tasks"), rows, first_lines(flaky) or ["no flaky pairs"])


def _cross_play_table(cross_play: CrossPlay) -> Table:
    cells = {
        (cell.agent1, cell.agent2): f"{rate_text(cell.overall)} n={cell.overall.n:,}"
        for cell in cross_play.cells
    }
    names = cross_play.configurations
    rows: Rows = []
    for agent1 in names:
        rates = [cells.get((agent1, agent2)) for agent2 in names]
        rows.append([agent1, *rates])
    notes = ["Overall success in coop; rows: agent1 (the lower feature), columns: agent2"]
    if cross_play.unknown:
        pairs = plural(cross_play.unknown, "pair")
        notes.append(f"{pairs} without a record of the two agents: left out")
    return Table("Who works with whom", ("agent1 ∖ agent2", *names), rows, notes)


def comparison_tables(
    comparison: Comparison, problems: Sequence[str] = (), mismatches: Sequence[Mismatch] = ()
) -> Iterator[Table]:
    """Yield the tables of `cooperbench compare`."""
    first, second = comparison.first, comparison.second
    yield _compared_rates_table(comparison)
    for title, keys in (
        (f"Lost: passed in {first}, failed in {second}", comparison.lost),
        (f"Gained: failed in {first}, passed in {second}", comparison.gained),
    ):
        if keys:
            marks = dict.fromkeys(comparison.unsound, " (unsound)")
            lines = [key.label + marks.get(key, "") for key in keys]
            yield Table(f"{title} ({len(keys):,})", notes=lines)
    if comparison.unpaired:
        lines = [
            f"{pair.label}: {pair.first_state}, {pair.second_state}" for pair in comparison.unpaired
        ]
        title = f"Not compared ({len(lines):,}): state in {first}, in {second}"
        yield Table(title, notes=first_lines(lines))
    yield from _rules_tables(comparison)
    yield from mismatch_tables(mismatches)
    if problems:
        yield Table("Could not be read", notes=problems)


def _rules_tables(comparison: Comparison) -> Iterator[Table]:
    """Yield a table of verdicts by our rule and by the public one, where any pair has both."""
    if not any(rule.n for rule in comparison.rules):
        return
    rows: Rows = []
    notes = []
    for rule in comparison.rules:
        mark = MARK if rule.side in comparison.affected else ""
        counts = [f"{rule.overall:,}/{rule.n:,}{mark}", f"{rule.public:,}/{rule.n:,}{mark}"]
        rows.append([rule.side, *counts, f"{len(rule.differences):,}"])
        if rule.without:
            missing = plural(rule.without, "pair")
            notes.append(f"{rule.side}: {missing} without it; `eval --force` adds it")
        lines = [f"{rule.side} {entry.pair.label}: {entry.reason}" for entry in rule.differences]
        notes += first_lines(lines)
    headings = ("", "overall", "public rule", "differ")
    yield Table(
        "Overall by our rule and by the public release's, on the same patches",
        headings,
        rows,
        notes,
    )


def _compared_rates_table(comparison: Comparison) -> Table:
    rows: Rows = []
    for name, rate in (
        (comparison.first, comparison.first_rate),
        (comparison.second, comparison.second_rate),
    ):
        passed = round((rate.value or 0.0) * rate.n)
        mark = MARK if name in comparison.affected else ""
        rows.append([name, rate_text(rate) + mark, f"{passed:,}/{rate.n:,}{mark}"])
    mark = MARK if comparison.affected else ""
    rows.append(["difference", points_text(comparison.difference) + mark, ""])
    flips = f"{len(comparison.gained):,} gained, {len(comparison.lost):,} lost"
    p = p_text(comparison.mcnemar_p)
    notes = [
        f"difference: {basis_text(comparison.difference)}",
        f"McNemar's exact test: {p} ({flips}; it assumes that pairs are independent)",
    ]
    deficit, retention = comparison.coordination_deficit, comparison.retention
    if deficit is not None and retention is not None:
        rows.append(["coordination deficit (solo − coop)", points_text(deficit) + mark, ""])
        rows.append(["retention (coop ∕ solo)", rate_text(retention) + mark, ""])
        if retention.note:
            notes.append(f"retention: {retention.note}")
    if comparison.unsound:
        count = plural(len(comparison.unsound), "unsound pair")
        notes.append(f"{count} among them; --sound-only compares without")
    if comparison.unconfirmed:
        count = plural(len(comparison.unconfirmed), "pair")
        notes.append(f"{count} among them with successes that no confirmation run supports")
    title = f"{comparison.verdict} over {plural(comparison.n, 'pair')} with a verdict on both sides"
    return Table(title, ("", "", "passed"), rows, notes)


def judge_table(report: JudgeReport) -> Table:
    """Return why pairs failed, in the opinion of the LLM judge."""
    causes: Counter[str] = Counter()
    symptoms: Counter[str] = Counter()
    for record in report.records:
        if record.label:
            causes[record.label.cause] += 1
            symptoms.update(symptom.symptom for symptom in record.label.symptoms)
    rows: Rows = [["cause", name, count] for name, count in causes.most_common()]
    rows += [["symptom", name, count] for name, count in symptoms.most_common()]
    spent = f"{report.judged:,} judged now for {dollars_text(report.cost)}, {report.kept:,} before"
    notes = [f"{spent}; evidence: judge.json beside each pair"]
    if report.unusable:
        notes.append(f"{plural(report.unusable, 'pair')} without a usable answer")
    notes += [f"not judged: {line}" for line in report.errors]
    count = plural(causes.total(), "pair")
    title = f"Why pairs of {report.run} failed, in the opinion of {report.model} ({count})"
    return Table(title, ("", "label", "pairs"), rows, notes)
