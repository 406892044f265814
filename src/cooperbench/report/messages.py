"""What agents spent on messages, and what their form shows: questions, repetitions, messages never read.

Every number is defined in docs/coordination.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cooperbench.records.result import AgentResult
from cooperbench.records.trajectory import Step
from cooperbench.report.mentions import MAX_CHARACTERS, prose_lines
from cooperbench.report.pairs import Conversation, SentMessage

SIMILAR = 0.7
"""Jaccard similarity of three-word sequences from which on a message repeats an earlier one."""
EARLIER_MESSAGES = 100
"""So many of the same sender to the same recipient are compared."""
_MAX_SCANNED = 200_000
_CALLS = re.compile(
    r"(?:^|[;&|({`!\n]|\$\(|\b(?:then|do|else|if|while|time|exec|env))[ \t]*"
    r"(?:send_message|read_messages)(?![\w./=-])"
)
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+")
_WORD = re.compile(r"[^\W_]+(?:_[^\W_]+)*")


@dataclass(frozen=True)
class Activity:
    agent_id: str
    steps: int
    messaging_steps: tuple[int, ...]
    step_share: float | None
    """Those over all; None where what was done in the steps is not on record."""
    token_share: float | None
    """Of the tokens that the model wrote, those of replies that led to such steps; None where none were counted."""
    sent: int
    first_message: int | None
    first_step_fraction: float | None
    """The step of its first message, as a share of all its steps."""


@dataclass(frozen=True)
class Remark:
    """What was found about a message, as a text; `message` is its number."""

    message: int
    text: str


def activity_of(
    agent_id: str,
    result: AgentResult | None,
    trajectory: Sequence[Step],
    messages: Sequence[SentMessage],
) -> Activity:
    """Return what one agent spent on messages; `result` is its part of result.json."""
    mine = [message for message in messages if message.sender == agent_id]
    numbers = {step.number for step in trajectory if step.number is not None}
    steps = max(len(numbers), result.steps if result else 0)
    messaging = {message.sender_step for message in mine if message.sender_step}
    for step in trajectory:
        if step.number is not None and _is_messaging(step):
            messaging.add(step.number)
    first = mine[0] if mine else None
    return Activity(
        agent_id,
        steps,
        tuple(sorted(messaging)),
        min(1.0, len(messaging) / steps) if steps and trajectory else None,
        _token_share(trajectory, messaging),
        len(mine),
        first.sequence if first else None,
        min(1.0, first.sender_step / steps) if first and first.sender_step and steps else None,
    )


def _is_messaging(step: Step) -> bool:
    if step.action != "run":
        return step.action == "send_message"
    text = str(step.args.get("command", ""))[:_MAX_SCANNED]
    # The cheap question first: most commands have nothing to do with messages.
    return "_message" in text and _CALLS.search(text) is not None


def _token_share(trajectory: Sequence[Step], messaging: Collection[int]) -> float | None:
    """By the provider's count; a reply with several steps is divided evenly among them."""
    replies: list[tuple[float, list[int]]] = []
    for step in trajectory:
        if step.action == "reply":
            replies.append((max(0.0, step.usage.completion_tokens), []))
        elif step.number is not None and replies:
            replies[-1][1].append(step.number)
    total = sum(written for written, _ in replies)
    on_messages = sum(
        written * sum(step in messaging for step in steps) / max(1, len(steps))
        for written, steps in replies
    )
    return on_messages / total if total else None


def questions_in(messages: Sequence[SentMessage]) -> list[Remark]:
    """Sentences of at least two words that end with a question mark."""
    return [
        Remark(message.sequence, sentence.strip())
        for message in messages
        for line in prose_lines(message.text)
        if "?" in line
        for sentence in _SENTENCE_END.split(line)
        if sentence.rstrip("\"')]*_ ").endswith("?") and len(_WORD.findall(sentence)) > 1
    ]


def repetitions_in(messages: Sequence[SentMessage]) -> list[Remark]:
    """Messages that say again what their sender has told the same recipient."""
    found = []
    said: dict[tuple[str, str], list[tuple[int, frozenset[str]]]] = {}
    for message in messages:
        spoken = [word.lower() for word in _WORD.findall(message.text[:MAX_CHARACTERS])]
        if not spoken:
            continue
        sequences = frozenset(
            " ".join(spoken[at : at + 3]) for at in range(max(1, len(spoken) - 2))
        )
        before = said.setdefault((message.sender, message.recipient), [])
        similar = (
            (len(sequences & other) / len(sequences | other), number) for number, other in before
        )
        similarity, earlier = max(similar, default=(0.0, 0))
        if similarity >= SIMILAR:
            found.append(Remark(message.sequence, f"says message {earlier} again"))
        before.append((message.sequence, sequences))
        del before[:-EARLIER_MESSAGES]
    return found


def never_shown(conversation: Conversation) -> list[Remark]:
    """Messages without a delivery, as a rule because the recipient took no further step."""
    unread = (
        one for one in conversation.messages if one.delivered_at is None and conversation.complete
    )
    return [Remark(one.sequence, f"{one.recipient} took no further step") for one in unread]
