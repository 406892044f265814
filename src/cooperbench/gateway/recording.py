"""Requests to models and their replies: kept by `--record`, replayed by the agent `replay_model`.

The file has one JSON line for each exchange, and each line is flushed. A replayed request gets the
recorded reply to the same request (see `comparable`), in any order. A request that was not recorded
ends the agent.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cooperbench.errors import AgentFailure
from cooperbench.gateway.api_formats import Refused
from cooperbench.gateway.request_filter import allow_request
from cooperbench.secrets import redact
from cooperbench.storage import read_regular_file

JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]
DIFFERS = "replay_differs"
_EXCERPT_CHARACTERS = 60
_MAX_RECORDED_BYTES = 2 << 30
"""Size of the largest unpacked recording that is read. A small file may unpack to any size."""
_VARYING_FIELDS = {
    "client_metadata",
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "user",
    "id",
}
"""Fields whose values differ between two runs of the same agent."""
_VARYING_TEXTS = {
    "<id>": re.compile(
        r"""
        \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b  # UUID
        | \b(?=[a-f]*\d)[0-9a-f]{7,}\b       # commit
        | \b(?:ses|msg|prt|fc|fco|rs)_\w+    # session, item
        | (?<=Chunk\ ID:\ )\w+
        | (?<=cc_version=)[\w.]+
        """,
        re.VERBOSE,
    ),
    "<time>": re.compile(
        r"""
        \d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?
        | \b\d\d:\d\d:\d\d\b
        | (?:\b\w{3,6}day,\ )?
          (?:January|February|March|April|May|June
            |July|August|September|October|November|December)
          \ \d{1,2},\ \d{4}
        | \b\d+(?:\.\d+)?\ ?(?:s|ms|seconds?)\b  # duration
        | (?<=duration_ms:\ )\d+
        """,
        re.VERBOSE,
    ),
    "<number>": re.compile(
        r"""
        \d{5,}                               # timestamp
        | (?<=PID:\ )\d+
        | (?<=PGID:\ )\d+
        | (?<=127\.0\.0\.1:)\d+              # port
        """,
        re.VERBOSE,
    ),
}
"""Texts that differ between two runs of the same agent, and what they are replaced with."""


@dataclass(frozen=True)
class _RecordedExchange:
    """A recorded exchange that has not been replayed yet."""

    kind: str
    comparable_request: Any
    reply: list[JsonObject]
    received: int


class Exchanges:
    """The exchanges of one agent: written to a file, or replayed from another."""

    def __init__(self, kept: Path | None = None, replayed: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._file: gzip.GzipFile | None = None
        self._remaining: list[_RecordedExchange] | None = None
        self._count = 0
        if replayed is not None:
            self._remaining = [_to_recorded(record) for record in read_exchanges(replayed)]
        elif kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            self._file = gzip.open(kept, "wb", compresslevel=6)  # noqa: SIM115  # see `close`

    def keep(
        self,
        kind: str,
        request: JsonMapping,
        reply: Sequence[JsonMapping],
        received: int,
    ) -> None:
        """Write an exchange.

        `reply` is the only object of a whole reply, or the events of a stream. `received` is the
        number of messages that the agent has received so far.
        """
        if self._file is None:
            return
        record = {"kind": kind, "request": request, "answer": reply, "received": received}
        line = redact(json.dumps(record, default=str)) + "\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(line.encode())
                self._file.flush()

    def find(self, kind: str, request: JsonMapping) -> list[JsonObject] | None:
        """Return the recorded reply; None if nothing is replayed and the model must be called.

        Raises:
            AgentFailure: The request was not recorded.
        """
        if self._remaining is None:
            return None
        self._count += 1
        comparable_request = comparable(json.loads(redact(json.dumps(request, default=str))))
        same_kind = [exchange for exchange in self._remaining if exchange.kind == kind]
        if not same_kind:
            problem = f"request {self._count} was not recorded: the recorded run had ended by then"
            raise AgentFailure(DIFFERS, problem)
        for exchange in same_kind:
            if exchange.comparable_request == comparable_request:
                self._remaining.remove(exchange)
                return list(exchange.reply)
        text = json.dumps(comparable_request)

        def similarity(exchange: _RecordedExchange) -> int:
            return _common_length(text, json.dumps(exchange.comparable_request))

        nearest = max(same_kind, key=similarity)
        where = difference(nearest.comparable_request, comparable_request)
        raise AgentFailure(
            DIFFERS, f"request {self._count} differs from the recorded run at {where}"
        )

    def due(self, received: int) -> int | None:
        """Return how many more messages the next request has; None if all that have come."""
        if not self._remaining:
            return None
        return max(0, self._remaining[0].received - received)

    def close(self) -> None:
        """Close the file. Later exchanges are not kept."""
        with self._lock:
            if self._file is not None:
                self._file.close()


def read_exchanges(path: Path) -> list[JsonObject]:
    """Return the records of a file, up to where it is damaged, ends early or is too large."""
    records: list[JsonObject] = []
    with suppress(OSError, EOFError, ValueError, RecursionError, zlib.error):
        packed = io.BytesIO(read_regular_file(path))
        with gzip.open(packed) as file:
            size = 0
            while line := file.readline(_MAX_RECORDED_BYTES - size + 1):
                size += len(line)
                if size > _MAX_RECORDED_BYTES:
                    break
                records.append(json.loads(line))
    return records


def comparable(request: Any) -> Any:
    """Return a request without everything that differs between two runs of the same agent."""
    if isinstance(request, dict):
        kept = {}
        for name, value in request.items():
            if name not in _VARYING_FIELDS:
                kept[name] = comparable(value)
        return kept
    if isinstance(request, list):
        return [comparable(value) for value in request]
    if isinstance(request, str):
        for placeholder, pattern in _VARYING_TEXTS.items():
            request = pattern.sub(placeholder, request)
    return request


def difference(recorded: Any, current: Any, path: str = "") -> str:
    """Describe the first difference: `messages[3].content: recorded '…', now '…'`."""
    if isinstance(recorded, dict) and isinstance(current, dict):
        for name in [*recorded, *current]:
            if recorded.get(name) != current.get(name):
                inner_path = f"{path}.{name}" if path else str(name)
                return difference(recorded.get(name), current.get(name), inner_path)
    if isinstance(recorded, list) and isinstance(current, list):
        index = _common_length(recorded, current)
        recorded_value = recorded[index] if index < len(recorded) else None
        current_value = current[index] if index < len(current) else None
        return difference(recorded_value, current_value, f"{path}[{index}]")
    recorded_text, current_text = _as_text(recorded), _as_text(current)
    start = max(0, _common_length(recorded_text, current_text) - _EXCERPT_CHARACTERS // 3)
    recorded_excerpt = _excerpt(recorded_text, start)
    current_excerpt = _excerpt(current_text, start)
    return f"{path}: recorded {recorded_excerpt!r}, now {current_excerpt!r}"


def _to_recorded(record: JsonObject) -> _RecordedExchange:
    return _RecordedExchange(
        kind=record["kind"],
        comparable_request=comparable(_allowed(record["kind"], record["request"])),
        reply=record["answer"],
        received=record["received"],
    )


def _allowed(api_format: str, request: Any) -> Any:
    """Return a recorded request as it would be forwarded now: older ones have further fields."""
    try:
        return allow_request(api_format, request).body
    except (Refused, KeyError):
        return request


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _excerpt(text: str, start: int) -> str:
    excerpt = text[start : start + _EXCERPT_CHARACTERS]
    return f"…{excerpt}" if start > 0 else excerpt


def _common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the length of the common beginning of two sequences."""
    for index, (first_element, second_element) in enumerate(zip(first, second, strict=False)):
        if first_element != second_element:
            return index
    return min(len(first), len(second))
