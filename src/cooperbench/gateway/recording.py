"""Requests to models and their replies: kept by `--record`, replayed by the agent `replay_model`.

The file has one JSON line for each exchange, and each line is flushed. A replayed request gets the
recorded reply to the same request (see `comparable`), in any order. A request that was not recorded
ends the agent. `PrefixExchanges` replay only the first exchanges of a recording; the agent then
goes on with its model.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cooperbench.errors import AgentFailure
from cooperbench.gateway.api_formats import Refused
from cooperbench.gateway.request_filter import allow_request
from cooperbench.secrets import redact
from cooperbench.storage import read_regular_file

JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]
ListFiles = Callable[[], "Mapping[str, str] | None"]
"""Returns the changed files of an agent's repository and what identifies their contents."""
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
    number: int
    """Position in the recording, from 1."""
    files: Mapping[str, str] | None
    """The changed files when the request was sent; None in older recordings."""


class Exchanges:
    """The exchanges of one agent: written to a file, or replayed from another."""

    counts_replayed_usage = True
    """Whether the usage of replayed replies is that of the agent. It was paid for once only."""

    def __init__(
        self,
        kept: Path | None = None,
        replayed: Path | None = None,
        list_files: ListFiles | None = None,
    ) -> None:
        """Open the file to write, or read the one to replay.

        Args:
            kept: The file to write.
            replayed: The file to replay.
            list_files: Lists the changed files, which are recorded with each exchange.
        """
        self._list_files = list_files
        self._lock = threading.Lock()
        self._file: gzip.GzipFile | None = None
        self._remaining: list[_RecordedExchange] | None = None
        self._count = 0
        if replayed is not None:
            self._remaining = _to_recorded(read_exchanges(replayed))
        elif kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            self._file = gzip.open(kept, "wb", compresslevel=6)  # noqa: SIM115  # see `close`

    def keep(
        self,
        kind: str,
        request: JsonMapping,
        reply: Sequence[JsonMapping],
        received: int,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Write an exchange.

        `reply` is the only object of a whole reply, or the events of a stream. `received` is the
        number of messages that the agent has received so far. `files` are the changed files when it
        sent the request.
        """
        if self._file is None:
            return
        record = {"kind": kind, "request": request, "answer": reply, "received": received}
        if files is not None:
            record["files"] = files
        line = redact(json.dumps(record, default=str)) + "\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(line.encode())
                self._file.flush()

    def await_earlier(self, kind: str, request: JsonMapping) -> None:
        """Wait until messages may be added to the request. Call it without any lock."""

    def await_turn(self, kind: str, request: JsonMapping) -> None:
        """Wait until the request may be answered. Call it before `find`, without any lock."""

    def rewrite(self, body: JsonObject) -> JsonObject:
        """Return the body that the model gets instead of this one."""
        return body

    def list_files(self) -> Mapping[str, str] | None:
        """Return the changed files. Call it before the model can reply: the agent waits then."""
        if self._list_files is None or self._file is None:
            return None
        return self._list_files()

    def find(self, kind: str, request: JsonMapping) -> list[JsonObject] | None:
        """Return the recorded reply; None if nothing is replayed and the model must be called.

        Raises:
            AgentFailure: The request was not recorded.
        """
        if self._remaining is None:
            return None
        self._count += 1
        comparable_request = _redacted(request)
        exchange = _find_same(self._remaining, kind, comparable_request)
        if exchange is None:
            problem = _describe_mismatch(self._remaining, kind, comparable_request)
            raise AgentFailure(DIFFERS, f"request {self._count} {problem}")
        self._remaining.remove(exchange)
        return list(exchange.reply)

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


class ReplayGate(Protocol):
    """The place where a replayed agent waits for the others of its pair.

    All methods raise AgentFailure if the replay has failed.
    """

    def arrive(self, number: int) -> None:
        """Notify the others that the agent is about to send a request with this number."""

    def await_reply(self, number: int) -> None:
        """Wait until the others have done what they had done before this recorded reply."""

    def await_replayed(self, is_replayed: Callable[[], bool]) -> None:
        """Wait until everything is replayed here."""

    def await_fork(self, is_replayed: Callable[[], bool]) -> None:
        """Wait until everything is replayed, here (`is_replayed`) and by the other agents."""

    def fail(self, problem: str) -> AgentFailure:
        """End the replay of all agents; return the error to raise."""


class PrefixExchanges(Exchanges):
    """The first exchanges of a recording, then live ones. All of them are written to a file."""

    counts_replayed_usage = False

    def __init__(
        self,
        kept: Path,
        recorded: Sequence[JsonObject],
        count: int,
        gate: ReplayGate,
        list_files: ListFiles | None = None,
    ) -> None:
        """Open the file to write.

        Args:
            kept: The file to write.
            recorded: All exchanges of the recording.
            count: Number of exchanges to replay.
            gate: Where the agent waits for others.
            list_files: See `Exchanges`.
        """
        super().__init__(kept, list_files=list_files)
        exchanges = _to_recorded(recorded)
        self._prefix = exchanges[:count]
        self._later = exchanges[count:]
        self._total = count
        self._gate = gate
        self._is_live = False
        self._found_files: Mapping[str, str] | None = None
        """The files of the exchange that was found last."""
        self.replacements: dict[str, str] = {}
        """Texts in requests to the model, and what they are replaced with."""

    def await_earlier(self, kind: str, request: JsonMapping) -> None:
        """Wait until all replayed requests are answered, if this one comes after them.

        A program may send a side request, such as that for a title, at the same time.
        """
        comparable_request = _redacted(request)
        with self._lock:
            comes_later = _find_same(self._prefix, kind, comparable_request) is None
        if comes_later and _find_same(self._later, kind, comparable_request) is not None:
            self._gate.await_replayed(lambda: self.is_replayed)

    def await_turn(self, kind: str, request: JsonMapping) -> None:
        """Wait for the agent's turn in the replay, or for the fork point."""
        comparable_request = _redacted(request)
        with self._lock:
            is_replayed = not self._prefix
            exchange = _find_same(self._prefix, kind, comparable_request)
        if exchange is not None:
            self._gate.arrive(exchange.number)
            self._gate.await_reply(exchange.number)
            return
        # A request after the fork point may come while an earlier one is not answered yet.
        if not is_replayed and _find_same(self._later, kind, comparable_request) is None:
            number = self._next_number()
            problem = _describe_mismatch(self._prefix, kind, comparable_request)
            raise self._gate.fail(f"request {number} {problem}")
        self._await_fork()

    def find(self, kind: str, request: JsonMapping) -> list[JsonObject] | None:
        """Return the recorded reply; None after the fork point."""
        with self._lock:
            exchange = _find_same(self._prefix, kind, _redacted(request))
            if exchange is None:
                return None
            self._prefix.remove(exchange)
            self._found_files = exchange.files
            return list(exchange.reply)

    def list_files(self) -> Mapping[str, str] | None:
        """Return the changed files; before the fork point, those of the recording."""
        return super().list_files() if self._is_live else self._found_files

    def due(self, received: int) -> int | None:
        """Return how many more messages the next request has; None after the fork point."""
        with self._lock:
            exchange = self._prefix[0] if self._prefix else None
        if exchange is None:
            self._await_fork()
            return None
        self._gate.arrive(exchange.number)
        return max(0, exchange.received - received)

    def rewrite(self, body: JsonObject) -> JsonObject:
        """Return the body with the replacements made."""
        return _replace_texts(body, self.replacements) if self.replacements else body

    @property
    def is_replayed(self) -> bool:
        """Whether the fork point has been reached."""
        return not self._prefix

    def _next_number(self) -> int:
        return self._total - len(self._prefix) + 1

    def _await_fork(self) -> None:
        self._gate.arrive(self._next_number())
        self._gate.await_fork(lambda: self.is_replayed)
        self._is_live = True


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


def _to_recorded(records: Sequence[JsonObject]) -> list[_RecordedExchange]:
    return [
        _RecordedExchange(
            kind=record["kind"],
            comparable_request=comparable(_allowed(record["kind"], record["request"])),
            reply=record["answer"],
            received=record["received"],
            number=number,
            files=record.get("files"),
        )
        for number, record in enumerate(records, 1)
    ]


def _redacted(request: JsonMapping) -> Any:
    """Return a request as it is compared with recorded ones."""
    return comparable(json.loads(redact(json.dumps(request, default=str))))


def _find_same(
    exchanges: Sequence[_RecordedExchange], kind: str, comparable_request: Any
) -> _RecordedExchange | None:
    for exchange in exchanges:
        if exchange.kind == kind and exchange.comparable_request == comparable_request:
            return exchange
    return None


def _describe_mismatch(
    exchanges: Sequence[_RecordedExchange], kind: str, comparable_request: Any
) -> str:
    """Describe how a request differs from the recorded one that is most similar."""
    same_kind = [exchange for exchange in exchanges if exchange.kind == kind]
    if not same_kind:
        return "was not recorded: the recorded run had ended by then"
    text = json.dumps(comparable_request)

    def similarity(exchange: _RecordedExchange) -> int:
        return _common_length(text, json.dumps(exchange.comparable_request))

    nearest = max(same_kind, key=similarity)
    where = difference(nearest.comparable_request, comparable_request)
    return f"differs from the recorded run at {where}"


def _replace_texts(value: Any, replacements: Mapping[str, str]) -> Any:
    """Return a JSON value with replacements made in all of its texts."""
    if isinstance(value, dict):
        return {name: _replace_texts(inner, replacements) for name, inner in value.items()}
    if isinstance(value, list):
        return [_replace_texts(inner, replacements) for inner in value]
    if isinstance(value, str):
        for old, new in replacements.items():
            value = value.replace(old, new)
    return value


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
