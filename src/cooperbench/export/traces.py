"""Traces of pairs by OpenTelemetry's semantic conventions for generative AI.

A pair is one trace: the pair, its agents, their steps, the model calls and actions of each step,
the messages between agents, and the evaluation. Ids depend only on the run, so a span that is sent
twice is the same span. docs/export.md says where each value goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cooperbench._version import __version__
from cooperbench.agents.model_names import with_vendor
from cooperbench.export import atif_format as atif
from cooperbench.export.atif import steps_of
from cooperbench.export.json_text import json_text
from cooperbench.export.trace_spans import (
    Attributes,
    SpanEvent,
    SpanLink,
    TraceSpan,
    make_span_id,
    make_trace_id,
    nanoseconds,
)
from cooperbench.records import JsonObject
from cooperbench.records.trajectory import Trajectory, read_trajectory
from cooperbench.report.loading import Run
from cooperbench.report.mismatch import mismatch_kinds
from cooperbench.report.pairs import PairData, SentMessage, verdict_meaning

_SECOND = 1_000_000_000
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Names of the conventions for vendors that LiteLLM calls by another name."""


def run_attributes(run: Run) -> Attributes:
    """Return the attributes of the resource that all traces of a run share."""
    dataset, dataset_revision = run.dataset
    attributes: Attributes = {
        "service.name": "cooperbench",
        "service.version": __version__,
        "cooperbench.run": run.name,
    }
    if dataset:
        attributes["cooperbench.dataset"] = dataset
    if dataset_revision:
        attributes["cooperbench.dataset_revision"] = dataset_revision
    return attributes


def pair_spans(run: Run, pair: PairData, attempt: int | None = None) -> list[TraceSpan]:
    """Return the trace of a pair, the pair itself last; empty if nothing of it is on record.

    Args:
        run: The run; its name and the time of its first call are part of all ids.
        pair: The pair as it is on disk.
        attempt: Number of the attempt, if result.json does not say.
    """
    builder = _TraceBuilder(run, pair, attempt or pair.attempts)
    return builder.build()


def provider_name(model: str) -> str:
    """Return the provider of a model as the conventions name it."""
    vendor, slash, _ = with_vendor(model).partition("/")
    if not slash:
        return "unknown"
    return _PROVIDERS.get(vendor, vendor)


@dataclass
class _TraceBuilder:
    """Makes the spans of one pair."""

    run: Run
    pair: PairData
    attempt: int
    spans: list[TraceSpan] = field(default_factory=list)
    step_spans: dict[tuple[str, int], int] = field(default_factory=dict)
    """Ids of the spans of steps, by agent and number of the step."""

    @cached_property
    def session(self) -> str:
        """The pair as ATIF names it."""
        folder = self.pair.paths.folder.relative_to(self.run.root)
        return f"{self.run.name}/{folder.as_posix()}"

    @cached_property
    def trace_id(self) -> int:
        """The id of the trace, different for each attempt at the pair."""
        calls = self.run.config.invocations if self.run.config else []
        created = calls[0].time if calls else ""
        return make_trace_id(f"{created} {self.session} {self.attempt}")

    @property
    def root_id(self) -> int:
        """The id of the span of the pair."""
        return self.span_id("pair")

    def span_id(self, name: str) -> int:
        """Return the id of the span with a name that is unique in the trace."""
        return make_span_id(self.trace_id, name)

    def build(self) -> list[TraceSpan]:
        """Return all spans of the pair."""
        for agent_id in self.pair.agent_ids:
            trajectory = read_trajectory(self.pair.paths.agent(agent_id))
            if trajectory is not None:
                self._add_agent(agent_id, trajectory)
        self._add_messages()
        self._add_evaluation()
        if self._start_ns():
            self._add_root()
        return self.spans

    def _add_agent(self, agent_id: str, trajectory: Trajectory) -> None:
        has_ended = self.pair.paths.agent(agent_id).trajectory.is_file()
        agent = _AgentSpans(self, agent_id, trajectory)
        agent.add_steps(has_ended=has_ended)
        span = TraceSpan(
            trace_id=self.trace_id,
            span_id=agent.span_id,
            parent_id=self.root_id,
            name=f"invoke_agent {trajectory.agent}",
            start_ns=agent.start_ns,
            end_ns=agent.end_ns,
            attributes=self._agent_attributes(agent_id, trajectory),
            events=agent.events,
            error=trajectory.error,
            is_complete=has_ended,
        )
        self.spans.append(span)

    def _agent_attributes(self, agent_id: str, trajectory: Trajectory) -> Attributes:
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.id": agent_id,
            "gen_ai.agent.name": trajectory.agent or "unknown",
            "gen_ai.conversation.id": self.session,
            "cooperbench.features": list(trajectory.feature_ids),
        }
        usage = trajectory.token_usage
        if usage is not None:
            attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        values = {
            "cooperbench.status": trajectory.status,
            "cooperbench.cost_usd": trajectory.cost,
            "cooperbench.model_calls": trajectory.model_calls,
            "cooperbench.unpriced_calls": trajectory.unpriced_calls,
            "cooperbench.model_seconds": trajectory.model_seconds,
            "cooperbench.sandbox_seconds": trajectory.sandbox_seconds,
        }
        _add_known(attributes, values)
        if trajectory.agent_version:
            attributes["gen_ai.agent.version"] = trajectory.agent_version
        if trajectory.model:
            attributes["gen_ai.provider.name"] = provider_name(trajectory.model)
            attributes["gen_ai.request.model"] = trajectory.model
        for data in self.pair.agents:
            if data.agent_id == agent_id and data.success is not None:
                attributes["cooperbench.success"] = data.success
        return attributes

    def _add_messages(self) -> None:
        """Add a span for each message, from when it was sent to when it was delivered."""
        for message in self.pair.conversation().messages:
            sent_ns = nanoseconds(message.timestamp, self._start_ns())
            step = (message.sender, message.sender_step or 0)
            span = TraceSpan(
                trace_id=self.trace_id,
                span_id=self.message_span_id(message.recipient, message.sequence),
                parent_id=self.step_spans.get(step, self.span_id(message.sender)),
                name=f"message {message.sender} to {message.recipient}",
                kind="producer",
                start_ns=sent_ns,
                end_ns=max(sent_ns, nanoseconds(message.delivered_at, sent_ns)),
                attributes=_message_attributes(message),
                is_complete=self.pair.result is not None,
            )
            self.spans.append(span)

    def message_span_id(self, recipient: str, sequence: int) -> int:
        """Return the id of the span of a message."""
        return self.span_id(f"message {sequence} to {recipient}")

    def _start_ns(self) -> int:
        """Return when the pair started; 0 if no file says."""
        result = self.pair.result
        default = min((span.start_ns for span in self.spans), default=0)
        if result is None:
            return default
        default = default or nanoseconds(result.ended_at, 0)
        return nanoseconds(result.started_at, default)

    def _add_evaluation(self) -> None:
        evaluation = self.pair.evaluation
        if evaluation is None:
            return
        latest_ns = max((span.end_ns for span in self.spans), default=self._start_ns())
        start_ns = nanoseconds(evaluation.started_at, latest_ns)
        end_ns = start_ns + int(evaluation.duration_seconds * _SECOND)
        attributes: Attributes = {
            "cooperbench.evaluation.status": evaluation.status,
            "cooperbench.evaluation.key": evaluation.key,
        }
        error = None if evaluation.status == "completed" else str(evaluation.error)
        span = TraceSpan(
            trace_id=self.trace_id,
            span_id=self.span_id("evaluation"),
            parent_id=self.root_id,
            name="evaluate",
            start_ns=start_ns,
            end_ns=end_ns,
            attributes=attributes,
            events=tuple(_verdict_events(self.pair, end_ns)),
            error=error,
        )
        self.spans.append(span)

    def _add_root(self) -> None:
        pair = self.pair
        result = pair.result
        start_ns = self._start_ns()
        end_ns = nanoseconds(result.ended_at if result else None, start_ns)
        end_ns = max([end_ns, *(span.end_ns for span in self.spans)])
        error = pair.error if pair.state in ("error", "broken") else None
        span = TraceSpan(
            trace_id=self.trace_id,
            span_id=self.root_id,
            parent_id=None,
            name="invoke_workflow cooperbench",
            start_ns=start_ns,
            end_ns=max(start_ns, end_ns),
            attributes=self._root_attributes(),
            error=error,
            is_complete=pair.evaluation is not None or pair.state == "error",
        )
        self.spans.append(span)

    def _root_attributes(self) -> Attributes:
        pair = self.pair
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": "cooperbench",
            "gen_ai.conversation.id": self.session,
            "cooperbench.setting": pair.setting,
            "cooperbench.repo": pair.key.repo,
            "cooperbench.task_id": pair.key.task_id,
            "cooperbench.features": list(pair.key.features),
            "cooperbench.attempt": self.attempt,
            "cooperbench.state": pair.state,
        }
        if pair.loss:
            attributes["cooperbench.loss"] = pair.loss
        if pair.merge_status:
            attributes["cooperbench.merge_status"] = pair.merge_status
        for name, value in pair.verdicts.items():
            if value is not None:
                attributes[f"cooperbench.verdict.{name}"] = value
        if pair.public_success is not None:
            attributes["cooperbench.verdict.public"] = pair.public_success
        if pair.result is not None:
            totals = {
                "cooperbench.cost_usd": pair.cost,
                "cooperbench.steps": pair.steps,
                "cooperbench.messages": pair.messages,
                "cooperbench.unpriced_calls": pair.result.unpriced_calls,
            }
            _add_known(attributes, totals)
        if kinds := mismatch_kinds(self.run.mismatches, self.run.name, pair):
            attributes["cooperbench.mismatches"] = kinds
        return attributes


def _add_known(attributes: Attributes, values: Mapping[str, str | float | None]) -> None:
    """Add the values that are known: an imported run may lack some."""
    for name, value in values.items():
        if value is not None:
            attributes[name] = value


class _AgentSpans:
    """Makes the spans of the steps of one agent."""

    def __init__(self, builder: _TraceBuilder, agent_id: str, trajectory: Trajectory) -> None:
        """Prepare the span of the agent itself."""
        self.builder = builder
        self.agent_id = agent_id
        self.span_id = builder.span_id(agent_id)
        self.model = trajectory.model or ""
        self.trajectory = trajectory
        steps = trajectory.steps
        first_time = nanoseconds(steps[0].timestamp, 0) if steps else 0
        self.start_ns = nanoseconds(trajectory.start_time, first_time)
        self.end_ns = nanoseconds(trajectory.end_time, self.start_ns)
        self.events: list[SpanEvent] = []
        self._last_ns = self.start_ns
        self._is_complete = True
        """Whether the current step cannot change anymore."""
        self._inputs: list[JsonObject] = []
        """What the model has received since its last call."""
        self._received: list[SpanLink] = []
        """Messages that arrived since the last step."""

    def add_steps(self, *, has_ended: bool) -> None:
        """Add the spans of all steps. The last one may change until the agent has ended."""
        steps = steps_of(self.trajectory.steps)
        for number, step in enumerate(steps, 1):
            if step.source != "agent":
                self._add_input(step)
                continue
            is_last = not any(later.source == "agent" for later in steps[number:])
            self._is_complete = has_ended or not is_last
            self._add_step(step)
        self.end_ns = max(self.start_ns, self.end_ns, self._last_ns)

    def _add_input(self, step: atif.Step) -> None:
        """Keep a prompt or a message from a teammate for the next model call."""
        self._last_ns = nanoseconds(step.timestamp, self._last_ns)
        self._inputs.append(_text_message(step.source, step.message))
        extra = step.extra or {}
        if extra.get("kind") != "receive_message":
            return
        attributes: Attributes = {
            "cooperbench.message.from": str(extra.get("from", "")),
            "cooperbench.message.to": self.agent_id,
        }
        sequence = extra.get("sequence")
        if isinstance(sequence, int):
            attributes["cooperbench.message.sequence"] = sequence
            message_span = self.builder.message_span_id(self.agent_id, sequence)
            self._received.append(SpanLink(message_span, attributes))
        content: Attributes = {**attributes, "cooperbench.message.text": step.message}
        self.events.append(SpanEvent("message received", self._last_ns, content))

    def _add_step(self, step: atif.Step) -> None:
        """Add the span of a step, of its model call, and of its actions."""
        step_id = self.builder.span_id(f"{self.agent_id} step {step.step_id}")
        reply_ns = nanoseconds(step.timestamp, self._last_ns)
        start_ns = reply_ns - int(_model_seconds(step) * _SECOND)
        self._last_ns = reply_ns
        if step.llm_call_count:
            self._add_model_call(step, step_id, start_ns)
        numbers = self._add_actions(step, step_id)
        attributes: Attributes = {"cooperbench.agent": self.agent_id}
        if numbers:
            attributes["cooperbench.steps"] = numbers
        if step.message and not step.llm_call_count:
            attributes["cooperbench.thought"] = step.message
        for number in numbers:
            self.builder.step_spans[self.agent_id, number] = step_id
        span = TraceSpan(
            trace_id=self.builder.trace_id,
            span_id=step_id,
            parent_id=self.span_id,
            name="step",
            start_ns=start_ns,
            end_ns=self._last_ns,
            attributes=attributes,
            links=tuple(self._received),
            is_complete=self._is_complete,
        )
        self._received = []
        self.builder.spans.append(span)

    def _add_model_call(self, step: atif.Step, step_id: int, start_ns: int) -> None:
        metrics = step.metrics or atif.Metrics()
        finish_reason = "tool_call" if step.tool_calls else "stop"
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_name(self.model),
            "gen_ai.conversation.id": f"{self.builder.session}/{self.agent_id}",
            "gen_ai.response.finish_reasons": [finish_reason],
            "gen_ai.usage.input_tokens": metrics.prompt_tokens or 0,
            "gen_ai.usage.output_tokens": metrics.completion_tokens or 0,
            "gen_ai.usage.cache_read.input_tokens": metrics.cached_tokens or 0,
            "gen_ai.output.messages": json_text([_reply_message(step, finish_reason)]),
        }
        if self._inputs:
            attributes["gen_ai.input.messages"] = json_text(self._inputs)
        if self.model:
            attributes["gen_ai.request.model"] = self.model
        if metrics.cost_usd is not None:
            attributes["cooperbench.cost_usd"] = metrics.cost_usd
        self._inputs = []
        span = TraceSpan(
            trace_id=self.builder.trace_id,
            span_id=self.builder.span_id(f"{self.agent_id} call {step.step_id}"),
            parent_id=step_id,
            name=f"chat {self.model}".rstrip(),
            kind="client",
            start_ns=start_ns,
            end_ns=self._last_ns,
            attributes=attributes,
            is_complete=self._is_complete,
        )
        self.builder.spans.append(span)

    def _add_actions(self, step: atif.Step, step_id: int) -> list[int]:
        """Add the spans of a step's actions; return the numbers that the harness gave them."""
        numbers: list[int] = []
        calls = step.tool_calls or []
        results = step.observation.results if step.observation else []
        for index, (call, result) in enumerate(zip(calls, results, strict=True), 1):
            name = f"{self.agent_id} step {step.step_id} action {index}"
            self._add_action(call, result, self.builder.span_id(name), step_id)
            number = (call.extra or {}).get("step")
            if isinstance(number, int):
                numbers.append(number)
        return numbers

    def _add_action(
        self, call: atif.ToolCall, result: atif.ObservationResult, span_id: int, step_id: int
    ) -> None:
        extra = result.extra or {}
        end_ns = nanoseconds(extra.get("timestamp"), self._last_ns)
        seconds = max(0.0, _number(extra.get("duration_seconds")))
        self._last_ns = max(self._last_ns, end_ns)
        span = TraceSpan(
            trace_id=self.builder.trace_id,
            span_id=span_id,
            parent_id=step_id,
            name=f"execute_tool {call.function_name}",
            start_ns=end_ns - int(seconds * _SECOND),
            end_ns=end_ns,
            attributes=_action_attributes(call, result),
            error="the time limit of the command was up" if extra.get("timed_out") else None,
            is_complete=self._is_complete,
        )
        self.builder.spans.append(span)
        self._inputs.append(_result_message(call, result))


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _model_seconds(step: atif.Step) -> float:
    extra = (step.metrics.extra if step.metrics else None) or {}
    return max(0.0, _number(extra.get("model_seconds")))


def _text_message(role: str, text: str) -> JsonObject:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _reply_message(step: atif.Step, finish_reason: str) -> JsonObject:
    """Return a reply in the form of `gen_ai.output.messages`."""
    parts: list[JsonObject] = []
    if step.reasoning_content:
        parts.append({"type": "reasoning", "content": step.reasoning_content})
    if step.message:
        parts.append({"type": "text", "content": step.message})
    parts += [
        {
            "type": "tool_call",
            "id": call.tool_call_id,
            "name": call.function_name,
            "arguments": call.arguments,
        }
        for call in step.tool_calls or ()
    ]
    return {"role": "assistant", "parts": parts, "finish_reason": finish_reason}


def _result_message(call: atif.ToolCall, result: atif.ObservationResult) -> JsonObject:
    """Return the result of a call in the form of `gen_ai.input.messages`."""
    part = {"type": "tool_call_response", "id": call.tool_call_id, "response": result.content}
    return {"role": "tool", "parts": [part]}


def _action_attributes(call: atif.ToolCall, result: atif.ObservationResult) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.function_name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.tool_call_id,
        "gen_ai.tool.call.arguments": json_text(call.arguments),
        "gen_ai.tool.call.result": result.content,
    }
    exit_code = (result.extra or {}).get("returncode")
    if isinstance(exit_code, int):
        attributes["process.exit.code"] = exit_code
    return attributes


def _message_attributes(message: SentMessage) -> Attributes:
    attributes: Attributes = {
        "cooperbench.message.from": message.sender,
        "cooperbench.message.to": message.recipient,
        "cooperbench.message.sequence": message.sequence,
        "cooperbench.message.text": message.text,
        "cooperbench.message.delivered": message.delivered_at is not None,
    }
    if message.lost:
        attributes["cooperbench.message.lost"] = True
    return attributes


def _verdict_events(pair: PairData, time_ns: int) -> Iterator[SpanEvent]:
    for name, value in pair.verdicts.items():
        if value is None:
            continue
        attributes: Attributes = {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.value": 1.0 if value else 0.0,
            "gen_ai.evaluation.score.label": "passed" if value else "failed",
            "gen_ai.evaluation.explanation": verdict_meaning(name, pair.setting),
        }
        yield SpanEvent("gen_ai.evaluation.result", time_ns, attributes)
