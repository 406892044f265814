"""How much of an agent's work went into messages: steps and tokens, and when it began.

The harness notes with each message in which step it was sent, so conversation.json is the truth about sending; a step
whose command calls `send_message` or `read_messages` counts too, whether or not anything came of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cooperbench.report.coordination.messages import seconds_between, timestamp_of
from cooperbench.report.records import mapping, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cooperbench.report.records import PairData, SentMessage, Trajectory

BYTES_PER_TOKEN = 4
"""For estimates, where no model said how many tokens it wrote."""
_MOST_SCANNED = 200_000
_CALLS = re.compile(
    r"(?:^|[;&|({`!\n]|\$\(|\b(?:then|do|else|if|while|time|exec|env))[ \t]*"
    r"(?P<command>send_message|read_messages)(?![\w./=-])"
)


@dataclass(frozen=True)
class Tokens:
    """What an agent wrote, in tokens."""

    on_messages: float
    """Of replies that led to messaging steps; a reply with several steps is divided evenly among them."""
    all: float
    basis: Literal["reported", "estimated", "none"]
    """`estimated`: bytes of what it wrote, divided by four, on both sides of the share."""

    @property
    def share(self) -> float | None:
        return self.on_messages / self.all if self.all else None


@dataclass(frozen=True)
class FirstMessage:
    """When an agent first spoke."""

    sequence: int
    step: int | None
    """The agent's own step, from 1."""
    seconds: float | None
    """After the agent's start."""
    step_fraction: float | None
    """Of all its steps."""


@dataclass(frozen=True)
class Activity:
    """One agent's messaging."""

    agent_id: str
    steps: int
    sending_steps: tuple[int, ...]
    reading_steps: tuple[int, ...]
    """Steps that asked for messages without sending one."""
    step_share: float | None
    """Sending and reading steps over all; None where what was done in the steps is not on record."""
    tokens: Tokens
    token_share: float | None
    sent: int
    received: int
    """Messages that were shown to it."""
    first: FirstMessage | None


def activity_of(pair: PairData, trajectory: Trajectory, messages: Sequence[SentMessage]) -> Activity:
    agent_id = trajectory.agent_id
    mine = [message for message in messages if message.sender == agent_id]
    entries = trajectory.entries
    taken = {step for entry in entries if (step := _step(entry)) is not None}
    record = mapping(mapping(pair.result, "agents"), agent_id)
    steps = max(len(taken), int(number(record, "steps")))
    sending = {message.sender_step for message in mine if message.sender_step} | _calling(
        entries, "send_message"
    )
    reading = _calling(entries, "read_messages") - sending
    tokens = _tokens(entries, {step for step in sending | reading if step})
    busy = len(sending | reading)
    start = (trajectory.record or {}).get("start_time")
    return Activity(
        agent_id,
        steps,
        tuple(sorted(sending)),
        tuple(sorted(reading)),
        min(1.0, busy / steps) if steps and entries else None,
        tokens,
        tokens.share,
        len(mine),
        sum(message.recipient == agent_id and message.delivered_at is not None for message in messages),
        _first(mine, steps, timestamp_of(start) or timestamp_of(record.get("started_at"))),
    )


def last_act(trajectory: Trajectory, record: Mapping[str, Any]) -> float | None:
    """When an agent did something for the last time, its end where no entry tells."""
    times = [timestamp_of(entry.get("timestamp")) for entry in trajectory.entries[-3:]]
    known = [time for time in times if time is not None]
    return max(known) if known else timestamp_of(record.get("ended_at"))


def _step(entry: Mapping[str, Any]) -> int | None:
    step = entry.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def _calling(entries: Iterable[Mapping[str, Any]], command: str) -> set[int]:
    found = set()
    for entry in entries:
        step = _step(entry)
        if step is None:
            continue
        if entry.get("action") == command:
            found.add(step)
        elif entry.get("action") == "run":
            text = str(entry.get("shown") or mapping(entry, "args").get("command", ""))[:_MOST_SCANNED]
            # The cheap question first: most commands have nothing to do with messages.
            if command in text and any(call["command"] == command for call in _CALLS.finditer(text)):
                found.add(step)
    return found


def _tokens(entries: Sequence[Mapping[str, Any]], messaging: set[int]) -> Tokens:
    """Replies and the steps that came of each; agents without a model are measured by what their steps say."""
    replies: list[tuple[Mapping[str, Any] | None, list[Mapping[str, Any]]]] = [(None, [])]
    for entry in entries:
        if entry.get("action") == "reply":
            replies.append((entry, []))
        elif _step(entry) is not None:
            replies[-1][1].append(entry)
    is_reported = any(_reported(reply) for reply, _ in replies)
    on_messages = total = 0.0
    for reply, steps in replies:
        if is_reported:
            parts = [(_reported(reply), steps)]
        elif reply is not None:
            parts = [(_estimated([mapping(reply, "args").get("content")]), steps)]
        else:
            parts = [(_estimated(mapping(step, "args").values()), [step]) for step in steps]
        for written, led_to in parts:
            total += written
            on_messages += written * sum(_step(step) in messaging for step in led_to) / max(1, len(led_to))
    basis: Literal["reported", "estimated", "none"]
    basis = "reported" if is_reported else "estimated" if total else "none"
    return Tokens(round(on_messages, 2), round(total, 2), basis)


def _reported(reply: Mapping[str, Any] | None) -> float:
    return max(0.0, number(mapping(reply, "tokens"), "completion_tokens"))


def _estimated(texts: Iterable[object]) -> float:
    written = (text for text in texts if isinstance(text, str))
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in written) / BYTES_PER_TOKEN


def _first(mine: Sequence[SentMessage], steps: int, start: float | None) -> FirstMessage | None:
    if not mine:
        return None
    step = mine[0].sender_step or None
    return FirstMessage(
        mine[0].sequence,
        step,
        seconds_between(start, timestamp_of(mine[0].timestamp)),
        min(1.0, step / steps) if step and steps else None,
    )
