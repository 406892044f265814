"""The tables of a paper, made from the rows that the terminal and the page show.

Each number has the JSON pointer of its value in the output of `cooperbench report --json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cooperbench.report.analysis import Analysis, RateRow
from cooperbench.report.compare import Comparison
from cooperbench.report.coordination import RunCoordination
from cooperbench.report.formatting import p_text, points_text, rate_text
from cooperbench.report.loading import left_out_lines
from cooperbench.report.merges import MergeRow
from cooperbench.report.pairs import ENDED, LOSSES, VERDICTS
from cooperbench.report.paper.content import Number, PaperTable, Row, Source
from cooperbench.report.statistics import Estimate
from cooperbench.report.tables import INTERVALS
from cooperbench.report.workload import MEASURES as WORKLOAD_MEASURES
from cooperbench.report.workload import RATES as WORKLOAD_RATES
from cooperbench.report.workload_table import workload_amount_text
from cooperbench.text import dollars_text, duration_text, plural

_RATE = "pairs with the verdict / pairs that have it, with its 95 % interval"
_COMMUNICATION = (
    "messages",
    "step_share",
    "token_share",
    "plans",
    "questions",
    "first_message_step_fraction",
    "first_message_names_own_work",
    "names",
    "names_touched_by_sender",
    "names_touched_by_other",
    "names_not_touched",
    "repeated_messages",
    "messages_never_shown",
)
"""Measures of the table about communication, in its order."""


@dataclass(frozen=True)
class PaperData:
    """The results that tables and figures show."""

    analysis: Analysis
    coordination: Mapping[str, RunCoordination]
    """By the name of the run."""

    def configuration(self, run_name: str) -> str:
        """Return model and agent of a run, for people."""
        for run in self.analysis.runs:
            if run.name == run_name:
                return run.configuration
        return run_name

    def is_affected(self, run_names: Sequence[str]) -> bool:
        """Whether a mismatch affects the success of one of these runs."""
        for mismatch in self.analysis.mismatches:
            if "overall" in mismatch.affects and not set(run_names).isdisjoint(mismatch.runs):
                return True
        return False

    @property
    def rate_rows(self) -> list[tuple[int, RateRow]]:
        """The rows of whole sides, with their positions in the analysis."""
        rows = enumerate(self.analysis.rates)
        return [(index, row) for index, row in rows if row.repo is None]


def paper_tables(data: PaperData) -> list[PaperTable]:
    """Return all tables that have rows, in the order of the README."""
    tables = [
        _rates_table(data),
        _deficit_table(data),
        _merge_table(data),
        _rules_table(data),
        _coupling_table(data),
        _communication_table(data),
        _failures_table(data),
        _agents_table(data),
        _workload_table(data),
        _costs_table(data),
    ]
    return [table for table in tables if table.rows]


def _rate(source: Source, column: str, rate: Estimate | None, pointer: str) -> Number | None:
    """Return the number of a rate; None if there is no rate."""
    text = rate_text(rate) if rate is not None else ""
    return source.estimate(column, text, rate, _RATE, pointer)


def _side_filter(setting: str) -> dict[str, str]:
    return {"setting": setting, "state": "evaluated"}


def _rates_table(data: PaperData) -> PaperTable:
    entries = data.rate_rows
    present: set[str] = set()
    for _, row in entries:
        present.update(row.rates)
    verdicts = [name for name in VERDICTS if name in present]
    rows = []
    for index, row in entries:
        source = Source("rates", row.name, (row.run,), f"/rates/{index}", _side_filter(row.setting))
        overall = row.rates["overall"]
        numbers: list[Number | None] = [
            source.whole("n", overall.n, "evaluated pairs", "rates/overall/n"),
            source.whole(
                "tasks", overall.clusters, "tasks of these pairs", "rates/overall/clusters"
            ),
        ]
        for verdict in verdicts:
            estimate = row.rates.get(verdict)
            marked = replace(source, has_mismatch=verdict in row.affected)
            numbers.append(_rate(marked, verdict, estimate, f"rates/{verdict}"))
        labels = (data.configuration(row.run), row.setting, row.run)
        rows.append(Row(labels, tuple(numbers)))
    notes = [INTERVALS[data.analysis.interval]]
    notes += [f"{verdict}: {VERDICTS[verdict]}" for verdict in verdicts]
    notes += left_out_lines(data.analysis.runs)
    headings = ("model", "setting", "run", "n", "tasks", *verdicts)
    return PaperTable("rates", "Success by model and setting", headings, tuple(rows), tuple(notes))


def _deficit_table(data: PaperData) -> PaperTable:
    rows = []
    for index, comparison in enumerate(data.analysis.coordination_deficits):
        if comparison.n:
            rows.append(_deficit_row(data, index, comparison))
    without_solo = [
        f"{name}: no solo run of the same agent and model"
        for name in data.analysis.coop_without_solo
    ]
    notes = (
        (
            "Over the pairs that have a verdict in both. Deficit: solo − the other setting;"
            " retention: the other setting / solo; p: McNemar's exact test"
        ),
        *without_solo,
    )
    headings = ("model", "solo", "other", "n", "solo rate", "rate", "deficit", "retention", "p")
    caption = "Coordination deficit and retention"
    return PaperTable("deficit", caption, headings, tuple(rows), notes)


def _deficit_row(data: PaperData, index: int, comparison: Comparison) -> Row:
    runs = tuple(dict.fromkeys(_run_of(side) for side in (comparison.first, comparison.second)))
    source = Source(
        "deficit",
        comparison.second,
        runs,
        f"/coordination_deficits/{index}",
        {"pairs": "with a verdict on both sides", "verdict": comparison.verdict},
        has_mismatch=bool(comparison.affected),
    )
    deficit, retention = comparison.coordination_deficit, comparison.retention
    deficit_text = points_text(deficit) if deficit else ""
    numbers = (
        source.whole("n", comparison.n, "pairs in both", "n"),
        _rate(source, "first", comparison.first_rate, "first_rate"),
        _rate(source, "second", comparison.second_rate, "second_rate"),
        source.estimate(
            "deficit", deficit_text, deficit, "solo rate − other rate", "coordination_deficit"
        ),
        source.estimate(
            "retention",
            rate_text(retention) if retention else "",
            retention,
            "other rate / solo rate",
            "retention",
        ),
        source.count(
            "p",
            p_text(comparison.mcnemar_p),
            comparison.mcnemar_p,
            "McNemar's exact test of pairs that only one side passes",
            "mcnemar_p",
        ),
    )
    labels = (data.configuration(_run_of(comparison.second)), comparison.first, comparison.second)
    return Row(labels, numbers)


def _run_of(side: str) -> str:
    return side.rpartition(":")[0]


def _merge_table(data: PaperData) -> PaperTable:
    rows = []
    for index, row in enumerate(data.analysis.merges):
        rows.append(_merge_row(data, index, row))
    notes = (
        (
            "Plain three-way merges in git: clean, identical patches, conflict, or a"
            " patch is missing; union: conflicts whose union merge passes all tests"
        ),
    )
    headings = (
        *("model", "setting", "run", "n", "clean", "identical", "conflict", "missing"),
        *("union", "merge rate"),
    )
    return PaperTable("merge", "How merges ended", headings, tuple(rows), notes)


def _merge_row(data: PaperData, index: int, row: MergeRow) -> Row:
    source = Source(
        "merge",
        f"{row.run}:{row.setting}",
        (row.run,),
        f"/merges/{index}",
        _side_filter(row.setting),
        has_mismatch=data.is_affected([row.run]),
    )
    numbers: list[Number | None] = [source.whole("n", row.n, "evaluated pairs", "n")]
    for status, count in row.statuses.items():
        formula = f"pairs whose merge_status is {status}"
        numbers.append(source.whole(status, count, formula, f"statuses/{status}"))
    formula = "conflicts whose union merge passes all tests"
    numbers.append(source.whole("union", row.union_passed, formula, "union_passed"))
    numbers.append(_rate(source, "rate", row.merge, "merge"))
    return Row((data.configuration(row.run), row.setting, row.run), tuple(numbers))


def _rules_table(data: PaperData) -> PaperTable:
    rows = []
    for index, rule in enumerate(data.analysis.rules):
        if not rule.n:
            continue
        run_name = _run_of(rule.side)
        source = Source(
            "public_rule",
            rule.side,
            (run_name,),
            f"/rules/{index}",
            {"pairs": "with both verdicts"},
            has_mismatch=data.is_affected([run_name]),
        )
        numbers = (
            source.whole("n", rule.n, "pairs with both verdicts", "n"),
            source.whole(
                "overall",
                rule.overall,
                "pairs that pass by our rule: the plain merge, after a conflict a union merge",
                "overall",
            ),
            source.whole(
                "public",
                rule.public,
                "pairs that pass by the public rule (merged_public in eval.json): the plain"
                " merge, after a conflict the first agent's patch alone",
                "public",
            ),
        )
        rows.append(Row((data.configuration(run_name), rule.side), numbers))
    notes = (
        (
            "The same patches by two rules. The public release tests the first agent's patch alone"
            " after a conflict; we test a union merge. The public rule is in no other number"
        ),
    )
    headings = ("model", "run", "n", "overall (ours)", "overall (public rule)")
    caption = "Success by our rule and by the rule of the public release"
    return PaperTable("public_rule", caption, headings, tuple(rows), notes)


def _coupling_table(data: PaperData) -> PaperTable:
    rows = []
    for index, row in enumerate(data.analysis.coupling):
        side = f"{row.run}:{row.setting}"
        source = Source(
            "coupling",
            f"{side}:{row.coupling}",
            (row.run,),
            f"/coupling/{index}",
            {**_side_filter(row.setting), "coupling": row.coupling},
            has_mismatch=data.is_affected([row.run]),
        )
        deficit = row.coordination_deficit
        deficit_text = points_text(deficit) if deficit else ""
        numbers = (
            source.whole("n", row.overall.n, "evaluated pairs", "overall/n"),
            _rate(source, "merge", row.merge, "merge"),
            _rate(source, "overall", row.overall, "overall"),
            _rate(source, "solo", row.solo, "solo"),
            source.estimate(
                "deficit", deficit_text, deficit, "solo rate − rate", "coordination_deficit"
            ),
        )
        rows.append(Row((data.configuration(row.run), side, row.coupling), numbers))
    headings = ("model", "run", "coupling", "n", "merge", "overall", "solo", "deficit")
    notes = ("Classes by how closely the golden patches of a pair are coupled",)
    return PaperTable("coupling", "Success by coupling", headings, tuple(rows), notes)


def _communication_table(data: PaperData) -> PaperTable:
    rows = []
    for index, (run_name, coordination) in enumerate(data.coordination.items()):
        if not coordination.n:
            continue
        source = Source(
            "communication",
            run_name,
            (run_name,),
            f"/coordination/{index}",
            {"setting": "several agents", "state": "with a result"},
        )
        for position, measure in enumerate(coordination.measures):
            if measure.name not in _COMMUNICATION:
                continue
            number = source.estimate(
                measure.name,
                measure.value_text,
                measure.estimate,
                f"{'share' if measure.is_share else 'mean'} over {measure.unit}:"
                " docs/coordination.md",
                f"measures/{position}/estimate",
            )
            size = source.count(
                f"{measure.name} n",
                f"{measure.estimate.n:,} {measure.unit}",
                measure.estimate.n,
                f"{measure.unit} with a known value",
                f"measures/{position}/estimate/n",
            )
            labels = (data.configuration(run_name), run_name, measure.title)
            rows.append(Row(labels, (number, size)))
    headings = ("model", "run", "measure", "mean or share", "n")
    notes = (
        (
            "Pairs of several agents. A named piece of code is honored if the patch of the sender"
            " touches it (named and touched by the sender)"
        ),
    )
    caption = "Communication between agents"
    return PaperTable("communication", caption, headings, tuple(rows), notes)


def _failures_table(data: PaperData) -> PaperTable:
    rows = []
    for index, (run_name, coordination) in enumerate(data.coordination.items()):
        total = sum(coordination.loss.values())
        if not total:
            continue
        source = Source(
            "failures",
            run_name,
            (run_name,),
            f"/coordination/{index}",
            {"setting": "several agents", "state": "evaluated"},
            has_mismatch=data.is_affected([run_name]),
        )
        numbers = [
            source.whole(loss, count, f"pairs with: {LOSSES[loss].sentence}", f"loss/{loss}")
            for loss, count in coordination.loss.items()
        ]
        rows.append(Row((data.configuration(run_name), run_name), tuple(numbers)))
    notes = tuple(f"{meaning.short}: {meaning.sentence}" for meaning in LOSSES.values())
    headings = ("model", "run", *(meaning.short for meaning in LOSSES.values()))
    caption = "The first thing that went wrong in each pair"
    return PaperTable("failures", caption, headings, tuple(rows), notes)


def _agents_table(data: PaperData) -> PaperTable:
    rows = []
    for index, curve in enumerate(data.analysis.agent_curves):
        for position, point in enumerate(curve.points):
            source = Source(
                "agents",
                f"{curve.runs[0]}:{curve.setting}:{point.agents}",
                curve.runs,
                f"/agent_curves/{index}/points/{position}",
                {**_side_filter(curve.setting), "groups": "nested in a largest group"},
                has_mismatch=data.is_affected(curve.runs),
            )
            numbers = (
                source.whole("groups", point.groups, "groups", "groups"),
                _rate(source, "overall", point.rates["overall"], "rates/overall"),
                _rate(source, "merge", point.rates.get("merge"), "rates/merge"),
            )
            label = f"{point.agents} {curve.unit}"
            rows.append(Row((data.configuration(curve.runs[0]), curve.setting, label), numbers))
    headings = ("model", "setting", "size", "groups", "overall", "merge")
    notes = ("Nested groups of the same features; docs/statistics.md, Number of agents",)
    caption = "Success over the number of agents"
    return PaperTable("agents", caption, headings, tuple(rows), notes)


def _workload_table(data: PaperData) -> PaperTable:
    rows = []
    for index, curve in enumerate(data.analysis.workload_curves):
        side = f"{curve.features} features, {curve.setting}"
        for position, point in enumerate(curve.points):
            source = Source(
                "workload",
                f"{curve.runs[0]}:{curve.features}:{curve.setting}:{curve.split}:{point.agents}",
                curve.runs,
                f"/workload_curves/{index}/points/{position}",
                {"groups": "with a verdict for every number of agents", "split": curve.split},
                has_mismatch=data.is_affected(curve.runs),
            )
            numbers = []
            for measure in WORKLOAD_MEASURES:
                estimate = point.means.get(measure)
                text = ""
                if estimate is not None:
                    is_rate = measure in WORKLOAD_RATES
                    text = (
                        rate_text(estimate) if is_rate else workload_amount_text(estimate, measure)
                    )
                formula = "mean over the groups, with its 95 % interval"
                numbers.append(
                    source.estimate(measure, text, estimate, formula, f"means/{measure}")
                )
            labels = (data.configuration(curve.runs[0]), side, plural(point.agents, "agent"))
            rows.append(Row(labels, tuple(numbers)))
    headings = ("model", "workload", "agents", *WORKLOAD_MEASURES.values())
    notes = ("The same groups at every number of agents; docs/statistics.md, Constant workload",)
    caption = "Results over the number of agents at constant workload"
    return PaperTable("workload", caption, headings, tuple(rows), notes)


def _costs_table(data: PaperData) -> PaperTable:
    rows = []
    notes = ["Costs are of all agents, without tests. Per pair: over pairs whose agents ended"]
    for index, row in data.rate_rows:
        source = Source(
            "costs",
            row.name,
            (row.run,),
            f"/rates/{index}",
            {"setting": row.setting},
            has_mismatch="cost" in row.affected,
        )
        rows.append(Row((data.configuration(row.run), row.setting, row.run), _costs(source, row)))
        if row.unpriced_calls:
            calls = plural(row.unpriced_calls, "call")
            notes.append(f"{row.name}: cost excludes {calls} to models without a known price")
    headings = (
        *("model", "setting", "run", "cost", "per pair", "tokens", "steps", "messages"),
        "agents' time",
    )
    return PaperTable("costs", "Cost and time", headings, tuple(rows), tuple(notes))


def _costs(source: Source, row: RateRow) -> tuple[Number | None, ...]:
    per_pair = None
    if row.cost_per_pair is not None:
        text = f"${row.cost_per_pair:,.3f}"
        formula = f"cost / pairs whose agents ended (states {', '.join(ENDED)})"
        per_pair = source.count("per pair", text, row.cost_per_pair, formula, "cost_per_pair")
    sums = [
        source.whole(name, value, f"sum of {name} over all pairs", name)
        for name, value in (
            ("tokens", row.tokens),
            ("steps", row.steps),
            ("messages", row.messages),
        )
    ]
    return (
        source.count("cost", dollars_text(row.cost), row.cost, "sum over all agents", "cost"),
        per_pair,
        *sums,
        source.count(
            "agent_seconds",
            duration_text(row.agent_seconds),
            row.agent_seconds,
            "sum over all pairs",
            "agent_seconds",
        ),
    )
