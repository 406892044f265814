"""Coordination as tables for the terminal, and as JSON with every pair's evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.aggregate import coordination_of_run
from cooperbench.report.coordination.pair import coordination
from cooperbench.report.formatting import NOTHING, Table, percent_text, rate_text
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.report.coordination.aggregate import RunCoordination
    from cooperbench.report.coordination.pair import Coordination
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData
    from cooperbench.report.statistics.intervals import Estimate

MOST_LINES = 20
_MOST_CHARACTERS = 100
_MEASURES = {
    "messages": "messages in a pair",
    "step_share": "steps spent on messages",
    "token_share": "tokens spent on messages",
    "first_message_step_fraction": "steps before the first message",
    "first_message_seconds": "seconds before the first message",
    "answer_steps": "steps until an answer",
    "answer_seconds": "seconds until an answer",
    "file_share": "files in common",
    "overlapping_changes": "overlapping changes",
    "shared_symbols": "functions and classes in common",
}
_SHARES = {
    "first_message_is_plan": "first message is a plan",
    "questions_replied_to": "questions replied to",
    "questions_answered": "questions answered",
    "repeated_messages": "repeated messages",
    "messages_to_finished": "messages to a finished partner",
    "claims_kept": "claims kept",
    "pairs_sharing_files": "change a common file",
    "conflicts_with_plans": "conflicts where all began with a plan",
    "conflicts_without_plans": "conflicts where not all did",
}


@dataclass(frozen=True)
class LookedAt:
    """A run whose coordination has been computed."""

    run: Run
    pairs: tuple[tuple[PairData, Coordination], ...]
    """Those with a result."""
    found: RunCoordination

    def to_json(self) -> dict[str, Any]:
        """All of it, pair by pair, with the evidence."""
        pairs = [
            {
                "repo": pair.key.repo,
                "task_id": pair.key.task_id,
                "features": list(pair.key.features),
                **found.to_json(),
            }
            for pair, found in self.pairs
        ]
        return {"run": self.run.name, **self.found.to_json(), "pairs": pairs}


def look_at(run: Run) -> LookedAt:
    """Read the coop pairs of a run, each once."""
    pairs: list[tuple[PairData, Coordination]] = []

    def look(pair: PairData) -> Coordination:
        pairs.append((pair, coordination(pair)))
        return pairs[-1][1]

    found = coordination_of_run(run.pairs, look)
    return LookedAt(run, tuple(pairs), found)


def coordination_tables(looked: LookedAt) -> Iterator[Table]:
    found, name = looked.found, looked.run.name
    if not found.n:
        yield Table(f"Coordination in {name}", notes=["no coop pair with a result"])
        return
    over = f"{plural(found.n, 'pair')} of {plural(found.clusters, 'task')}"
    loss = found.loss
    notes = [f"{found.skipped} without a result left out"] if found.skipped else []
    yield Table(
        f"Where pairs of {name} were lost",
        ("passed", "failed alone", "conflicted", "failed together", "with a verdict"),
        [[str(count) for count in (loss.passed, loss.capability, loss.conflict, loss.integration, loss.n)]],
        notes,
    )
    yield Table(
        f"Coordination in {name} ({over})",
        ("", "mean", "median", "n"),
        [_measure_row(found, key, title) for key, title in _MEASURES.items()],
    )
    yield Table(
        f"Of what there was in {name}",
        ("", "count", "rate", "n"),
        [_share_row(found, key, title) for key, title in _SHARES.items()],
        ["95 % intervals, clustered by task. What each number means: docs/coordination.md"],
    )
    yield from _broken_claims(looked)
    if found.conflicts:
        yield Table(
            "Conflicts by file",
            ("task", "file", "pairs"),
            [
                [f"{one.repo}/task{one.task_id}", one.path, str(one.pairs)]
                for one in found.conflicts[:MOST_LINES]
            ],
            _more(len(found.conflicts)),
        )
    if found.problems:
        yield Table("Could not be read", notes=[*found.problems[:MOST_LINES], *_more(len(found.problems))])


def _broken_claims(looked: LookedAt) -> Iterator[Table]:
    broken = [
        [
            pair.label,
            one.claim.agent_id,
            str(one.claim.message),
            one.claim.sentence[:_MOST_CHARACTERS],
            one.reason,
        ]
        for pair, found in looked.pairs
        for one in found.claims
        if one.verdict == "broken"
    ]
    if broken:
        headings = ("pair", "agent", "message", "said", "but")
        yield Table("Broken claims", headings, broken[:MOST_LINES], _more(len(broken)))


def _more(count: int) -> list[str]:
    return [f"… and {count - MOST_LINES} more (all of them: --json)"] if count > MOST_LINES else []


def _measure_row(found: RunCoordination, name: str, title: str) -> list[str]:
    measure = found.measure(name)
    n = f"{measure.mean.n} {measure.unit}"
    if name.endswith(("_share", "_fraction")):
        return [title, rate_text(measure.mean), percent_text(measure.median), n]
    return [title, _mean_text(measure.mean), _number(measure.median), n]


def _share_row(found: RunCoordination, name: str, title: str) -> list[str]:
    share = found.share(name)
    count = str(share.count) if share.rate.n else NOTHING
    return [title, count, rate_text(share.rate), f"{share.rate.n} {share.unit}"]


def _mean_text(mean: Estimate) -> str:
    if mean.low is None or mean.high is None:
        return _number(mean.value)
    return f"{_number(mean.value)} [{_number(mean.low)}–{_number(mean.high)}]"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"
