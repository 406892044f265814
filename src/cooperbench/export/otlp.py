"""OTLP, the protocol of OpenTelemetry: traces as JSON lines, and sent to a collector over HTTP.

The packages of OpenTelemetry are the extra `otel`.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cooperbench._version import __version__
from cooperbench.errors import UserError
from cooperbench.export.json_text import json_text, without_surrogates
from cooperbench.export.trace_spans import Attributes, AttributeValue, TraceSpan
from cooperbench.export.traces import pair_spans, run_attributes
from cooperbench.records import JsonObject
from cooperbench.report.loading import Run
from cooperbench.text import shorten

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

TRACES_PATH = "/v1/traces"
_MAX_BATCH_CHARACTERS = 2_000_000
_MAX_BATCH_SPANS = 500
_MAX_REASON_CHARACTERS = 200
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_ID_FIELDS = ("traceId", "spanId", "parentSpanId")
_EXPORTER_LOGGER = "opentelemetry.exporter.otlp"


class CollectorError(Exception):
    """A collector did not accept spans."""


def require_packages() -> None:
    """Raise UserError if the packages of OpenTelemetry are not installed."""
    try:
        missing = [name for name in _PACKAGES if find_spec(name) is None]
    except ModuleNotFoundError:
        missing = list(_PACKAGES)
    if missing:
        raise UserError(
            "OTLP needs the packages of OpenTelemetry, which are not installed. "
            "Run pip install 'cooperbench[otel]'."
        )


def endpoint_of(url: str) -> str:
    """Return the address that traces are sent to; a base URL gets the standard path.

    Raises:
        UserError: It is not an HTTP URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"--otlp {url}: not an HTTP URL, e.g. http://localhost:4318")
    path = parts.path.rstrip("/")
    if not path.endswith(TRACES_PATH):
        path += TRACES_PATH
    return parts._replace(path=path).geturl()


def otlp_bytes(run: Run) -> bytes:
    """Return the traces of a run as OTLP JSON lines, a line for each pair."""
    require_packages()
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    attributes = run_attributes(run)
    lines = []
    for pair in run.pairs:
        spans = pair_spans(run, pair)
        if not spans:
            continue
        message = encode_spans(sdk_spans(spans, attributes))
        content: JsonObject = MessageToDict(message, use_integers_for_enums=True)
        _write_ids_as_hex(content)
        lines.append(json_text(content) + "\n")
    return "".join(lines).encode()


def untraced_lines(run: Run) -> list[str]:
    """Return a line for each pair that has no trace: its agents have not started."""
    lines = []
    for pair in run.pairs:
        agents = [pair.paths.agent(agent_id) for agent_id in pair.agent_ids]
        has_steps = any(agent.trajectory.exists() or agent.journal.exists() for agent in agents)
        if pair.result is None and not has_steps:
            lines.append(f"{pair.setting} {pair.label} has no trace: it has not started")
    return lines


def _write_ids_as_hex(content: object) -> None:
    """Replace the base64 of protobuf's JSON in all ids: OTLP has them as hexadecimal digits."""
    if isinstance(content, list):
        for item in content:
            _write_ids_as_hex(item)
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if key in _ID_FIELDS:
            content[key] = base64.b64decode(value).hex()
        else:
            _write_ids_as_hex(value)


class Collector:
    """A collector that accepts traces of one run."""

    def __init__(self, url: str, attributes: Attributes, timeout_seconds: float = 10.0) -> None:
        """Store the address; `attributes` describe the run."""
        require_packages()
        self.endpoint = endpoint_of(url)
        self._attributes = attributes
        self._timeout_seconds = timeout_seconds

    def send(self, spans: Sequence[TraceSpan]) -> None:
        """Send spans.

        Raises:
            CollectorError: The collector does not answer, or does not accept them.
        """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        exporter = OTLPSpanExporter(endpoint=self.endpoint, timeout=self._timeout_seconds)
        try:
            for batch in batches(spans):
                with _captured_log() as records:
                    result = exporter.export(sdk_spans(batch, self._attributes))
                if result is not SpanExportResult.SUCCESS:
                    raise CollectorError(_failure_reason(records))
        finally:
            exporter.shutdown()  # type: ignore[no-untyped-call]


def send_run(run: Run, url: str) -> int:
    """Send the traces of a run; return the number of spans.

    Raises:
        UserError: The collector does not accept them.
    """
    collector = Collector(url, run_attributes(run))
    count = 0
    for pair in run.pairs:
        spans = pair_spans(run, pair)
        try:
            collector.send(spans)
        except CollectorError as error:
            raise UserError(f"traces could not be sent to {collector.endpoint}: {error}") from error
        count += len(spans)
    return count


def batches(spans: Iterable[TraceSpan]) -> Iterator[list[TraceSpan]]:
    """Yield spans in groups that collectors accept in one request."""
    batch: list[TraceSpan] = []
    characters = 0
    for span in spans:
        size = sum(len(str(value)) for value in span.attributes.values())
        is_full = len(batch) >= _MAX_BATCH_SPANS or characters + size > _MAX_BATCH_CHARACTERS
        if batch and is_full:
            yield batch
            batch, characters = [], 0
        batch.append(span)
        characters += size
    if batch:
        yield batch


class _LogRecords(logging.Handler):
    """Keeps the messages of a logger."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of a record."""
        self.messages.append(record.getMessage())


@contextmanager
def _captured_log() -> Iterator[_LogRecords]:
    """Keep what the exporter logs from stderr: it explains why an export failed."""
    logger = logging.getLogger(_EXPORTER_LOGGER)
    handler = _LogRecords()
    propagated = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


def _failure_reason(records: _LogRecords) -> str:
    """Return the first message of the exporter: later ones say that it has given up."""
    if not records.messages:
        return "it does not answer"
    first = " ".join(records.messages[0].split())
    cause = first.removeprefix("Transient error ").partition(" encountered while")[0]
    if "Connection refused" in cause:
        return "connection refused"
    return shorten(cause, _MAX_REASON_CHARACTERS)


def sdk_spans(spans: Iterable[TraceSpan], attributes: Attributes) -> list[ReadableSpan]:
    """Return spans as the OpenTelemetry SDK has them."""
    from opentelemetry.sdk.resources import Resource

    resource = Resource(_clean(attributes))
    return [_sdk_span(span, resource) for span in spans]


def _sdk_span(span: TraceSpan, resource: Resource) -> ReadableSpan:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

    kinds = {
        "internal": SpanKind.INTERNAL,
        "client": SpanKind.CLIENT,
        "producer": SpanKind.PRODUCER,
    }
    events = [Event(event.name, _clean(event.attributes), event.time_ns) for event in span.events]
    links = [
        Link(_context(span.trace_id, link.span_id), _clean(link.attributes)) for link in span.links
    ]
    status = Status(StatusCode.UNSET)
    if span.error is not None:
        status = Status(StatusCode.ERROR, without_surrogates(span.error))
    parent = None if span.parent_id is None else _context(span.trace_id, span.parent_id)
    return ReadableSpan(
        name=without_surrogates(span.name),
        context=_context(span.trace_id, span.span_id),
        parent=parent,
        resource=resource,
        attributes=_clean(span.attributes),
        events=events,
        links=links,
        kind=kinds[span.kind],
        status=status,
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("cooperbench", __version__),
    )


def _context(trace_id: int, span_id: int) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=sampled)


def _clean(attributes: Attributes) -> Attributes:
    """Return attributes that protobuf can encode."""
    return {name: _clean_value(value) for name, value in attributes.items()}


def _clean_value(value: AttributeValue) -> AttributeValue:
    return without_surrogates(value) if isinstance(value, str) else value
