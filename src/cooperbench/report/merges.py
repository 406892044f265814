"""How the patches of agents merged in plain git."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cooperbench.models import Setting
from cooperbench.report import Method
from cooperbench.report.loading import Run, sides_of
from cooperbench.report.pairs import EVALUATED, PairData
from cooperbench.report.statistics import Estimate, observe_verdict, rate

MERGE_STATUSES = ("clean", "identical", "conflict", "missing_input")


@dataclass(frozen=True)
class MergeRow:
    """The merges on one side with several agents."""

    run: str
    setting: Setting
    n: int
    """Number of evaluated pairs."""
    statuses: Mapping[str, int]
    """Number of pairs by how the plain merge ended; `missing_input`: a patch is missing."""
    union_passed: int
    """Number of conflicts whose union merge passes all tests."""
    merge: Estimate
    """Share of pairs that merge plainly."""


def merge_rows(runs: Sequence[Run], method: Method = "clustered") -> list[MergeRow]:
    """Return a row for each side of several agents that has evaluated pairs."""
    rows = []
    for side in sides_of(runs):
        pairs = [pair for pair in side.pairs.values() if pair.state in EVALUATED]
        if side.setting == "solo" or not pairs:
            continue
        counts = Counter(pair.merge_status for pair in pairs)
        union_merges = [pair for pair in pairs if _passes_as_union(pair)]
        rows.append(
            MergeRow(
                run=side.run.name,
                setting=side.setting,
                n=len(pairs),
                statuses={status: counts[status] for status in MERGE_STATUSES},
                union_passed=len(union_merges),
                merge=rate(observe_verdict(pairs, "merge"), method),
            )
        )
    return rows


def _passes_as_union(pair: PairData) -> bool:
    """Whether the tests passed on a union merge, after a conflict."""
    return pair.merge_status == "conflict" and bool(pair.verdicts["merged"])
