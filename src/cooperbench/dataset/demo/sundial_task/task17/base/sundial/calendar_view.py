"""Looking at schedules by day."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Mapping

from .expression import CronExpression
from .search import between, days_between


def agenda(schedules: Mapping[str, CronExpression], day: date) -> list[tuple[datetime, str]]:
    """What happens on a day: moments with the names of their schedules, in order."""
    start = datetime.combine(day, time.min)
    entries = [
        (moment, name)
        for name, expression in schedules.items()
        for moment in between(expression, start, start + timedelta(days=1))
    ]
    return sorted(entries)


def busiest_day(schedules: Mapping[str, CronExpression], start: date, end: date) -> tuple[date, int] | None:
    """The day from `start` to `end` (not included) with most moments, and how many; None if there are none."""
    best: tuple[date, int] | None = None
    for day in days_between(start, end):
        count = len(agenda(schedules, day))
        if count and (best is None or count > best[1]):
            best = day, count
    return best
