"""trajectory.json: everything that one agent did, and steps.jsonl, the same while it works.

Every agent framework adds what it likes to a step. Such entries are in `Step.extra`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from cooperbench.models import Usage
from cooperbench.records.files import (
    JsonObject,
    Record,
    convert,
    from_object,
    gather,
    read,
    spread,
)
from cooperbench.storage import AgentPaths, read_bytes

START = "start"
"""Action of the first line of steps.jsonl, which describes the agent."""


class TokenCounts(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens of one model call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the provider had cached."""


class TokenUsage(TokenCounts, kw_only=True, frozen=True):
    """Tokens of all model calls of an agent."""

    total_tokens: int = 0


class Step(msgspec.Struct, kw_only=True, frozen=True):
    """One thing that the agent did or that happened to it; a line of steps.jsonl."""

    action: str
    """`run`, `reply`, `tell`, `think`, `send_message`, `receive_message`, … or a tool's name."""
    args: JsonObject
    observation: str = ""
    """Output of the action, shortened if it is very long."""
    timestamp: str = ""
    returncode: int | UnsetType | None = UNSET
    timed_out: bool | UnsetType = UNSET
    duration_seconds: float | UnsetType = UNSET
    tokens: TokenCounts | UnsetType = UNSET
    """Only in replies; so are the next four."""
    cost: float | UnsetType = UNSET
    calls: int | UnsetType = UNSET
    unpriced_calls: int | UnsetType = UNSET
    model_seconds: float | UnsetType = UNSET
    step: int | UnsetType = UNSET
    """Number of the agent's step; messages, prompts and replies have none."""
    observation_characters: int | UnsetType = UNSET
    """Original length of an observation that was shortened."""
    extra: JsonObject = msgspec.field(default_factory=dict)
    """What the agent framework added; at the top level of the step in the file."""

    @property
    def number(self) -> int | None:
        """Number of the agent's step, if this counts as one."""
        return self.step if isinstance(self.step, int) else None

    @property
    def usage(self) -> Usage:
        """Usage of the model call that a reply belongs to."""
        tokens = self.tokens or TokenCounts()
        return Usage(
            cost=self.cost or 0.0,
            prompt_tokens=tokens.prompt_tokens,
            completion_tokens=tokens.completion_tokens,
            cached_tokens=tokens.cached_tokens,
            calls=1 if isinstance(self.calls, UnsetType) else self.calls,
            model_seconds=self.model_seconds or 0.0,
            unpriced_calls=self.unpriced_calls or 0,
        )


class Trajectory(Record, kw_only=True, frozen=True):
    """Everything that one agent did. Values are null if an imported run does not have them."""

    SCHEMA: ClassVar[str] = "cooperbench.trajectory/1"

    agent_id: str
    """`agent1`, `agent2`, … or `solo`."""
    feature_id: int
    """The first of its features."""
    feature_ids: list[int]
    agent: str | None
    """Name of the agent framework."""
    agent_version: str | None
    model: str | None
    """None if the agent does not use a model."""
    status: str | None
    """How it ended: `submitted`, `step_limit`, …; `broken_off` if the run was killed."""
    error: str | None
    start_time: str | None
    end_time: str | None
    sandbox_seconds: float | None = 0.0
    """Time spent on commands in the sandbox."""
    steps: list[Step]
    token_usage: TokenUsage | None
    cost: float | None
    """US dollars, without the calls to models whose price is not known."""
    model_calls: int | None
    model_seconds: float | None
    unpriced_calls: int | None

    @classmethod
    def from_file(cls, content: JsonObject) -> JsonObject:
        """Collect what frameworks added to each step."""
        steps = content.get("steps")
        if not isinstance(steps, list):
            return content
        return content | {"steps": [_gather_extra(step) for step in steps]}

    @classmethod
    def to_file(cls, content: JsonObject) -> JsonObject:
        """Put what frameworks added to a step at the step's top level."""
        return content | {"steps": [spread(step, "extra") for step in content["steps"]]}


def read_trajectory(paths: AgentPaths) -> Trajectory | None:
    """Return an agent's trajectory.

    If the agent was interrupted, there is no trajectory.json. Its journal is read instead, as far
    as it goes.

    Returns:
        None if there is neither.
    """
    trajectory = read(paths.trajectory, Trajectory)
    if trajectory is not None:
        return trajectory
    steps = read_journal(paths)
    return make_trajectory(paths.agent_id, steps) if steps else None


def make_trajectory(agent_id: str, journal: list[Step]) -> Trajectory:
    """Return the trajectory of an agent that was interrupted, as its journal has it."""
    usage = Usage()
    for step in journal:
        if step.action == "reply":
            usage += step.usage
    return trajectory_from_journal(
        journal,
        usage,
        agent_id=agent_id,
        status="broken_off",
        start_time=journal[0].timestamp,
        end_time=journal[-1].timestamp,
    )


def trajectory_from_journal(
    journal: list[Step], usage: Usage, *, agent_id: str, **ending: str | float | None
) -> Trajectory:
    """Return the trajectory that a journal becomes: its first entry describes the agent."""
    description: JsonObject = {"agent_id": agent_id}
    if journal[0].action == START:
        description |= journal[0].args
    content = {
        **description,
        **ending,
        "steps": [],
        "token_usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "total_tokens": usage.total_tokens,
        },
        "cost": usage.cost,
        "model_calls": usage.calls,
        "model_seconds": round(usage.model_seconds, 3),
        "unpriced_calls": usage.unpriced_calls,
    }
    trajectory = from_object(content, Trajectory)
    return msgspec.structs.replace(trajectory, steps=journal[1:])


def read_journal(paths: AgentPaths) -> list[Step]:
    """Return the entries of steps.jsonl. The last line may be incomplete; it is left out."""
    steps = []
    for line in (read_bytes(paths.journal) or b"").splitlines():
        with suppress(ValueError, TypeError, RecursionError):
            steps.append(decode_step(line))
    return steps


def decode_step(line: bytes) -> Step:
    """Return the step in a line of steps.jsonl; ValueError or TypeError if there is none."""
    try:
        content = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        # Python's parser also accepts NaN and unpaired surrogates.
        content = json.loads(line)
    if not isinstance(content, dict):
        raise TypeError("not a JSON object")
    return convert(_gather_extra(content), Step)


def encode_step(step: Step) -> bytes:
    """Return a step as a line of steps.jsonl, without the newline."""
    return json.dumps(step_object(step)).encode()


def step_object(step: Step) -> JsonObject:
    """Return a step as the JSON object that files contain."""
    return spread(msgspec.to_builtins(step), "extra")


def _gather_extra(step: Any) -> Any:
    return gather(step, Step, "extra") if isinstance(step, dict) else step
