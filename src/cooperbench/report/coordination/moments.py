"""Times as they stand in files, for counting seconds between them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(text: object) -> float | None:
    """Seconds since 1970 of an ISO 8601 time; None for anything else. Without a zone it is UTC."""
    if not isinstance(text, str) or not 10 <= len(text) <= 40:
        return None
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def seconds_between(start: float | None, end: float | None) -> float | None:
    """Never below zero: clocks of two processes may differ by a moment."""
    return None if start is None or end is None else round(max(0.0, end - start), 3)
