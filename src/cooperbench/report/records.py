"""One pair as it lies on disk, for every report: small facts at hand, large files read when asked for.

Tolerant by design: what is missing, half written or of an older schema becomes a line in `problems` and a state of its
own. Nothing in here raises for what is in a file, and nothing that could not be read is taken for a failure of agents.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cooperbench.agents.recorder import read_journal
from cooperbench.report.states import JUDGED, Verdicts, is_completed, state_of
from cooperbench.storage import read_regular_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cooperbench.models import Setting
    from cooperbench.report.states import Loss, State
    from cooperbench.storage import PairPaths

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class PairKey:
    """A pair by its place under logs/, in the order of reports."""

    repo: str
    task_id: int
    features: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"{self.repo}/task{self.task_id} {self.features_label}"

    @property
    def features_label(self) -> str:
        return "_".join(f"f{number}" for number in self.features)


@dataclass(frozen=True)
class AgentData:
    """One agent's part of result.json and eval.json; None where they do not tell."""

    agent_id: str
    agent: str | None
    """The framework."""
    model: str | None
    status: str | None
    """How it ended: `submitted`, `step_limit`, …"""
    success: bool | None
    """Its patch passes its own feature's tests alone."""
    feature_ids: tuple[int, ...]
    steps: int
    cost: float
    prompt_tokens: int
    completion_tokens: int
    duration_seconds: float
    record: Mapping[str, Any]
    """All of its part of result.json."""

    @property
    def configuration(self) -> str:
        """Who it is, in words: model and framework."""
        return " · ".join(part for part in (self.model, self.agent) if part) or "unknown"


@dataclass(frozen=True)
class SentMessage:
    """One line of conversation.json."""

    sequence: int
    sender: str
    recipient: str
    text: str
    timestamp: str
    sender_step: int | None = None
    delivered_at: str | None = None


class Conversation(NamedTuple):
    """What the agents of a pair told each other, in order."""

    messages: tuple[SentMessage, ...] = ()
    complete: bool = True
    """False: there is no usable conversation.json, these are the messages that the agents' records mention."""
    problems: tuple[str, ...] = ()


class Trajectory(NamedTuple):
    """What one agent did, entry by entry, in the form that the recorder writes."""

    agent_id: str
    entries: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairData:
    """One pair in one setting of one run."""

    key: PairKey
    setting: Setting
    paths: PairPaths
    result: Mapping[str, Any] | None
    evaluation: Mapping[str, Any] | None
    problems: tuple[str, ...] = ()
    """What could not be read, a line each."""
    unreadable: bool = False
    """result.json or eval.json is there and is no JSON object."""

    @property
    def label(self) -> str:
        return self.key.label

    @cached_property
    def state(self) -> State:
        return state_of(self.result, self.evaluation, unreadable=self.unreadable)

    @cached_property
    def verdicts(self) -> Verdicts | None:
        """None unless the state is passed or failed."""
        overall = flag(self.evaluation, "overall_success")
        if self.state not in JUDGED or overall is None:
            return None
        individual = flag(self.evaluation, "individual_success")
        if self.setting == "solo":
            # One agent's patch merges with nothing.
            return Verdicts(individual, None, None, overall, None)
        return Verdicts(
            individual,
            flag(self.evaluation, "merge_success"),
            flag(mapping(self.evaluation, "merged"), "success"),
            overall,
            flag(self.evaluation, "overall_success_strict"),
        )

    def verdict(self, name: str) -> bool | None:
        """One of `VERDICTS`; None where there is none."""
        return None if self.verdicts is None else self.verdicts._asdict()[name]

    @property
    def loss(self) -> Loss | None:
        """The first thing that went wrong: a patch fails alone, else git cannot merge, else they fail together."""
        verdicts = self.verdicts
        if verdicts is None:
            return None
        if verdicts.overall:
            return "passed"
        alone = [agent.success for agent in self.agents]
        if verdicts.individual is False or False in alone or self.setting == "solo":
            return "capability"
        return "conflict" if verdicts.merge is False else "integration"

    @property
    def error(self) -> str | None:
        """Why there is no verdict, where that was not the agents' doing."""
        for record in (self.result, self.evaluation):
            if record is not None and not is_completed(record):
                return str(record.get("error"))
        return self.problems[0] if self.state == "broken" and self.problems else None

    @property
    def unsound(self) -> tuple[int, ...]:
        """Features whose tests pass without the feature: the verdict tells little. Empty without a verdict."""
        return tuple(listed(self._judged, "unsound", int))

    @property
    def suspicious(self) -> list[dict[str, Any]]:
        """Evidence that the tests may not have decided, as eval.json has it; empty without a verdict."""
        return listed(self._judged, "suspicious", dict)

    @property
    def network(self) -> str | None:
        """What the tests had, `none` or `public`; None where eval.json does not tell."""
        return text_or_none(self.evaluation, "network")

    @property
    def agent_ids(self) -> tuple[str, ...]:
        if self.setting == "solo":
            return ("solo",)
        return tuple(f"agent{place}" for place in range(1, len(self.key.features) + 1))

    @cached_property
    def agents(self) -> tuple[AgentData, ...]:
        """Those of whom result.json tells."""
        records = mapping(self.result, "agents")
        return tuple(
            _agent(agent_id, mapping(records, agent_id), mapping(self._judged, agent_id))
            for agent_id in self.agent_ids
            if agent_id in records
        )

    @property
    def _judged(self) -> Mapping[str, Any]:
        return (self.evaluation or {}) if self.verdicts is not None else {}

    @property
    def merge_status(self) -> str | None:
        """`clean`, `identical`, `conflict`, `missing_input`; None without a verdict."""
        return text_or_none(mapping(self._judged, "merged"), "merge_status")

    @property
    def conflicting_files(self) -> list[str]:
        return listed(mapping(self._judged, "merged"), "conflicting_files", str)

    @property
    def clean_order(self) -> list[str]:
        """Agents in an order in which their patches merge, where these conflict in the order that counts."""
        return listed(mapping(self._judged, "merged"), "clean_order", str)

    @property
    def cost(self) -> float:
        return number(self.result, "cost")

    @property
    def steps(self) -> int:
        return sum(agent.steps for agent in self.agents)

    @property
    def tokens(self) -> int:
        return sum(agent.prompt_tokens + agent.completion_tokens for agent in self.agents)

    @property
    def messages(self) -> int:
        """How many were sent, as result.json counts them."""
        return int(number(self.result, "messages"))

    @property
    def duration_seconds(self) -> float:
        return number(self.result, "duration_seconds")

    def trajectory(self, agent_id: str) -> Trajectory:
        """From trajectory.json, or from the journal of a run that has not come to its end."""
        files = self.paths.agent(agent_id)
        content, problem = read_object(files.trajectory)
        entries = listed(content, "steps", dict) if content is not None else read_journal(files)
        if content is not None and content.get("steps") != entries:
            problem = "trajectory.json has steps that cannot be read"
        return Trajectory(agent_id, tuple(entries), (problem,) if problem else ())

    def conversation(self) -> Conversation:
        """From conversation.json, or from what the journals say was received."""
        content, problem = read_object(self.paths.conversation)
        if content is not None:
            lines = listed(content, "messages", dict)
            if content.get("messages") != lines:
                problem = "conversation.json has messages that cannot be read"
            messages = [_message(place, line) for place, line in enumerate(lines, 1)]
            ordered = tuple(sorted(messages, key=lambda one: one.sequence))
            return Conversation(
                ordered, isinstance(content.get("messages"), list), (problem,) if problem else ()
            )
        nothing_sent = self.setting == "solo" or (self.result or {}).get("messages") == 0
        if problem is None and self.result is not None and nothing_sent:
            return Conversation()
        return Conversation(self._received(), complete=False, problems=(problem,) if problem else ())

    def _received(self) -> tuple[SentMessage, ...]:
        found = []
        for agent_id in self.agent_ids:
            for entry in self.trajectory(agent_id).entries:
                args = mapping(entry, "args")
                if entry.get("action") == "receive_message":
                    line = {**args, "to": agent_id, "message": args.get("content", "")}
                    found.append(_message(0, {**line, "timestamp": entry.get("timestamp", "")}))
        return tuple(sorted(found, key=lambda message: message.sequence))

    def patch(self, agent_id: str) -> bytes | None:
        """As it was handed in; None where there is none."""
        return read_bytes(self.paths.agent(agent_id).patch)

    def test_outputs(self) -> dict[str, str]:
        """What tests printed, by `agent1-f1`, `merged-f2`, …"""
        folder = self.paths.test_output("x", 0).parent
        found = {file.stem: read_bytes(file) for file in sorted(folder.glob("*.txt"))}
        return {name: data.decode("utf-8", "replace") for name, data in found.items() if data is not None}


def read_object(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The JSON object in a file, or why there is none; two times None where there is no file."""
    try:
        content = json.loads(read_regular_file(path))
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return None, f"{path.name} is not whole JSON"
    return (content, None) if isinstance(content, dict) else (None, f"{path.name} holds no JSON object")


def read_bytes(path: Path) -> bytes | None:
    try:
        return read_regular_file(path)
    except OSError:
        return None


def _agent(agent_id: str, record: Mapping[str, Any], verdict: Mapping[str, Any]) -> AgentData:
    return AgentData(
        agent_id=agent_id,
        agent=text_or_none(record, "agent"),
        model=text_or_none(record, "model"),
        status=text_or_none(record, "status"),
        success=flag(verdict, "success"),
        feature_ids=tuple(listed(record, "feature_ids", int)),
        steps=int(number(record, "steps")),
        cost=number(record, "cost"),
        prompt_tokens=int(number(record, "prompt_tokens")),
        completion_tokens=int(number(record, "completion_tokens")),
        duration_seconds=number(record, "duration_seconds"),
        record=record,
    )


def _message(place: int, line: Mapping[str, Any]) -> SentMessage:
    return SentMessage(
        sequence=int(number(line, "sequence")) or place,
        sender=str(line.get("from", "")),
        recipient=str(line.get("to", "")),
        text=str(line.get("message", "")),
        timestamp=str(line.get("timestamp", "")),
        sender_step=int(number(line, "sender_step")) if line.get("sender_step") is not None else None,
        delivered_at=text_or_none(line, "delivered_at"),
    )


def mapping(record: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """A part of a record; empty where it is missing or something else."""
    value = (record or {}).get(key)
    return value if isinstance(value, dict) else {}


def listed(record: Mapping[str, Any] | None, key: str, kind: type[T]) -> list[T]:
    """What a list in a record has of this kind; empty where it is missing or something else."""
    value = (record or {}).get(key)
    return [one for one in value if isinstance(one, kind)] if isinstance(value, list) else []


def number(record: Mapping[str, Any] | None, key: str) -> float:
    """0 where it is missing or no number."""
    value = (record or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return float(value)


def text_or_none(record: Mapping[str, Any] | None, key: str) -> str | None:
    value = (record or {}).get(key)
    return value if isinstance(value, str) and value else None


def flag(record: Mapping[str, Any] | None, key: str) -> bool | None:
    value = (record or {}).get(key)
    return value if isinstance(value, bool) else None


def parse_time(text: object) -> datetime | None:
    """A time as files have it (ISO 8601), in UTC; one without a zone is UTC. None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def seconds_between(start: object, end: object) -> float | None:
    """Between two times as files have them; never below zero: clocks of two processes may differ a little."""
    first, last = parse_time(start), parse_time(end)
    return None if first is None or last is None else round(max(0.0, (last - first).total_seconds()), 3)
