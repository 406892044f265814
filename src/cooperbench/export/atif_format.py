"""Types of the Agent Trajectory Interchange Format (Harbor's ATIF 1.7), as far as we write it."""

from __future__ import annotations

import msgspec

from cooperbench.records import JsonObject

SCHEMA_VERSION = "ATIF-v1.7"


class Agent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The program that took the steps."""

    name: str
    version: str
    model_name: str | None = None


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call that a step made."""

    tool_call_id: str
    function_name: str
    arguments: JsonObject
    extra: JsonObject | None = None


class TrajectoryRef(msgspec.Struct, kw_only=True):
    """A reference to the trajectory of another agent."""

    trajectory_id: str
    session_id: str


class ObservationResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The result of one call."""

    source_call_id: str
    content: str
    subagent_trajectory_ref: list[TrajectoryRef] | None = None
    extra: JsonObject | None = None


class Observation(msgspec.Struct, kw_only=True):
    """The results of a step's calls."""

    results: list[ObservationResult]


class Metrics(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Usage of one model call."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    extra: JsonObject | None = None


class Step(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One step: a message, and the calls that it made."""

    step_id: int
    """1, 2, 3, …"""
    timestamp: str | None = None
    source: str
    """`system`, `user` or `agent`."""
    message: str
    llm_call_count: int | None = None
    extra: JsonObject | None = None
    metrics: Metrics | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None


class FinalMetrics(msgspec.Struct, kw_only=True):
    """Usage of a whole trajectory."""

    total_prompt_tokens: int | None
    total_completion_tokens: int | None
    total_cached_tokens: int | None
    total_cost_usd: float | None
    total_steps: int
    extra: JsonObject


class AgentExtra(msgspec.Struct, kw_only=True):
    """Details about one agent that the format has no field for."""

    agent_id: str
    feature_ids: list[int] | None
    status: str | None
    error: str | None
    start_time: str | None
    end_time: str | None


class Trajectory(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One document."""

    schema_version: str
    session_id: str
    trajectory_id: str
    agent: Agent
    steps: list[Step]
    final_metrics: FinalMetrics
    extra: JsonObject | AgentExtra
    subagent_trajectories: list[Trajectory] | None = None
