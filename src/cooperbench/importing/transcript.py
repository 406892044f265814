"""Conversion of a transcript, as frameworks write it, to the steps of our trajectory.json.

A transcript is a list of chat messages. Replies of the model become `reply`, the commands and tool
calls in them become steps with the output that follows, and messages of other agents become
`receive_message`. The trajectory of the quick start already has steps. `convert_trajectory` runs in
a worker process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from cooperbench import records
from cooperbench.agents.recorder import shorten_observation
from cooperbench.bounded import limit_seconds
from cooperbench.importing.trajectory_file import UnreadableTrajectory, open_trajectory
from cooperbench.records import JsonObject, convert
from cooperbench.records.trajectory import Step, TokenCounts, TokenUsage, Trajectory, decode_step
from cooperbench.storage import parse_time

_MAX_SECONDS = 240
_COMMAND_BLOCK = re.compile(r"```(?:bash|sh|mswea_bash_command)[ \t]*\n(.*?)\n?```", re.DOTALL)
_RECEIVED = re.compile(r"^\[Message from (?P<sender>[\w.-]{1,64})\]:?[ \t]*", re.MULTILINE)
_MAX_TIME = 4e9
_UNCOUNTED = ("reply", "tell", "think", "receive_message")
"""Actions of the quick start that are not steps of the agent."""


class SentText(msgspec.Struct, kw_only=True, frozen=True):
    """A message in a transcript: one that the agent sent or received."""

    other: str | None
    """The other agent; None if the transcript does not say."""
    text: str
    timestamp: str | None
    step: int
    """Number of steps that the agent had taken."""


class Transcript(msgspec.Struct, kw_only=True, frozen=True):
    """The facts in a trajectory file about its agent; None for those that it does not have."""

    repo: str | None = None
    task_id: int | None = None
    feature_id: int | None = None
    features: list[int] | None = None
    setting: str | None = None
    agent_id: str | None = None
    team_role: str | None = None
    model: str | None = None
    status: str | None = None
    cost: float | None = None
    steps: int | None = None
    start_time: str | None = None
    end_time: str | None = None
    token_usage: TokenUsage | None = None
    sent: list[SentText] = []
    received: list[SentText] = []
    entries: int = 0
    """Number of messages or steps in the file."""
    problem: str | None = None
    """One line if the file, or a part of it, cannot be read."""


@dataclass(frozen=True)
class TrajectoryTarget:
    """The trajectory.json that is written."""

    path: Path
    agent_id: str
    feature_ids: tuple[int, ...]
    agent: str | None
    """Name of the agent framework, if result.json or config.json names it; so is the model."""
    model: str | None


@limit_seconds(_MAX_SECONDS)
def read_header(path: Path) -> Transcript | None:
    """Return what a trajectory file says besides its messages; None if there is no file.

    Callers use `call_bounded`.
    """
    try:
        file = open_trajectory(path)
    except FileNotFoundError:
        return None
    except UnreadableTrajectory as problem:
        return Transcript(problem=str(problem))
    return msgspec.structs.replace(convert(file.header, Transcript), problem=file.problem)


@limit_seconds(_MAX_SECONDS)
def convert_trajectory(source: Path, target: TrajectoryTarget) -> Transcript | None:
    """Write the trajectory.json of an agent; return what it says, None if there is no file.

    Callers use `call_bounded`: agents wrote the file.
    """
    try:
        file = open_trajectory(source)
    except FileNotFoundError:
        return None
    except UnreadableTrajectory as problem:
        return Transcript(problem=str(problem))
    header = convert(file.header, Transcript)
    converter = _Converter()
    if file.list_name == "steps":
        converter.add_steps(file.entries)
    else:
        converter.add_messages(file.entries)
    steps = converter.steps()
    transcript = msgspec.structs.replace(
        header,
        sent=converter.sent,
        received=converter.received,
        entries=converter.entries,
        problem=file.problem,
    )
    if steps:
        records.write(target.path, _trajectory(target, transcript, steps))
    return transcript


def _trajectory(target: TrajectoryTarget, transcript: Transcript, steps: list[Step]) -> Trajectory:
    times = [step.timestamp for step in steps if step.timestamp]
    return Trajectory(
        agent_id=target.agent_id,
        feature_id=target.feature_ids[0],
        feature_ids=list(target.feature_ids),
        agent=target.agent,
        agent_version=None,
        model=transcript.model or target.model,
        status=transcript.status,
        error=None,
        start_time=transcript.start_time or (times[0] if times else None),
        end_time=transcript.end_time or (times[-1] if times else None),
        sandbox_seconds=None,
        steps=steps,
        token_usage=transcript.token_usage,
        cost=transcript.cost,
        model_calls=None,
        model_seconds=None,
        unpriced_calls=None,
    )


@dataclass
class _Draft:
    """A step whose output may still follow."""

    action: str
    args: JsonObject
    timestamp: str
    step: int | None = None
    call_id: str | None = None
    """Id of the tool call, which its output repeats."""
    output: list[str] = field(default_factory=list)
    tokens: TokenCounts | UnsetType = UNSET
    cost: float | UnsetType = UNSET

    def to_step(self) -> Step:
        """Return the step, with a long output shortened."""
        output = "\n".join(self.output)
        observation = shorten_observation(output)
        return Step(
            action=self.action,
            args=self.args,
            observation=observation,
            timestamp=self.timestamp,
            tokens=self.tokens,
            cost=self.cost,
            step=self.step if self.step is not None else UNSET,
            observation_characters=len(output) if len(observation) < len(output) else UNSET,
        )


class _Message(msgspec.Struct, kw_only=True, frozen=True):
    """One message of a transcript, whatever framework wrote it."""

    role: str = ""
    content: object = None
    timestamp: str | float | None = None
    tool_calls: list[object] | None = None
    tool_call_id: str | None = None
    extra: JsonObject | None = None


class _Call(msgspec.Struct, kw_only=True, frozen=True):
    """One tool call of a message."""

    id: str | None = None
    name: str | None = None
    arguments: object = None
    function: JsonObject | None = None


class _Converter:
    """Turns the entries of one trajectory file into steps."""

    def __init__(self) -> None:
        self.sent: list[SentText] = []
        self.received: list[SentText] = []
        self.entries = 0
        self._drafts: list[_Draft] = []
        self._pending: list[_Draft] = []
        """Actions without an output so far."""
        self._count = 0

    def steps(self) -> list[Step]:
        """Return all steps so far."""
        return [draft.to_step() for draft in self._drafts]

    def add_messages(self, entries: Iterable[object]) -> None:
        """Convert chat messages."""
        for entry in entries:
            self.entries += 1
            if isinstance(entry, dict):
                self._add_message(convert(entry, _Message))

    def add_steps(self, entries: Iterable[object]) -> None:
        """Convert the steps of the quick start."""
        for entry in entries:
            self.entries += 1
            if not isinstance(entry, dict):
                continue
            step = decode_step(json.dumps(entry).encode())
            self._add_step(step)

    def _add_step(self, step: Step) -> None:
        draft = _Draft(step.action, step.args, _time_text(step.timestamp))
        draft.output.append(step.observation)
        if step.action not in _UNCOUNTED:
            self._add_action(draft)
            self._pending.clear()
            return
        self._drafts.append(draft)
        text = _first_text(step.args, ("content", "message", "text"))
        if step.action == "receive_message" and text is not None:
            sender = _first_text(step.args, ("from", "sender"))
            time = draft.timestamp or None
            self.received.append(
                SentText(other=sender, text=text, timestamp=time, step=self._count)
            )

    def _add_message(self, message: _Message) -> None:
        text = _text_of(message.content)
        time = _time_text(message.timestamp)
        if message.role == "assistant":
            self._add_reply(message, text, time)
        elif message.role in ("tool", "function") or message.tool_call_id:
            self._add_output(text, message.tool_call_id)
        elif _RECEIVED.match(text):
            self._add_received(text, time)
        elif message.role == "user" and self._pending:
            self._add_output(text, None)
        else:
            kind = message.role or "unknown"
            self._drafts.append(_Draft("tell", {"kind": kind, "content": text}, time))

    def _add_reply(self, message: _Message, text: str, time: str) -> None:
        self._pending.clear()
        reply = _Draft("reply", {"content": text}, time)
        reply.tokens, reply.cost = _usage_of(message.extra or {})
        self._drafts.append(reply)
        calls = [call for call in message.tool_calls or () if isinstance(call, dict)]
        for call in calls:
            self._add_call(convert(call, _Call), time)
        if calls:
            return
        for command in _commands_of(message.extra or {}, text):
            self._add_action(_Draft("run", {"command": command}, time))

    def _add_call(self, call: _Call, time: str) -> None:
        function = call.function or {}
        name = call.name or function.get("name")
        action = name if isinstance(name, str) and name else "unknown"
        args = _arguments_of(call.arguments or function.get("arguments"))
        if isinstance(args.get("command"), str) and action != "send_message" and len(args) == 1:
            action = "run"
        self._add_action(_Draft(action, args, time, call_id=call.id))

    def _add_action(self, draft: _Draft) -> None:
        self._count += 1
        draft.step = self._count
        self._drafts.append(draft)
        self._pending.append(draft)
        if draft.action == "send_message":
            self._note_sent(draft)

    def _note_sent(self, draft: _Draft) -> None:
        text = _first_text(draft.args, ("content", "message", "text"))
        recipient = _first_text(draft.args, ("to", "recipient", "agent", "agent_id"))
        if text is not None:
            time = draft.timestamp or None
            self.sent.append(SentText(other=recipient, text=text, timestamp=time, step=self._count))

    def _add_output(self, text: str, call_id: str | None) -> None:
        """Give an output to the action it belongs to; without one it stands by itself."""
        for draft in self._pending:
            if call_id is None or draft.call_id in (None, call_id):
                draft.output.append(text)
                self._pending.remove(draft)
                return
        self._drafts.append(_Draft("tell", {"kind": "tool", "content": text}, ""))

    def _add_received(self, text: str, time: str) -> None:
        for sender, content in _split_received(text):
            args: JsonObject = {"from": sender, "content": content}
            self._drafts.append(_Draft("receive_message", args, time))
            self.received.append(
                SentText(other=sender, text=content, timestamp=time or None, step=self._count)
            )


def _split_received(text: str) -> Iterator[tuple[str, str]]:
    """Yield sender and text of each message in a text of one or several."""
    starts = list(_RECEIVED.finditer(text))
    ends = [match.start() for match in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=True):
        yield start["sender"], text[start.end() : end].strip()


def _text_of(content: object) -> str:
    """Return the text of a message: a text, a list of parts, or anything else as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [_part_text(part) for part in content]
        return "\n".join(parts)
    return json.dumps(content)


def _part_text(part: object) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else json.dumps(part)


def _time_text(timestamp: str | float | None) -> str:
    """Return a time as our files have it; empty if it is not known.

    A time without a zone stays as it is: nobody knows the zone.
    """
    if isinstance(timestamp, str):
        return timestamp if parse_time(timestamp) is not None else ""
    if timestamp is None or not 0 < timestamp < _MAX_TIME:
        return ""
    time = datetime.fromtimestamp(timestamp, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _commands_of(extra: JsonObject, text: str) -> list[str]:
    """Return the commands of a reply: those that the framework parsed, or the first code block."""
    actions = extra.get("actions")
    if isinstance(actions, list):
        commands = [action.get("command") for action in actions if isinstance(action, dict)]
        return [command for command in commands if isinstance(command, str)]
    block = _COMMAND_BLOCK.search(text)
    return [block[1]] if block else []


def _usage_of(extra: JsonObject) -> tuple[TokenCounts | UnsetType, float | UnsetType]:
    """Return tokens and cost of the model call that a reply is of."""
    cost = extra.get("cost")
    is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
    response = extra.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    tokens = convert(usage, TokenCounts) if isinstance(usage, dict) else UNSET
    return tokens, float(cost) if is_number and cost is not None else UNSET


def _arguments_of(value: object) -> JsonObject:
    """Return the arguments of a tool call, which may be encoded as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {"arguments": value}
    return value if isinstance(value, dict) else {}


def _first_text(args: JsonObject, names: Iterable[str]) -> str | None:
    for name in names:
        if isinstance(args.get(name), str):
            return str(args[name])
    return None
