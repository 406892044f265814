"""What models were asked and what they answered: kept with `--record`, given again by the agent `replay_model`.

The file has one JSON line for each exchange, flushed one by one. A replayed request takes the recorded answer to the
same request (`comparable`), in whatever order; another one ends the agent.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cooperbench.errors import AgentFailure
from cooperbench.secrets import redact

Json = dict[str, Any]
DIFFERS = "replay_differs"
_EXCERPT = 60
_OF_ONE_RUN = {"client_metadata", "metadata", "prompt_cache_key", "safety_identifier", "user", "id"}
_VARYING = {
    "<id>": re.compile(
        r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b(?=[a-f]*\d)[0-9a-f]{7,}\b"
        r"|\b(?:ses|msg|prt|fc|fco|rs)_\w+|(?<=Chunk ID: )\w+|(?<=cc_version=)[\w.]+"
    ),
    "<time>": re.compile(
        r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?|\b\d\d:\d\d:\d\d\b"
        r"|(?:\w+day, )?(?:January|February|March|April|May|June|July|August|September|October|November|December)"
        r" \d{1,2}, \d{4}|\b\d+(?:\.\d+)? ?(?:s|ms|seconds?)\b|(?<=duration_ms: )\d+"
    ),
    "<number>": re.compile(r"\d{5,}|(?<=PID: )\d+|(?<=PGID: )\d+|(?<=127\.0\.0\.1:)\d+"),
}
"""Ids of sessions, items and commits; dates, times and durations; process ids, ports, timestamps."""


class Exchanges:
    """Of one agent: kept in a file, or answered from another."""

    def __init__(self, kept: Path | None = None, replayed: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._file: gzip.GzipFile | None = None
        self._left: list[tuple[Json, Any]] | None = None
        """Recorded exchanges that were not asked for yet, each with its comparable request."""
        self._count = 0
        if replayed is not None:
            self._left = [(one, comparable(one["request"])) for one in read_exchanges(replayed)]
        elif kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            self._file = gzip.open(kept, "wb", compresslevel=6)  # noqa: SIM115  # closed by `close`

    def keep(
        self,
        kind: str,
        request: Mapping[str, Any],
        answer: Sequence[Mapping[str, Any]],
        received: int,
    ) -> None:
        """`answer` is one object, or the events of a stream; `received`: how many messages the agent has got so far."""
        if self._file is None:
            return
        record = {"kind": kind, "request": request, "answer": answer, "received": received}
        line = redact(json.dumps(record, default=str)) + "\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(line.encode())
                self._file.flush()

    def find(self, kind: str, request: Mapping[str, Any]) -> list[Json] | None:
        """The recorded answer; None where the model is to be asked. AgentFailure where the request is another one."""
        if self._left is None:
            return None
        self._count += 1
        asked = comparable(json.loads(redact(json.dumps(request, default=str))))
        same_kind = [one for one in self._left if one[0]["kind"] == kind]
        if not same_kind:
            raise AgentFailure(
                DIFFERS,
                f"request {self._count} has no recorded answer: the recorded run asked no more",
            )
        for one in same_kind:
            if one[1] == asked:
                self._left.remove(one)
                return list(one[0]["answer"])
        text = json.dumps(asked)
        nearest = max(same_kind, key=lambda one: _common(text, json.dumps(one[1])))
        where = difference(nearest[1], asked)
        raise AgentFailure(
            DIFFERS, f"request {self._count} differs from the recorded run at {where}"
        )

    def due(self, received: int) -> int | None:
        """How many messages more the next request has; None: all that have come."""
        return max(0, self._left[0][0]["received"] - received) if self._left else None

    def close(self) -> None:
        """Nothing is kept after this."""
        with self._lock:
            if self._file is not None:
                self._file.close()


def read_exchanges(path: Path) -> list[Json]:
    """As far as the file is whole."""
    found: list[Json] = []
    with (
        suppress(OSError, EOFError, ValueError, zlib.error),
        gzip.open(path, "rt", encoding="utf-8") as file,
    ):
        found.extend(json.loads(line) for line in file)
    return found


def comparable(request: Any) -> Any:
    """A request without what differs between two runs of the same agent (`_OF_ONE_RUN`, `_VARYING`)."""
    if isinstance(request, dict):
        return {name: comparable(one) for name, one in request.items() if name not in _OF_ONE_RUN}
    if isinstance(request, list):
        return [comparable(one) for one in request]
    if isinstance(request, str):
        for stand_in, pattern in _VARYING.items():
            request = pattern.sub(stand_in, request)
    return request


def difference(recorded: Any, now: Any, path: str = "") -> str:
    """The first place where two values differ, with what is there: `messages[3].content: recorded '…', now '…'`."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        name = next(name for name in [*recorded, *now] if recorded.get(name) != now.get(name))
        return difference(
            recorded.get(name), now.get(name), f"{path}.{name}" if path else str(name)
        )
    if isinstance(recorded, list) and isinstance(now, list):
        place = _common(recorded, now)
        one, other = ((*value, None)[place] for value in (recorded, now))
        return difference(one, other, f"{path}[{place}]")
    texts = [one if isinstance(one, str) else json.dumps(one) for one in (recorded, now)]
    start = max(0, _common(*texts) - _EXCERPT // 3)
    shown = ["…" * (start > 0) + text[start : start + _EXCERPT] for text in texts]
    return f"{path}: recorded {shown[0]!r}, now {shown[1]!r}"


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How much of their beginnings is the same."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)
