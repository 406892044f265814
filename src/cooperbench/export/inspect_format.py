"""Types of Inspect's log format (version 2), as far as we write it.

A log is a ZIP archive: `header.json`, `summaries.json`, `_journal/start.json`, and a file for each
sample. Readers fill in what is missing with defaults.
"""

from __future__ import annotations

import msgspec

from cooperbench.records import JsonObject

LOG_VERSION = 2


class ToolCall(msgspec.Struct, kw_only=True):
    """A call in a model's reply."""

    id: str
    function: str
    arguments: JsonObject
    type: str = "function"


class Content(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A part of a model's reply: `reasoning` or `text`."""

    type: str
    text: str | None = None
    reasoning: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message of `system`, `user`, `assistant` or `tool`."""

    id: str
    role: str
    content: str | list[Content]
    metadata: JsonObject | None = None
    tool_calls: list[ToolCall] | None = None
    """Only in replies; so is the next one."""
    model: str | None = None
    tool_call_id: str | None = None
    """Only in results of calls; so is the next one."""
    function: str | None = None


class ModelUsage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Tokens and cost of one or more model calls."""

    input_tokens: int
    """Prompt tokens that the provider had not cached."""
    output_tokens: int
    total_tokens: int
    input_tokens_cache_read: int | None = None
    total_cost: float | None = None
    """US dollars; None if the price of a call is not known."""


class Choice(msgspec.Struct, kw_only=True):
    """A reply of a model."""

    message: ChatMessage
    stop_reason: str


class ModelOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everything that a model call returned."""

    model: str = ""
    choices: list[Choice] = msgspec.field(default_factory=list)
    completion: str = ""
    usage: ModelUsage | None = None
    time: float | None = None


class Score(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A verdict on one sample."""

    value: str
    """`C` for correct, `I` for incorrect."""
    explanation: str | None = None
    metadata: JsonObject | None = None


class EventBase(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="event"):
    """Fields of all events."""

    uuid: str
    timestamp: str
    working_start: float
    """Seconds since the sample started."""
    span_id: str | None = None
    metadata: JsonObject | None = None


class SampleDescription(msgspec.Struct, kw_only=True):
    """The sample as the first event repeats it."""

    input: str
    target: str
    id: str


class SampleInitEvent(EventBase, kw_only=True, tag="sample_init"):
    """The start of a sample."""

    sample: SampleDescription
    state: JsonObject


class SpanBeginEvent(EventBase, kw_only=True, tag="span_begin"):
    """The start of a span: one agent, the conversation, or the evaluation."""

    id: str
    name: str
    type: str


class SpanEndEvent(EventBase, kw_only=True, tag="span_end"):
    """The end of a span."""

    id: str


class InfoEvent(EventBase, kw_only=True, tag="info"):
    """A prompt, a thought or a message between agents."""

    source: str
    data: str


class ModelEvent(EventBase, kw_only=True, tag="model"):
    """One call of a model."""

    model: str
    input_refs: list[tuple[int, int]]
    """Ranges of positions in `EventsData.messages`, ends excluded."""
    input: list[ChatMessage]
    """Empty: readers take the messages of `input_refs`."""
    tools: list[JsonObject]
    tool_choice: str
    config: JsonObject
    output: ModelOutput


class ToolError(msgspec.Struct, kw_only=True):
    """Why a call failed."""

    type: str
    message: str


class ToolEvent(EventBase, kw_only=True, tag="tool"):
    """One action of an agent and its result."""

    id: str
    function: str
    arguments: JsonObject
    result: str
    error: ToolError | None = None
    completed: str | None = None
    working_time: float | None = None


class ScoreEvent(EventBase, kw_only=True, tag="score"):
    """A verdict on the sample."""

    score: Score
    scorer: str


Event = (
    SampleInitEvent
    | SpanBeginEvent
    | SpanEndEvent
    | InfoEvent
    | ModelEvent
    | ToolEvent
    | ScoreEvent
)


class EventsData(msgspec.Struct, kw_only=True):
    """Messages that model calls refer to, so that each is in the file once."""

    messages: list[ChatMessage]
    calls: list[JsonObject]


class EvalError(msgspec.Struct, kw_only=True):
    """Why a sample has no scores."""

    message: str
    traceback: str
    traceback_ansi: str


class SampleBase(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Fields that a sample and its summary share."""

    id: str
    epoch: int
    input: str
    target: str
    scores: dict[str, Score] | None = None
    metadata: JsonObject
    model_usage: dict[str, ModelUsage]
    started_at: str | None = None
    completed_at: str | None = None
    total_time: float | None = None
    working_time: float | None = None
    uuid: str


class Sample(SampleBase, kw_only=True):
    """A pair, with everything that its agents did."""

    messages: list[ChatMessage]
    output: ModelOutput
    events: list[Event]
    events_data: EventsData
    error: EvalError | None = None


class SampleSummary(SampleBase, kw_only=True):
    """A pair in the list of samples."""

    error: str | None = None
    completed: bool
    message_count: int


class Metric(msgspec.Struct, kw_only=True):
    """A number in the results."""

    name: str
    value: int | float


class EvalScore(msgspec.Struct, kw_only=True):
    """A verdict over all samples."""

    name: str
    scorer: str
    scored_samples: int
    unscored_samples: int
    metrics: dict[str, Metric]


class EvalResults(msgspec.Struct, kw_only=True):
    """The results of a log."""

    total_samples: int
    completed_samples: int
    scores: list[EvalScore]


class EvalDataset(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The dataset of a log."""

    name: str | None = None
    samples: int
    sample_ids: list[str]
    shuffled: bool = False


class EvalSpec(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The configuration of a log."""

    eval_id: str
    run_id: str
    created: str
    task: str
    task_id: str
    task_version: str
    solver: str | None = None
    dataset: EvalDataset
    model: str
    config: JsonObject
    packages: dict[str, str]
    metadata: JsonObject


class EvalPlan(msgspec.Struct, kw_only=True):
    """The steps of a log; agents are not solvers, so there are none."""

    name: str
    steps: list[JsonObject]
    config: JsonObject


class EvalStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Times and usage of a whole log."""

    started_at: str
    completed_at: str
    model_usage: dict[str, ModelUsage]


class LogStart(msgspec.Struct, kw_only=True):
    """`_journal/start.json`."""

    version: int
    eval: EvalSpec
    plan: EvalPlan


class LogHeader(LogStart, kw_only=True):
    """`header.json`."""

    status: str
    results: EvalResults
    stats: EvalStats
