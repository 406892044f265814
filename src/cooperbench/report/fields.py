"""Files and records that nobody vouches for: what is missing or of another type is None, 0 or empty, never an error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from cooperbench.storage import read_regular_file

T = TypeVar("T")


def read_object(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The JSON object in a file, or why there is none; two times None where there is no file."""
    try:
        content = json.loads(read_regular_file(path))
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return None, f"{path.name} is not whole JSON"
    return (content, None) if isinstance(content, dict) else (None, f"{path.name} holds no JSON object")


def read_bytes(path: Path) -> bytes | None:
    try:
        return read_regular_file(path)
    except OSError:
        return None


def mapping(record: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """A part of a record; empty where it is missing or something else."""
    value = (record or {}).get(key)
    return value if isinstance(value, dict) else {}


def listed(record: Mapping[str, Any] | None, key: str, kind: type[T]) -> list[T]:
    """What a list in a record has of this kind; empty where it is missing or something else."""
    value = (record or {}).get(key)
    return [one for one in value if isinstance(one, kind)] if isinstance(value, list) else []


def number(record: Mapping[str, Any] | None, key: str) -> float:
    """0 where it is missing or no number."""
    value = (record or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return float(value)


def text_or_none(record: Mapping[str, Any] | None, key: str) -> str | None:
    value = (record or {}).get(key)
    return value if isinstance(value, str) and value else None


def flag(record: Mapping[str, Any] | None, key: str) -> bool | None:
    value = (record or {}).get(key)
    return value if isinstance(value, bool) else None


def parse_time(text: object) -> datetime | None:
    """A time as files have it (ISO 8601), in UTC; one without a zone is UTC. None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def seconds_between(start: object, end: object) -> float | None:
    """Between two times as files have them; never below zero: clocks of two processes may differ a little."""
    first, last = parse_time(start), parse_time(end)
    return None if first is None or last is None else round(max(0.0, (last - first).total_seconds()), 3)
