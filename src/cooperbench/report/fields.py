"""Reading records that may be incomplete or wrong: what is missing or of another type is None, 0 or empty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

T = TypeVar("T")


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


def seconds_between(start: object, end: object) -> float | None:
    """Between two times as files have them (ISO 8601; without a zone UTC); None where one is none. Never below zero:
    clocks of two processes may differ a little."""
    try:
        times = [datetime.fromisoformat(str(text)) for text in (start, end)]
    except ValueError:
        return None
    first, last = (time if time.tzinfo else time.replace(tzinfo=UTC) for time in times)
    return round(max(0.0, (last - first).total_seconds()), 3)
