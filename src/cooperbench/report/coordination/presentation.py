"""Coordination for people: tables for the terminal, rows for the page. The figures and their titles are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.report.formatting import NOTHING, Table, hundredths_text, percent_text, rate_text
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cooperbench.report.coordination.aggregate import Measure, RunCoordination, Share
    from cooperbench.report.coordination.mentions import Mention
    from cooperbench.report.coordination.pair import Coordination
    from cooperbench.report.statistics.intervals import Estimate

MOST_LINES = 20
"""Of a table on the terminal."""
MOST_EVIDENCE = 40
"""Of a row on the page."""
_MOST_CHARACTERS = 300


def coordination_tables(run_name: str, found: RunCoordination) -> Iterator[Table]:
    """For the terminal."""
    if not found.n:
        yield Table(f"Coordination in {run_name}", notes=["no coop pair with a result"])
        return
    over = f"{plural(found.n, 'pair')} of {plural(found.clusters, 'task')}"
    loss = found.loss
    yield Table(
        f"Where pairs of {run_name} were lost",
        ("passed", "failed alone", "conflicted", "failed together", "with a verdict"),
        [[str(count) for count in (loss.passed, loss.capability, loss.conflict, loss.integration, loss.n)]],
        [f"{found.skipped} without a result left out"] if found.skipped else [],
    )
    yield Table(
        f"Coordination in {run_name} ({over})",
        ("", "mean", "median", "n"),
        [_measure_cells(measure) for measure in found.measures],
    )
    yield Table(
        f"Of what there was in {run_name}",
        ("", "count", "rate", "n"),
        [_share_cells(share) for share in found.shares],
        ["95 % intervals, clustered by task. What each number means: docs/coordination.md"],
    )
    yield from _table(
        "Named in a message, touched only by the other",
        ("pair", "agent", "message", "named", "touched by"),
        [
            [key.label, one.sender, str(one.messages[0]), _name(one), _places(one)]
            for key, pair in found.pairs
            for one in pair.mentions
            if one.touched_by_other and one.touched_by_sender is False
        ],
    )
    yield from _table(
        "Conflicts by file",
        ("task", "file", "pairs"),
        [[f"{one.repo}/task{one.task_id}", one.path, str(one.pairs)] for one in found.conflicts],
    )
    if found.problems:
        yield Table("Could not be read", notes=[*found.problems[:MOST_LINES], *_more(len(found.problems))])


def run_rows(found: RunCoordination) -> list[dict[str, Any]]:
    """For the first page: every figure that is known for something in the run."""
    rows = [_run_row(one, one.mean, _is_fraction(one)) for one in found.measures if one.mean.n]
    return rows + [_run_row(one, one.rate, True) for one in found.shares if one.rate.n]


def pair_rows(found: Coordination) -> list[dict[str, Any]]:
    """For the page of a pair: a name, a value, and evidence to click on; nothing for one agent alone."""
    if len(found.agents) < 2:
        return []
    return [row for row in _pair_rows(found) if row["value"]]


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Table]:
    if rows:
        yield Table(title, headings, rows[:MOST_LINES], _more(len(rows)))


def _more(count: int) -> list[str]:
    return [f"… and {count - MOST_LINES} more (all of them: --json)"] if count > MOST_LINES else []


def _measure_cells(one: Measure) -> list[str]:
    n = f"{one.mean.n} {one.unit}"
    if _is_fraction(one):
        return [one.title, rate_text(one.mean), percent_text(one.median), n]
    interval = "" if one.mean.low is None else f" [{_number(one.mean.low)}–{_number(one.mean.high)}]"
    return [one.title, _number(one.mean.value) + interval, _number(one.median), n]


def _share_cells(one: Share) -> list[str]:
    count = str(one.count) if one.rate.n else NOTHING
    return [one.title, count, rate_text(one.rate), f"{one.rate.n} {one.unit}"]


def _is_fraction(one: Measure) -> bool:
    return one.name.endswith(("_share", "_fraction"))


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _run_row(one: Measure | Share, estimate: Estimate, is_share: bool) -> dict[str, Any]:
    scale, digits, unit = (100, 0, " %") if is_share else (1, 1, "")
    value, low, high = (
        None if number is None else f"{scale * number:.{digits}f}"
        for number in (estimate.value, estimate.low, estimate.high)
    )
    row = {"name": one.title, "value": f"{value}{unit}", "n": f"{estimate.n} {one.unit}"}
    return row if low is None or high is None else row | {"interval": f"{low} to {high}{unit}"}


def _pair_rows(found: Coordination) -> Iterator[dict[str, Any]]:
    sent = ", ".join(f"{agent.agent_id} {agent.sent}" for agent in found.agents)
    yield _row("messages sent", sent if found.messages_known else "not on record")
    yield _row("steps on messages", _each((one.agent_id, one.step_share) for one in found.agents))
    yield _row("tokens on messages", _each((one.agent_id, one.token_share) for one in found.agents))
    answered = sum(one.answered_by is not None for one in found.questions)
    yield _row(
        "questions answered",
        f"{answered} of {len(found.questions)}" if found.questions else "",
        [(one.message, one.text + ("" if one.answered_by else " (no answer)")) for one in found.questions],
    )
    yield _row(
        "repetitions",
        str(len(found.repetitions) or ""),
        [(one.message, f"says message {one.earlier} again") for one in found.repetitions],
    )
    yield _row(
        "never shown to the partner",
        str(len(found.never_shown) or ""),
        [
            (one.message, f"{one.recipient} {'had finished' if one.after_end else 'took no further step'}")
            for one in found.never_shown
        ],
    )
    yield from _mention_rows(found)
    named = found.named_files
    for overlap in found.overlaps:
        files = [
            (
                None,
                f"{file.path}: {file.overlapping} overlapping, {file.adjacent} adjacent, {file.identical} identical"
                + (", named in a message" if file.path in named else ""),
            )
            for file in overlap.files
        ]
        yield _row("files changed by both", str(len(overlap.files)), files)
        symbols = [(None, f"{symbol.name} in {symbol.path}") for symbol in overlap.symbols]
        yield _row("functions and classes changed by both", str(len(overlap.symbols) or ""), symbols)


def _mention_rows(found: Coordination) -> Iterator[dict[str, Any]]:
    sender = [one for one in found.mentions if one.touched_by_sender]
    other = [one for one in found.mentions if one.touched_by_other and not one.touched_by_sender]
    nobody = [one for one in found.mentions if not one.touches]
    for title, mentions in (
        ("named, and touched by the sender", sender),
        ("named, and touched only by the other", other),
        ("named, and touched by nobody", nobody),
    ):
        evidence = [
            (one.messages[0], f"{one.sender} names {_name(one)}; touched by {_places(one) or 'nobody'}")
            for one in mentions
        ]
        yield _row(title, str(len(mentions) or ""), evidence)


def _name(mention: Mention) -> str:
    named = mention.named
    return named.name if named.lines is None else "{}:{}-{}".format(named.name, *named.lines)


def _places(mention: Mention) -> str:
    """By whom it is touched, and where: `agent1 (src/app.py, patch line 12)`."""
    return ", ".join(
        f"{touch.agent_id} ({touch.path}, patch line {touch.patch_line})" for touch in mention.touches
    )


def _each(shares: Iterable[tuple[str, float | None]]) -> str:
    return ", ".join(f"{name} {hundredths_text(share)} %" for name, share in shares if share is not None)


def _row(name: str, value: str, evidence: Sequence[tuple[int | None, str]] = ()) -> dict[str, Any]:
    shown = [
        {"message": message, "text": text[:_MOST_CHARACTERS]} for message, text in evidence[:MOST_EVIDENCE]
    ]
    if len(evidence) > MOST_EVIDENCE:
        shown.append({"message": None, "text": f"… {len(evidence) - MOST_EVIDENCE} more"})
    return {"name": name, "value": value, "evidence": shown}
