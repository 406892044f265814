"""Export to a log of Inspect (`.eval`): a sample for each pair, for `inspect view`.

The archive is written here, without the inspect-ai package, which has 80 dependencies. A span
for each agent has its prompts, model calls, actions and received messages; further spans have the
conversation and the verdicts. docs/export.md says where each value goes.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

import msgspec

from cooperbench._version import __version__
from cooperbench.export import atif_format as atif
from cooperbench.export import inspect_format as log
from cooperbench.export.atif import steps_of
from cooperbench.export.json_text import json_text
from cooperbench.export.junit import failure_lines
from cooperbench.records import JsonObject
from cooperbench.records.trajectory import Trajectory, read_trajectory
from cooperbench.records.usage import sum_if_known, total_usage
from cooperbench.report.analysis import rate_rows
from cooperbench.report.loading import Run
from cooperbench.report.mismatch import mismatch_kinds
from cooperbench.report.pairs import STATES, AgentData, PairData, verdict_meaning
from cooperbench.report.statistics import Estimate
from cooperbench.storage import parse_time, seconds_between

_EPOCH = 1
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The same run gives the same bytes."""
_VERDICT_ORDER = ("overall", "individual", "merge", "merged", "strict")
"""The first verdict is the number that lists of logs show."""
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC).isoformat()


def inspect_log_bytes(run: Run) -> bytes:
    """Return a run as a log of Inspect."""
    file = io.BytesIO()
    summaries: list[log.SampleSummary] = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        spec = _eval_spec(run)
        plan = log.EvalPlan(name="cooperbench", steps=[], config={})
        start = log.LogStart(version=log.LOG_VERSION, eval=spec, plan=plan)
        _add_member(archive, "_journal/start.json", start)
        for pair in run.pairs:
            sample = _sample(run, pair)
            _add_member(archive, f"samples/{sample.id}_epoch_{_EPOCH}.json", sample)
            summaries.append(_summary(sample))
        _add_member(archive, "summaries.json", summaries)
        header = log.LogHeader(
            version=log.LOG_VERSION,
            eval=spec,
            plan=plan,
            status="success",
            results=_results(run),
            stats=_stats(run),
        )
        _add_member(archive, "header.json", header)
    return file.getvalue()


def _add_member(archive: zipfile.ZipFile, name: str, content: object) -> None:
    member = zipfile.ZipInfo(name, _ZIP_TIME)
    member.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(member, json_text(content))


def sample_id(pair: PairData) -> str:
    """Return the name of a pair in a log, which is also part of a file name."""
    return f"{pair.setting}.{pair.key.repo}.task{pair.key.task_id}.{pair.key.group}"


def _unique_id(text: str) -> str:
    """Return an id that is the same for each export of the same run."""
    return uuid5(NAMESPACE_URL, f"cooperbench:{text}").hex


def _eval_spec(run: Run) -> log.EvalSpec:
    dataset, dataset_revision = run.dataset
    config = run.config
    calls = config.invocations if config else []
    time = _time_or(calls[0].time if calls else None, _EARLIEST)
    run_id = _unique_id(f"{run.name} {time}")
    return log.EvalSpec(
        eval_id=run_id,
        run_id=run_id,
        created=time,
        task="cooperbench",
        task_id=_unique_id(f"{dataset} {dataset_revision}"),
        task_version=dataset_revision or "0",
        solver=(config.agent or None) if config else None,
        dataset=log.EvalDataset(
            name=dataset,
            samples=len(run.pairs),
            sample_ids=[sample_id(pair) for pair in run.pairs],
        ),
        model=(config.model_name if config else None) or "none",
        config={"epochs": 1},
        packages={"cooperbench": __version__},
        metadata=_run_metadata(run),
    )


def _run_metadata(run: Run) -> JsonObject:
    return {
        "imported": msgspec.to_builtins(run.imported) if run.imported else None,
        "run": run.name,
        "settings": list(run.settings),
        "configuration": run.config.identity if run.config else None,
        "problems": list(run.problems),
        "mismatches": [mismatch.kind for mismatch in run.mismatches],
    }


def _results(run: Run) -> log.EvalResults:
    scores: list[log.EvalScore] = []
    rows = rate_rows([run])
    for verdict in _VERDICT_ORDER:
        metrics: dict[str, log.Metric] = {}
        for row in rows:
            if verdict in row.rates:
                metrics |= _metrics(row.setting, row.rates[verdict])
        scored = [pair for pair in run.pairs if pair.verdicts.get(verdict) is not None]
        if metrics:
            score = log.EvalScore(
                name=verdict,
                scorer=verdict,
                scored_samples=len(scored),
                unscored_samples=len(run.pairs) - len(scored),
                metrics=metrics,
            )
            scores.append(score)
    completed = [pair for pair in run.pairs if pair.verdicts]
    return log.EvalResults(
        total_samples=len(run.pairs), completed_samples=len(completed), scores=scores
    )


def _metrics(setting: str, estimate: Estimate) -> dict[str, log.Metric]:
    """Return a rate and the ends of its interval, as far as they are known."""
    values = {
        f"{setting} rate": estimate.value,
        f"{setting} low": estimate.low,
        f"{setting} high": estimate.high,
    }
    return {
        name: log.Metric(name=name, value=value)
        for name, value in values.items()
        if value is not None
    }


def _stats(run: Run) -> log.EvalStats:
    agents: list[AgentData] = []
    starts: list[str] = []
    ends: list[str] = []
    for pair in run.pairs:
        agents += pair.agents
        if pair.result is not None:
            starts.append(_time_or(pair.result.started_at, ""))
            ends.append(_time_or(pair.result.ended_at, ""))
    return log.EvalStats(
        started_at=min((time for time in starts if time), default=""),
        completed_at=max(ends, default=""),
        model_usage=_model_usage(agents),
    )


def _model_usage(agents: Iterable[AgentData]) -> dict[str, log.ModelUsage]:
    """Return the usage of all agents by model. A cost that is not fully known is left out."""
    agents_by_model: dict[str, list[AgentData]] = {}
    for agent in agents:
        if agent.model:
            agents_by_model.setdefault(agent.model, []).append(agent)
    usage = {}
    for model, group in agents_by_model.items():
        totals = total_usage(agent.record for agent in group)
        has_price = not totals.unpriced_calls
        usage[model] = _usage(
            totals.prompt_tokens,
            totals.completion_tokens,
            cached_tokens=totals.cached_tokens,
            cost=sum_if_known(agent.cost for agent in group) if has_price else None,
        )
    return usage


def _usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, cost: float | None
) -> log.ModelUsage:
    return log.ModelUsage(
        input_tokens=max(0, prompt_tokens - cached_tokens),
        output_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        input_tokens_cache_read=cached_tokens,
        total_cost=cost,
    )


def _summary(sample: log.Sample) -> log.SampleSummary:
    shared = {name: getattr(sample, name) for name in log.SampleBase.__struct_fields__}
    return log.SampleSummary(
        **shared,
        error=sample.error.message if sample.error else None,
        completed=True,
        message_count=len(sample.messages),
    )


def _sample(run: Run, pair: PairData) -> log.Sample:
    """Return a pair with everything that its agents did."""
    identifier = sample_id(pair)
    result = pair.result
    scores = _scores(pair)
    start = _time_or(result.started_at if result else None, _EARLIEST)
    events = _EventList(uuid_prefix=f"{run.name} {identifier}", start=start)
    features = ", ".join(str(feature_id) for feature_id in pair.key.features)
    task = f"{pair.key.repo}, task {pair.key.task_id}, features {features}; {pair.setting}"
    description = log.SampleDescription(input=task, target="", id=identifier)
    events.add(log.SampleInitEvent, start, sample=description, state={})
    for agent_id in pair.agent_ids:
        trajectory = read_trajectory(pair.paths.agent(agent_id))
        if trajectory is not None:
            _add_agent(events, trajectory, agent_id)
    messages = _add_conversation(events, pair)
    _add_scores(events, pair, scores)
    error = None
    if not pair.verdicts:
        error = _error(pair)
    return log.Sample(
        id=identifier,
        epoch=_EPOCH,
        input=task,
        target="",
        uuid=_unique_id(f"{run.name} {identifier}"),
        scores=scores,
        metadata=_pair_metadata(run, pair),
        model_usage=_model_usage(pair.agents),
        started_at=start if result else None,
        completed_at=(_time_or(result.ended_at, "") or None) if result else None,
        total_time=_total_seconds(pair),
        working_time=_total_seconds(pair),
        messages=messages,
        output=log.ModelOutput(),
        events=events.events,
        events_data=log.EventsData(messages=events.pool, calls=[]),
        error=error,
    )


def _error(pair: PairData) -> log.EvalError:
    text = pair.error or STATES[pair.state].short
    return log.EvalError(message=f"{pair.state}: {text}", traceback=text, traceback_ansi=text)


def _total_seconds(pair: PairData) -> float | None:
    """Return the time of the agents and of the evaluation; None if it is not known."""
    if pair.result is None:
        return None
    return sum_if_known([pair.duration_seconds, pair.test_seconds])


def _pair_metadata(run: Run, pair: PairData) -> JsonObject:
    agents: JsonObject = {}
    for agent in pair.agents:
        agents[agent.agent_id] = {
            "agent": agent.agent,
            "model": agent.model,
            "status": agent.status,
            "features": list(agent.feature_ids),
            "steps": agent.steps,
            "cost": agent.cost,
            "unpriced_calls": agent.record.unpriced_calls,
        }
    return {
        "setting": pair.setting,
        "repo": pair.key.repo,
        "task_id": pair.key.task_id,
        "features": list(pair.key.features),
        "state": pair.state,
        "loss": pair.loss,
        "merge_status": pair.merge_status,
        "unsound": list(pair.unsound),
        "suspicious": msgspec.to_builtins(pair.suspicious),
        "unconfirmed": pair.unconfirmed,
        "mismatches": mismatch_kinds(run.mismatches, run.name, pair),
        "attempts": pair.attempts if pair.result else None,
        "cost": pair.cost if pair.result else None,
        "messages": pair.messages if pair.result else None,
        "public_success": pair.public_success,
        "recorded_success": pair.recorded.passed if pair.recorded else None,
        "agents": agents,
    }


def _scores(pair: PairData) -> dict[str, log.Score]:
    """Return the verdicts that there are, the most important first."""
    scores: dict[str, log.Score] = {}
    failures = "\n".join(failure_lines(pair)) if pair.state == "failed" else ""
    for verdict in _VERDICT_ORDER:
        value = pair.verdicts.get(verdict)
        if value is None:
            continue
        meaning = verdict_meaning(verdict, pair.setting, shared=pair.shares_workspace)
        explanation = f"{verdict}: {meaning}"
        if not value and failures:
            explanation += f"\n\n{failures}"
        scores[verdict] = log.Score(value="C" if value else "I", explanation=explanation)
    return scores


def _time_or(time: str | None, default: str) -> str:
    """Return a time in a form that all readers accept; the default if it is not a time."""
    parsed = parse_time(time)
    return default if parsed is None else parsed.astimezone(UTC).isoformat()


@dataclass
class _EventList:
    """The events of one sample, and the messages that its model calls refer to."""

    uuid_prefix: str
    start: str
    """When the sample started."""
    events: list[log.Event] = field(default_factory=list)
    pool: list[log.ChatMessage] = field(default_factory=list)
    span_id: str | None = None
    last_time: str = ""
    """Time of the last event, for entries without a time."""

    def add(self, event_type: type[log.Event], time: str | None, **fields: object) -> None:
        """Add an event to the current span."""
        self.last_time = _time_or(time, self.last_time or self.start)
        event = event_type(
            uuid=_unique_id(f"{self.uuid_prefix} event {len(self.events)}"),
            timestamp=self.last_time,
            working_start=seconds_between(self.start, self.last_time) or 0.0,
            span_id=self.span_id,
            **fields,  # type: ignore[arg-type]
        )
        self.events.append(event)

    def begin_span(self, name: str, span_type: str, time: str | None) -> None:
        """Start a span, which the next events belong to."""
        span_id = _unique_id(f"{self.uuid_prefix} span {name}")
        self.span_id = span_id
        self.add(log.SpanBeginEvent, time, id=span_id, name=name, type=span_type)

    def end_span(self, time: str | None) -> None:
        """End the current span."""
        self.add(log.SpanEndEvent, time, id=self.span_id)
        self.span_id = None

    def add_message(self, role: str, content: str | list[log.Content], **fields: object) -> int:
        """Add a message to the pool; return the number of messages before it."""
        position = len(self.pool)
        message_id = _unique_id(f"{self.uuid_prefix} message {position}")
        message = log.ChatMessage(
            id=message_id,
            role=role,
            content=content,
            **fields,  # type: ignore[arg-type]
        )
        self.pool.append(message)
        return position


def _add_agent(events: _EventList, trajectory: Trajectory, agent_id: str) -> None:
    """Add the span of an agent."""
    model = trajectory.model or "none"
    name = f"{agent_id}: {trajectory.agent or 'unknown'}, {model}"
    events.last_time = ""
    events.begin_span(name, "agent", trajectory.start_time)
    first_message = len(events.pool)
    for step in steps_of(trajectory.steps):
        if step.source == "agent":
            _add_agent_step(events, step, model, first_message)
        else:
            _add_input(events, step)
    events.end_span(trajectory.end_time)


def _add_input(events: _EventList, step: atif.Step) -> None:
    """Add a prompt or a message that the agent received."""
    extra = step.extra or {}
    source = f"prompt ({extra.get('kind', step.source)})"
    if extra.get("kind") == "receive_message":
        source = f"message from {extra.get('from', 'a teammate')}"
    events.add_message(step.source, step.message)
    events.add(log.InfoEvent, step.timestamp, source=source, data=step.message, metadata=extra)


def _add_agent_step(events: _EventList, step: atif.Step, model: str, first_message: int) -> None:
    calls = step.tool_calls or []
    if step.llm_call_count:
        _add_reply(events, step, model, first_message)
    elif step.message:
        events.add(log.InfoEvent, step.timestamp, source="thought", data=step.message)
    results = step.observation.results if step.observation else []
    for call, result in zip(calls, results, strict=True):
        _add_call(events, call, result)


def _add_reply(events: _EventList, step: atif.Step, model: str, first_message: int) -> None:
    content: str | list[log.Content] = step.message
    if step.reasoning_content:
        content = [
            log.Content(type="reasoning", reasoning=step.reasoning_content),
            log.Content(type="text", text=step.message),
        ]
    calls = [
        log.ToolCall(id=call.tool_call_id, function=call.function_name, arguments=call.arguments)
        for call in step.tool_calls or ()
    ]
    metrics = step.metrics or atif.Metrics()
    position = events.add_message("assistant", content, tool_calls=calls or None, model=model)
    choice = log.Choice(
        message=events.pool[position], stop_reason="tool_calls" if calls else "stop"
    )
    output = log.ModelOutput(
        model=model,
        choices=[choice],
        completion=step.message,
        usage=_step_usage(metrics),
        time=(metrics.extra or {}).get("model_seconds"),
    )
    events.add(
        log.ModelEvent,
        step.timestamp,
        model=model,
        input=[],
        input_refs=[(first_message, position)] if position > first_message else [],
        tools=[],
        tool_choice="auto",
        config={},
        output=output,
    )


def _step_usage(metrics: atif.Metrics) -> log.ModelUsage:
    return _usage(
        metrics.prompt_tokens or 0,
        metrics.completion_tokens or 0,
        metrics.cached_tokens or 0,
        metrics.cost_usd,
    )


def _add_call(events: _EventList, call: atif.ToolCall, result: atif.ObservationResult) -> None:
    extra = result.extra or {}
    events.add_message(
        "tool", result.content, tool_call_id=call.tool_call_id, function=call.function_name
    )
    error = None
    if extra.get("timed_out"):
        error = log.ToolError(type="timeout", message="the time limit of the command was up")
    ended_at = _time_or(extra.get("timestamp"), "") or None
    seconds = extra.get("duration_seconds")
    events.add(
        log.ToolEvent,
        ended_at,
        id=call.tool_call_id,
        function=call.function_name,
        arguments=call.arguments,
        result=result.content,
        error=error,
        completed=ended_at,
        working_time=seconds,
        metadata=(call.extra or {}) | extra,
    )


def _add_conversation(events: _EventList, pair: PairData) -> list[log.ChatMessage]:
    """Add the span of the messages between agents; return them as the messages of the sample."""
    sent = pair.conversation().messages
    messages: list[log.ChatMessage] = []
    if not sent:
        return messages
    events.begin_span("conversation", "conversation", sent[0].timestamp)
    for message in sent:
        route = f"{message.sender} → {message.recipient}"
        details = {
            "sequence": message.sequence,
            "from": message.sender,
            "to": message.recipient,
            "delivered_at": message.delivered_at,
        }
        events.add(
            log.InfoEvent, message.timestamp, source=route, data=message.text, metadata=details
        )
        chat_message = log.ChatMessage(
            id=_unique_id(f"{events.uuid_prefix} sent {message.sequence}"),
            role="user",
            content=f"{route}\n\n{message.text}",
            metadata=details,
        )
        messages.append(chat_message)
    events.end_span(sent[-1].timestamp)
    return messages


def _add_scores(events: _EventList, pair: PairData, scores: dict[str, log.Score]) -> None:
    if not scores:
        return
    time = pair.evaluation.started_at if pair.evaluation else None
    events.begin_span("evaluation", "scorers", time)
    for verdict, score in scores.items():
        events.add(log.ScoreEvent, time, score=score, scorer=verdict)
    events.end_span(time)
