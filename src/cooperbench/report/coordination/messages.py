"""What agents spent on messages, and what messages are by their form: questions, repetitions, never read.

The harness records with each message in which step it was sent, so conversation.json is the truth about sending; a step
whose command calls `send_message` or `read_messages` counts too, whether or not anything came of it. Of a message the
first `MOST_CHARACTERS` are read, without fenced code and quoted lines. Every scan is linear, however hostile the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.report.fields import mapping, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cooperbench.report.pairs import Conversation, SentMessage, Trajectory

MOST_CHARACTERS = 64_000
SIMILAR = 0.7
"""Jaccard similarity of three-word sequences from which on a message repeats an earlier one."""
EARLIER_MESSAGES = 100
"""So many of the same sender to the same recipient are compared."""
_MOST_WORDS = 4_000
_MOST_SCANNED = 200_000
_CALLS = re.compile(
    r"(?:^|[;&|({`!\n]|\$\(|\b(?:then|do|else|if|while|time|exec|env))[ \t]*"
    r"(?:send_message|read_messages)(?![\w./=-])"
)
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+")
_WORD = re.compile(r"[^\W_]+(?:_[^\W_]+)*")


@dataclass(frozen=True)
class Activity:
    """One agent's messaging."""

    agent_id: str
    steps: int
    messaging_steps: tuple[int, ...]
    """Steps that sent messages or asked for them."""
    step_share: float | None
    """Those over all; None where what was done in the steps is not on record."""
    token_share: float | None
    """Of the tokens that the model wrote, by its provider's count, those of replies that led to such steps; a reply
    with several steps is divided evenly among them. None where no tokens were counted."""
    sent: int
    first_message: int | None
    """The number of its first message."""
    first_step_fraction: float | None
    """The step of its first message, as a share of all its steps."""


@dataclass(frozen=True)
class Question:
    message: int
    text: str


@dataclass(frozen=True)
class Repetition:
    """A message that says again what its sender has told the same recipient."""

    message: int
    earlier: int
    similarity: float


@dataclass(frozen=True)
class UnreadMessage:
    """A message that its recipient never saw."""

    message: int
    recipient: str


def activity_of(
    record: Mapping[str, Any], trajectory: Trajectory, messages: Sequence[SentMessage]
) -> Activity:
    """`record`: the agent's part of result.json."""
    entries = trajectory.entries
    mine = [message for message in messages if message.sender == trajectory.agent_id]
    taken = {step for entry in entries if (step := _step(entry)) is not None}
    steps = max(len(taken), int(number(record, "steps")))
    messaging = {message.sender_step for message in mine if message.sender_step}
    messaging |= {step for entry in entries if (step := _step(entry)) is not None and _is_messaging(entry)}
    first = mine[0] if mine else None
    fraction = min(1.0, first.sender_step / steps) if first and first.sender_step and steps else None
    return Activity(
        trajectory.agent_id,
        steps,
        tuple(sorted(messaging)),
        min(1.0, len(messaging) / steps) if steps and entries else None,
        _token_share(entries, messaging),
        len(mine),
        first.sequence if first else None,
        fraction,
    )


def _step(entry: Mapping[str, Any]) -> int | None:
    step = entry.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def _is_messaging(entry: Mapping[str, Any]) -> bool:
    if entry.get("action") != "run":
        return entry.get("action") == "send_message"
    text = str(mapping(entry, "args").get("command", ""))[:_MOST_SCANNED]
    # The cheap question first: most commands have nothing to do with messages.
    return "_message" in text and _CALLS.search(text) is not None


def _token_share(entries: Sequence[Mapping[str, Any]], messaging: set[int]) -> float | None:
    replies: list[tuple[float, list[int]]] = []
    for entry in entries:
        step = _step(entry)
        if entry.get("action") == "reply":
            replies.append((max(0.0, number(mapping(entry, "tokens"), "completion_tokens")), []))
        elif step is not None and replies:
            replies[-1][1].append(step)
    total = sum(written for written, _ in replies)
    on_messages = sum(
        written * sum(step in messaging for step in steps) / max(1, len(steps)) for written, steps in replies
    )
    return on_messages / total if total else None


def prose_lines(message: str) -> Iterator[str]:
    """The lines outside of fenced code and quotations."""
    in_fence = False
    for line in message[:MOST_CHARACTERS].split("\n"):
        if line.lstrip().startswith(("```", "~~~")):
            in_fence = not in_fence
        elif not in_fence and not line.lstrip().startswith(">"):
            yield line


def questions_in(messages: Sequence[SentMessage]) -> list[Question]:
    """Sentences of at least two words that end with a question mark."""
    return [
        Question(message.sequence, sentence.strip())
        for message in messages
        for line in prose_lines(message.text)
        if "?" in line
        for sentence in _SENTENCE_END.split(line)
        if sentence.rstrip("\"')]*_ ").endswith("?") and len(_WORD.findall(sentence)) > 1
    ]


def repetitions_in(messages: Sequence[SentMessage]) -> list[Repetition]:
    found = []
    said: dict[tuple[str, str], list[tuple[int, frozenset[str]]]] = {}
    for message in messages:
        spoken = [word.lower() for word in _WORD.findall(message.text[:MOST_CHARACTERS])[:_MOST_WORDS]]
        if not spoken:
            continue
        sequences = frozenset(" ".join(spoken[at : at + 3]) for at in range(max(1, len(spoken) - 2)))
        before = said.setdefault((message.sender, message.recipient), [])
        similar = ((_jaccard(sequences, other), number) for number, other in before)
        similarity, earlier = max(similar, default=(0.0, 0))
        if similarity >= SIMILAR:
            found.append(Repetition(message.sequence, earlier, round(similarity, 3)))
        before.append((message.sequence, sequences))
        del before[:-EARLIER_MESSAGES]
    return found


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    # Sets of very different size cannot be similar; that is cheaper to see.
    small, large = sorted((len(one), len(other)))
    if small < SIMILAR * large:
        return 0.0
    common = len(one & other)
    return common / (small + large - common)


def never_shown(conversation: Conversation) -> list[UnreadMessage]:
    """Messages without a delivery, as a rule because the recipient took no further step; none where the record does not
    tell of deliveries."""
    if not conversation.complete or all(one.sender_step is None for one in conversation.messages):
        return []
    unread = (one for one in conversation.messages if one.delivered_at is None)
    return [UnreadMessage(one.sequence, one.recipient) for one in unread]
