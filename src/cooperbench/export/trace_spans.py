"""Types of traces: what OpenTelemetry knows about a span, without its packages.

`traces` makes spans of pairs, and `otlp` turns them into the types of the OpenTelemetry SDK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Literal

from cooperbench.storage import parse_time

AttributeValue = str | int | float | bool | list[str] | list[int]
Attributes = dict[str, AttributeValue]
SpanKind = Literal["internal", "client", "producer"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRACE_ID_BYTES = 16
_SPAN_ID_BYTES = 8


@dataclass(frozen=True)
class SpanEvent:
    """Something that happened at one time in a span."""

    name: str
    time_ns: int
    attributes: Attributes


@dataclass(frozen=True)
class SpanLink:
    """A reference to another span of the same trace."""

    span_id: int
    attributes: Attributes


@dataclass(frozen=True)
class TraceSpan:
    """One span of a pair's trace."""

    trace_id: int
    span_id: int
    parent_id: int | None
    """None for the pair itself."""
    name: str
    start_ns: int
    """Nanoseconds since 1970."""
    end_ns: int
    attributes: Attributes
    kind: SpanKind = "internal"
    events: Sequence[SpanEvent] = ()
    links: Sequence[SpanLink] = ()
    error: str | None = None
    """Why the operation failed; None if it did not."""
    is_complete: bool = True
    """False if the run may still change the span."""


def make_trace_id(text: str) -> int:
    """Return the id of a trace, the same each time."""
    return int.from_bytes(sha256(f"trace {text}".encode()).digest()[:_TRACE_ID_BYTES])


def make_span_id(trace_id: int, text: str) -> int:
    """Return the id of a span, the same each time."""
    content = f"span {trace_id:032x} {text}".encode()
    return int.from_bytes(sha256(content).digest()[:_SPAN_ID_BYTES])


def nanoseconds(time: str | None, default: int) -> int:
    """Return a time of a file in nanoseconds since 1970; the default if it is not a time."""
    parsed = parse_time(time)
    if parsed is None or parsed < _EPOCH:
        return default
    elapsed = parsed - _EPOCH
    microseconds = (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
    return microseconds * 1_000
