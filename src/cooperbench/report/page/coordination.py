"""What the coordination metrics say, as rows for the page: a name, a value in words, and the evidence to click on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.report.formatting import hundredths_text
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cooperbench.report.coordination.aggregate import RunCoordination
    from cooperbench.report.coordination.pair import Coordination
    from cooperbench.report.statistics.intervals import Estimate

MOST_EVIDENCE = 40
_MOST_CHARACTERS = 300
_WORDS = {
    "messages": "messages in a pair",
    "agents_that_wrote": "agents that wrote at all",
    "step_share": "steps spent on messages",
    "token_share": "tokens spent on messages",
    "first_message_step": "step of the first message",
    "first_message_time_fraction": "first message, in the time of the agent",
    "first_message_is_plan": "first messages that announce a plan",
    "questions": "questions in a pair",
    "questions_answered": "questions answered",
    "answer_steps": "steps until the answer",
    "repeated_messages": "messages that repeat an earlier one",
    "messages_never_shown": "messages that were never read",
    "messages_to_finished": "messages to a partner that had finished",
    "claims_kept": "claims that the patch keeps",
    "pairs_sharing_files": "pairs that change the same file",
    "shared_files": "files changed by both",
    "overlapping_changes": "changes that overlap",
    "pairs_sharing_symbols": "pairs that change the same function or class",
    "conflicts_with_plans": "conflicts where all announced a plan",
    "conflicts_without_plans": "conflicts where not all did",
}
"""In the order of the page; measures without words of their own follow under their names."""


def run_rows(found: RunCoordination) -> list[dict[str, Any]]:
    """Of a run: every measure that is known for something in it."""
    rows = [_estimated(one.name, one.unit, one.mean) for one in found.measures]
    rows += [_estimated(one.name, one.unit, one.rate, share=True) for one in found.shares]
    order = {name: place for place, name in enumerate(_WORDS)}
    return [row for _, row in sorted(rows, key=lambda row: order.get(row[0], len(order))) if row]


def _estimated(
    name: str, unit: str, estimate: Estimate, *, share: bool = False
) -> tuple[str, dict[str, Any] | None]:
    if estimate.value is None:
        return name, None
    if share or name.endswith(("_share", "_fraction")):
        scale, digits, sign = 100, 0, " %"
    else:
        scale, digits, sign = 1, 1, " s" if name.endswith("_seconds") else ""
    row: dict[str, Any] = {
        "name": _WORDS.get(name, name.replace("_", " ")),
        "value": f"{scale * estimate.value:.{digits}f}{sign}",
        "n": f"{estimate.n} {unit}",
    }
    if estimate.low is not None and estimate.high is not None:
        row["interval"] = f"{scale * estimate.low:.{digits}f} to {scale * estimate.high:.{digits}f}{sign}"
    return name, row


def pair_rows(found: Coordination) -> list[dict[str, Any]]:
    """Of one pair: what there is to say, most telling first; nothing for one agent alone."""
    if len(found.agents) < 2:
        return []
    return [row for row in _rows(found) if row["value"]]


def _rows(found: Coordination) -> Iterator[dict[str, Any]]:
    sent = ", ".join(f"{agent.agent_id} {agent.sent}" for agent in found.agents)
    yield _row("messages sent", sent if found.messages_known else "not on record")
    yield _row("steps on messages", _each((one.agent_id, one.step_share) for one in found.agents))
    yield _row("tokens on messages", _each((one.agent_id, one.token_share) for one in found.agents))
    plans = [plan for plan in found.plans if plan.announced]
    yield _row(
        "plans in the first message",
        f"{len(plans)} of {plural(len(found.agents), 'agent')}" if found.messages_known else "",
        [(plan.message, f"{plan.agent_id} announces {', '.join(plan.announced)}") for plan in plans],
    )
    if found.questions:
        answered = sum(one.answered_by is not None for one in found.questions)
        yield _row(
            "questions answered",
            f"{answered} of {len(found.questions)}",
            [
                (one.message, one.text + ("" if one.answered_by else " (no answer)"))
                for one in found.questions
            ],
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
            (
                one.message,
                f"{one.recipient} had finished" if one.after_end else f"{one.recipient} took no further step",
            )
            for one in found.never_shown
        ],
    )
    yield from _claims(found)
    yield from _overlaps(found)


def _claims(found: Coordination) -> Iterator[dict[str, Any]]:
    for verdict in ("broken", "kept", "withdrawn", "not_verifiable"):
        claims = [one for one in found.claims if one.verdict == verdict]
        yield _row(
            f"claims {verdict.replace('_', ' ')}",
            str(len(claims) or ""),
            [(one.claim.message, f"“{one.claim.sentence.strip()}”: {one.reason}") for one in claims],
        )


def _overlaps(found: Coordination) -> Iterator[dict[str, Any]]:
    for one in found.overlaps:
        files = [
            (
                None,
                f"{file.path}: {file.overlapping} overlapping, {file.adjacent} adjacent, {file.identical} identical",
            )
            for file in one.files
        ]
        yield _row("files changed by both", str(len(one.files)), files)
        symbols = [(None, f"{symbol.name} in {symbol.path}") for symbol in one.symbols]
        yield _row("functions and classes changed by both", str(len(one.symbols) or ""), symbols)


def _each(shares: Iterable[tuple[str, float | None]]) -> str:
    return ", ".join(f"{name} {hundredths_text(share)} %" for name, share in shares if share is not None)


def _row(name: str, value: str, evidence: Sequence[tuple[int | None, str]] = ()) -> dict[str, Any]:
    shown = [
        {"message": message, "text": text[:_MOST_CHARACTERS]} for message, text in evidence[:MOST_EVIDENCE]
    ]
    if len(evidence) > MOST_EVIDENCE:
        shown.append({"message": None, "text": f"… {len(evidence) - MOST_EVIDENCE} more"})
    return {"name": name, "value": value, "evidence": shown}
