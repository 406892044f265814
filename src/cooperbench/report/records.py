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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from cooperbench.report.states import JUDGED, Verdicts, is_completed, state_of
from cooperbench.storage import read_regular_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cooperbench.models import Setting
    from cooperbench.report.states import State
    from cooperbench.storage import PairPaths


class PairKey(NamedTuple):
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

    def to_json(self) -> dict[str, Any]:
        return {"repo": self.repo, "task_id": self.task_id, "features": list(self.features)}


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
    delivered_step: int | None = None
    delivered_by: str | None = None


@dataclass(frozen=True)
class Conversation:
    """What the agents of a pair told each other, in order."""

    messages: tuple[SentMessage, ...] = ()
    complete: bool = True
    """False: there is no usable conversation.json, these are the messages that the agents' records mention."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trajectory:
    """What one agent did, entry by entry, in the form that the recorder writes."""

    agent_id: str
    entries: tuple[Mapping[str, Any], ...] = ()
    complete: bool = True
    """False: the run still goes on or was killed, these are the entries of its journal."""
    record: Mapping[str, Any] | None = None
    """trajectory.json without its steps; None where there is only a journal."""
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
        if self.state not in JUDGED or self.evaluation is None:
            return None
        return read_verdicts(self.evaluation, self.setting)

    def verdict(self, name: str) -> bool | None:
        """One of `VERDICTS`; None where there is none."""
        value: bool | None = getattr(self.verdicts, name, None)
        return value

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
        listed = self.evaluation.get("unsound") if self.evaluation and self.verdicts is not None else None
        return tuple(one for one in listed if isinstance(one, int)) if is_list(listed) else ()

    @property
    def network(self) -> str | None:
        """What the tests had, `none` or `public`; None where eval.json does not tell."""
        return text_or_none(self.evaluation or {}, "network")

    @property
    def agent_ids(self) -> tuple[str, ...]:
        if self.setting == "solo":
            return ("solo",)
        return tuple(f"agent{place}" for place in range(1, len(self.key.features) + 1))

    @cached_property
    def agents(self) -> tuple[AgentData, ...]:
        """Those of whom result.json tells."""
        records = mapping(self.result, "agents")
        verdicts = self.evaluation if self.verdicts is not None else None
        return tuple(
            _agent(agent_id, mapping(records, agent_id), mapping(verdicts, agent_id))
            for agent_id in self.agent_ids
            if agent_id in records
        )

    @property
    def merge_status(self) -> str | None:
        """`clean`, `identical`, `conflict`, `missing_input`; None without a verdict."""
        merged = mapping(self.evaluation, "merged") if self.verdicts is not None else {}
        return text_or_none(merged, "merge_status") or (
            None if "merge_conflict" not in merged else "conflict" if merged["merge_conflict"] else "clean"
        )

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
        if content is not None:
            steps = content.pop("steps", None)
            whole = tuple(entry for entry in steps if is_object(entry)) if is_list(steps) else ()
            odd = () if is_list(steps) and len(whole) == len(steps) else ("trajectory.json has odd steps",)
            return Trajectory(agent_id, whole, record=content, problems=odd)
        entries, unread = _read_journal(files.journal)
        problems = [] if problem is None else [problem]
        if unread:
            problems.append(f"{files.journal.name} has {unread} lines that are no JSON")
        return Trajectory(agent_id, entries, complete=False, problems=tuple(problems))

    def conversation(self) -> Conversation:
        """From conversation.json, or from what the journals say was received."""
        content, problem = read_object(self.paths.conversation)
        if content is not None:
            lines = content.get("messages")
            if not is_list(lines):
                return Conversation(complete=False, problems=("conversation.json has no messages",))
            messages = tuple(_message(place, line) for place, line in enumerate(lines, 1) if is_object(line))
            odd = () if len(messages) == len(lines) else ("conversation.json has odd messages",)
            return Conversation(tuple(sorted(messages, key=lambda one: one.sequence)), problems=odd)
        nothing_sent = self.setting == "solo" or (self.result or {}).get("messages") == 0
        if problem is None and self.result is not None and nothing_sent:
            return Conversation()
        return Conversation(self._received(), complete=False, problems=(problem,) if problem else ())

    def _received(self) -> tuple[SentMessage, ...]:
        found = [
            SentMessage(
                int(number(args, "sequence")),
                str(args.get("from", "")),
                agent_id,
                str(args.get("content", "")),
                str(entry.get("timestamp", "")),
            )
            for agent_id in self.agent_ids
            for entry in self.trajectory(agent_id).entries
            if entry.get("action") == "receive_message" and is_object(args := entry.get("args"))
        ]
        return tuple(sorted(found, key=lambda message: message.sequence))

    def patch(self, agent_id: str) -> bytes | None:
        """As it was handed in; None where there is none."""
        return read_bytes(self.paths.agent(agent_id).patch)

    def merged_patch(self) -> bytes | None:
        return read_bytes(self.paths.merged_patch)

    def test_outputs(self) -> dict[str, str]:
        """What tests printed, by `agent1-f1`, `merged-f2`, …"""
        folder = self.paths.test_output("x", 0).parent
        found = {file.stem: read_bytes(file) for file in sorted(folder.glob("*.txt"))}
        return {name: data.decode("utf-8", "replace") for name, data in found.items() if data is not None}


def read_verdicts(evaluation: Mapping[str, Any], setting: Setting) -> Verdicts | None:
    """The five verdicts, also of an older eval.json that has only those of agents, merge and all; None: unusable."""
    overall = flag(evaluation, "overall_success")
    if overall is None:
        return None
    merged = mapping(evaluation, "merged")
    individual = flag(evaluation, "individual_success")
    if individual is None:
        alone = [
            flag(value, "success")
            for name, value in evaluation.items()
            if is_object(value) and (name == "solo" or name.startswith("agent"))
        ]
        individual = all(alone) if alone and None not in alone else None
    if setting == "solo":
        # One agent's patch merges with nothing.
        return Verdicts(individual, None, None, overall, None)
    merge = flag(evaluation, "merge_success")
    if merge is None and (conflict := flag(merged, "merge_conflict")) is not None:
        merge = not conflict
    strict = flag(evaluation, "overall_success_strict")
    if strict is None and merge is not None:
        strict = overall and merge
    return Verdicts(individual, merge, flag(merged, "success"), overall, strict)


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


def _read_journal(path: Path) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """The entries, and how many lines are none. A last line without an end is being written, or was cut off."""
    entries: list[Mapping[str, Any]] = []
    unread = 0
    for line in (read_bytes(path) or b"").splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if is_object(entry):
            entries.append(entry)
        else:
            unread += 1
    return tuple(entries), unread


def _agent(agent_id: str, record: Mapping[str, Any], verdict: Mapping[str, Any]) -> AgentData:
    feature_ids = record.get("feature_ids")
    return AgentData(
        agent_id=agent_id,
        agent=text_or_none(record, "agent"),
        model=text_or_none(record, "model"),
        status=text_or_none(record, "status"),
        success=flag(verdict, "success"),
        feature_ids=tuple(one for one in feature_ids if isinstance(one, int)) if is_list(feature_ids) else (),
        steps=int(number(record, "steps")),
        cost=number(record, "cost"),
        prompt_tokens=int(number(record, "prompt_tokens")),
        completion_tokens=int(number(record, "completion_tokens")),
        duration_seconds=number(record, "duration_seconds"),
        record=record,
    )


def _message(place: int, line: Mapping[str, Any]) -> SentMessage:
    steps = {
        key: int(number(line, key)) if line.get(key) is not None else None
        for key in ("sender_step", "delivered_step")
    }
    return SentMessage(
        sequence=int(number(line, "sequence")) or place,
        sender=str(line.get("from", "")),
        recipient=str(line.get("to", "")),
        text=str(line.get("message", "")),
        timestamp=str(line.get("timestamp", "")),
        sender_step=steps["sender_step"],
        delivered_at=text_or_none(line, "delivered_at"),
        delivered_step=steps["delivered_step"],
        delivered_by=text_or_none(line, "delivered_by"),
    )


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def mapping(record: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """A part of a record; empty where it is missing or something else."""
    value = (record or {}).get(key)
    return value if isinstance(value, dict) else {}


def number(record: Mapping[str, Any] | None, key: str) -> float:
    """0 where it is missing or no number."""
    value = (record or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return float(value)


def text_or_none(record: Mapping[str, Any], key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) and value else None


def parse_time(text: object) -> datetime | None:
    """A time as files have it (ISO 8601), in UTC; one without a zone is UTC. None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def flag(record: Mapping[str, Any], key: str) -> bool | None:
    value = record.get(key)
    return value if isinstance(value, bool) else None
