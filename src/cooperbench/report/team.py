"""Setting team in reports: what the lead merged, and how tasks and requests were used. It is beside the verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.report.formatting import Table, rate_text
from cooperbench.report.records import flag, mapping, number
from cooperbench.report.states import ENDED
from cooperbench.report.statistics import Estimate, Observation, rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.report import Method
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData

SUMS = {
    "tasks_total": "tasks",
    "tasks_done": "done",
    "unowned_at_end": "unowned",
    "claims_lost": "claims lost",
    "requests_total": "requests",
    "requests_answered": "answered",
    "request_waiting_seconds": "waited, s",
    "changes_to_files_of_others_tasks": "others' files",
}
"""Of `metrics` in result.json, and what a column of them is called."""


@dataclass(frozen=True)
class TeamRow:
    run: str
    pairs: int
    """Those whose agents came to an end."""
    integrated_by_lead: Estimate
    """The lead's patch alone has all features; only where there is a lead, and a verdict."""
    sums: Mapping[str, float]
    """By the names in `SUMS`."""


def integrated_by_lead(pair: PairData) -> bool | None:
    has_lead = flag(mapping(pair.result, "team_features"), "roles") and pair.verdicts is not None
    return flag(pair.evaluation, "integrated_by_lead") if has_lead else None


def team_rows(runs: Sequence[Run], method: Method) -> list[TeamRow]:
    rows = []
    for run in runs:
        pairs = [pair for pair in run.of("team") if pair.state in ENDED]
        merged = [(pair.key, integrated_by_lead(pair)) for pair in pairs]
        known = [Observation(key, float(value)) for key, value in merged if value is not None]
        sums = {name: sum(number(mapping(pair.result, "metrics"), name) for pair in pairs) for name in SUMS}
        if pairs:
            rows.append(TeamRow(run.name, len(pairs), rate(known, method), sums))
    return rows


def team_table(rows: Sequence[TeamRow]) -> Table:
    cells = [
        [
            row.run,
            str(row.pairs),
            rate_text(row.integrated_by_lead),
            *(f"{row.sums[name]:.0f}" for name in SUMS),
        ]
        for row in rows
    ]
    notes = ["by lead: the lead's patch alone passes the tests of all features; part of no verdict"]
    return Table("Teams", ("run", "pairs", "by lead", *SUMS.values()), cells, notes)
