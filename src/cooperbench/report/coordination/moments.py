"""Times as they stand in files, for counting seconds between them."""

from __future__ import annotations

from cooperbench.report.records import parse_time


def moment(text: object) -> float | None:
    """Seconds since 1970 of an ISO 8601 time; None for anything else. Without a zone it is UTC."""
    time = parse_time(text)
    return None if time is None else time.timestamp()


def seconds_between(start: float | None, end: float | None) -> float | None:
    """Never below zero: clocks of two processes may differ by a moment."""
    return None if start is None or end is None else round(max(0.0, end - start), 3)
