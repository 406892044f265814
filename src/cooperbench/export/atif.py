"""Export to the Agent Trajectory Interchange Format (ATIF): one file per pair and per agent.

In a pair's document the harness is the agent that starts the others; their trajectories are its
`subagent_trajectories`. A model's reply and the actions that it caused are one step. docs/export.md
says where each value goes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import msgspec
from msgspec import UNSET

from cooperbench._version import __version__
from cooperbench.export import atif_format as atif
from cooperbench.export.json_text import json_text
from cooperbench.records import JsonObject
from cooperbench.records.trajectory import Step, Trajectory, read_trajectory
from cooperbench.records.usage import count_if_known, sum_if_known
from cooperbench.report.loading import Run
from cooperbench.report.pairs import PairData
from cooperbench.storage import write_json

_OUTCOME_FIELDS = (
    *("returncode", "timed_out", "duration_seconds", "tokens", "cost", "calls"),
    *("unpriced_calls", "model_seconds", "observation_characters"),
)
"""Fields of a step that describe the outcome of a call."""


def write_documents(run: Run, target: Path) -> tuple[list[Path], list[str]]:
    """Write `target/<setting>/<repo>/<task id>/f1_f2/pair.json`, `agent1.json`, ….

    Returns:
        The files, and a line for each pair that has no trajectories.
    """
    files: list[Path] = []
    left_out: list[str] = []
    for pair in run.pairs:
        documents = pair_documents(run.name, pair)
        if not documents:
            left_out.append(f"{pair.setting} {pair.label} has no trajectories")
        folder = target / pair.paths.folder.relative_to(run.root)
        for name, document in documents.items():
            path = folder / f"{name}.json"
            write_json(path, document)
            files.append(path)
    return files, left_out


def pair_documents(run_name: str, pair: PairData) -> dict[str, JsonObject]:
    """Return the documents of a pair by file name without extension; empty without trajectories."""
    key = pair.key
    session_id = f"{run_name}/{pair.setting}/{key.repo}/{key.task_id}/{pair.paths.folder.name}"
    documents: dict[str, atif.Trajectory] = {}
    for agent_id in pair.agent_ids:
        trajectory = read_trajectory(pair.paths.agent(agent_id))
        if trajectory is not None:
            documents[agent_id] = _agent_document(trajectory, session_id, agent_id)
    if documents:
        documents["pair"] = _pair_document(pair, session_id, documents)
    readable: dict[str, JsonObject] = json.loads(json_text(documents))
    return readable


def _pair_document(
    pair: PairData, session_id: str, agents: dict[str, atif.Trajectory]
) -> atif.Trajectory:
    version = pair.result.version if pair.result else ""
    return atif.Trajectory(
        schema_version=atif.SCHEMA_VERSION,
        session_id=session_id,
        trajectory_id=session_id,
        agent=atif.Agent(name="cooperbench", version=version or __version__),
        steps=[_task_step(pair), _start_step(session_id, agents)],
        final_metrics=_summed_metrics([agent.final_metrics for agent in agents.values()]),
        extra={
            "setting": pair.setting,
            **asdict(pair.key),
            "state": pair.state,
            "verdicts": pair.verdicts or None,
            "unsound": pair.unsound,
            "suspicious": msgspec.to_builtins(pair.suspicious),
            "conversation": _conversation(pair),
        },
        subagent_trajectories=list(agents.values()),
    )


def _task_step(pair: PairData) -> atif.Step:
    features = ", ".join(str(feature_id) for feature_id in pair.key.features)
    task = f"{pair.key.repo}, task {pair.key.task_id}, features {features}"
    message = f"CooperBench: {task}; setting {pair.setting}."
    return atif.Step(step_id=1, source="system", message=message)


def _start_step(session_id: str, agents: dict[str, atif.Trajectory]) -> atif.Step:
    """Return the step in which the harness starts the agents and waits for them."""
    calls, results = [], []
    for agent_id, document in agents.items():
        extra = document.extra
        assert isinstance(extra, atif.AgentExtra)
        arguments = {
            "agent_id": agent_id,
            "feature_ids": extra.feature_ids,
            **msgspec.to_builtins(document.agent),
        }
        call = atif.ToolCall(
            tool_call_id=agent_id, function_name="start_agent", arguments=arguments
        )
        reference = atif.TrajectoryRef(trajectory_id=document.trajectory_id, session_id=session_id)
        result = atif.ObservationResult(
            source_call_id=agent_id,
            content=f"{extra.status}: {extra.error or 'no error'}",
            subagent_trajectory_ref=[reference],
        )
        calls.append(call)
        results.append(result)
    return atif.Step(
        step_id=2,
        source="agent",
        message="Start the agents and wait for them.",
        llm_call_count=0,
        tool_calls=calls,
        observation=atif.Observation(results=results),
    )


def _summed_metrics(metrics: list[atif.FinalMetrics]) -> atif.FinalMetrics:
    usage: JsonObject = {}
    for name in ("model_calls", "unpriced_calls", "model_seconds", "sandbox_seconds"):
        usage[name] = sum_if_known(agent.extra[name] for agent in metrics)
    return atif.FinalMetrics(
        total_prompt_tokens=count_if_known(agent.total_prompt_tokens for agent in metrics),
        total_completion_tokens=count_if_known(agent.total_completion_tokens for agent in metrics),
        total_cached_tokens=count_if_known(agent.total_cached_tokens for agent in metrics),
        total_cost_usd=sum_if_known(agent.total_cost_usd for agent in metrics),
        total_steps=2,
        extra=usage,
    )


def _conversation(pair: PairData) -> list[JsonObject]:
    return [
        {
            "from": message.sender,
            "to": message.recipient,
            "message": message.text,
            "timestamp": message.timestamp,
        }
        for message in pair.conversation().messages
    ]


def _agent_document(trajectory: Trajectory, session_id: str, agent_id: str) -> atif.Trajectory:
    steps = steps_of(trajectory.steps)
    return atif.Trajectory(
        schema_version=atif.SCHEMA_VERSION,
        session_id=session_id,
        trajectory_id=f"{session_id}/{agent_id}",
        agent=atif.Agent(
            name=trajectory.agent or "unknown",
            version=trajectory.agent_version or "unknown",
            model_name=trajectory.model or None,
        ),
        steps=steps,
        final_metrics=_final_metrics(trajectory, len(steps)),
        extra=atif.AgentExtra(
            agent_id=agent_id,
            feature_ids=trajectory.feature_ids or None,
            status=trajectory.status or None,
            error=trajectory.error,
            start_time=trajectory.start_time or None,
            end_time=trajectory.end_time or None,
        ),
    )


def _final_metrics(trajectory: Trajectory, step_count: int) -> atif.FinalMetrics:
    usage = trajectory.token_usage
    return atif.FinalMetrics(
        total_prompt_tokens=usage.prompt_tokens if usage else None,
        total_completion_tokens=usage.completion_tokens if usage else None,
        total_cached_tokens=usage.cached_tokens if usage else None,
        total_cost_usd=trajectory.cost,
        total_steps=step_count,
        extra={
            "model_calls": trajectory.model_calls,
            "unpriced_calls": trajectory.unpriced_calls,
            "model_seconds": trajectory.model_seconds,
            "sandbox_seconds": trajectory.sandbox_seconds,
        },
    )


def steps_of(entries: Iterable[Step]) -> list[atif.Step]:
    """Return the steps of a trajectory; the format requires at least one."""
    builder = _StepBuilder()
    for entry in entries:
        builder.add(entry)
    if not builder.steps:
        return [atif.Step(step_id=1, source="system", message="Nothing is on record.")]
    return builder.steps


class _StepBuilder:
    """Joins a model's reply and the actions that it caused into one step."""

    def __init__(self) -> None:
        self.steps: list[atif.Step] = []
        self._last_reply: atif.Step | None = None
        self._step_of_call: dict[str, atif.Step] = {}

    def add(self, entry: Step) -> None:
        """Add the next entry of a trajectory."""
        text = str(entry.args.get("content", ""))
        match entry.action:
            case "reply":
                self._add_reply(entry, text)
            case "tell" | "receive_message":
                self._last_reply = None
                self._add_input(entry, text)
            case "think":
                self._last_reply = None
                self._append("agent", entry, text).llm_call_count = 0
            case _:
                self._add_call(entry)

    def _append(self, source: str, entry: Step, text: str) -> atif.Step:
        step = atif.Step(
            step_id=len(self.steps) + 1,
            timestamp=entry.timestamp or None,
            source=source,
            message=text,
        )
        self.steps.append(step)
        return step

    def _add_reply(self, entry: Step, text: str) -> None:
        step = self._append("agent", entry, text)
        step.llm_call_count = entry.usage.calls
        extra = {key: value for key, value in entry.extra.items() if key not in _REPLY_TEXTS}
        step.extra = extra or None
        if step.llm_call_count:
            step.metrics = _metrics(entry)
            step.reasoning_content = str(entry.extra.get("reasoning") or "") or None
        self._last_reply = step
        for call_id in _call_ids(entry.extra):
            self._step_of_call[call_id] = step

    def _add_input(self, entry: Step, text: str) -> None:
        is_system = entry.action == "tell" and entry.args.get("kind") == "system"
        step = self._append("system" if is_system else "user", entry, text)
        details = {key: value for key, value in entry.args.items() if key != "content"}
        step.extra = {"kind": entry.action} | details

    def _add_call(self, entry: Step) -> None:
        step = self._last_reply
        if "call_id" in entry.extra:
            # A program may keep several conversations at once. The call says whose step it is.
            step = self._step_of_call.get(str(entry.extra["call_id"]))
        if step is None:
            step = self._append("agent", entry, str(entry.extra.get("thought", "")))
            step.llm_call_count = 0
        calls = step.tool_calls = step.tool_calls or []
        call_id = _new_call_id(step, entry)
        calls.append(
            atif.ToolCall(
                tool_call_id=call_id,
                # Readers of the format know a command under this name.
                function_name="bash" if entry.action == "run" else entry.action,
                arguments=entry.args,
                extra=None if entry.number is None else {"step": entry.number},
            )
        )
        step.observation = step.observation or atif.Observation(results=[])
        step.observation.results.append(
            atif.ObservationResult(
                source_call_id=call_id,
                content=entry.observation,
                extra=_call_outcome(entry) or None,
            )
        )


_REPLY_TEXTS = ("thought", "reasoning")
"""Entries of a reply that have a place of their own in the format."""


def _metrics(entry: Step) -> atif.Metrics:
    metrics = atif.Metrics()
    if entry.tokens is not UNSET:
        metrics.prompt_tokens = entry.tokens.prompt_tokens
        metrics.completion_tokens = entry.tokens.completion_tokens
        metrics.cached_tokens = entry.tokens.cached_tokens
    if entry.cost is not UNSET and not entry.unpriced_calls:
        metrics.cost_usd = entry.cost
    if entry.model_seconds is not UNSET:
        metrics.extra = {"model_seconds": entry.model_seconds}
    return metrics


def _call_outcome(entry: Step) -> JsonObject:
    """Return what is known about a call besides its arguments and its output."""
    fields: JsonObject = msgspec.to_builtins(entry)
    outcome = {name: fields[name] for name in _OUTCOME_FIELDS if name in fields}
    if entry.timestamp:
        outcome["timestamp"] = entry.timestamp
    extra = {key: value for key, value in entry.extra.items() if key != "thought"}
    return outcome | extra


def _call_ids(extra: JsonObject) -> list[str]:
    """Return the names that the model gave to the calls in its reply."""
    calls = extra.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [str(call.get("id")) for call in calls if isinstance(call, dict)]


def _new_call_id(step: atif.Step, entry: Step) -> str:
    """Return a name for the next call of a step: the model's own, if that is unique."""
    calls = step.tool_calls or []
    known_ids = _call_ids(step.extra or {})
    call_id = entry.extra.get("call_id")
    if not call_id and len(calls) < len(known_ids):
        call_id = known_ids[len(calls)]
    has_duplicates = len(set(known_ids)) < len(known_ids)
    is_taken = any(call.tool_call_id == call_id for call in calls)
    if not call_id or has_duplicates or is_taken:
        return f"call_{step.step_id}_{len(calls) + 1}"
    return str(call_id)
