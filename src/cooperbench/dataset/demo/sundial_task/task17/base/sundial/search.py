"""Finding the moments that fit an expression, forwards and backwards.

Days are tried one after the other (they are few: at most about eight years lie between two leap days), the
time of day is computed.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Iterator

from .errors import NeverHappens
from .expression import CronExpression

_ONE_DAY = timedelta(days=1)
_ONE_MINUTE = timedelta(minutes=1)
_HORIZON_DAYS = 366 * 8 + 1


def next_after(expression: CronExpression, moment: datetime) -> datetime:
    """The first moment after `moment` that fits; NeverHappens if there is none."""
    start = moment.replace(second=0, microsecond=0) + _ONE_MINUTE
    earliest: time | None = start.time()
    day = start.date()
    for _ in range(_HORIZON_DAYS):
        if expression.matches_day(day):
            found = first_time_from(expression, earliest or time.min)
            if found is not None:
                return datetime.combine(day, found)
        earliest = None
        day += _ONE_DAY
    raise NeverHappens(f"no day fits {expression}")


def previous_before(expression: CronExpression, moment: datetime) -> datetime:
    """The last moment before `moment` that fits; NeverHappens if there is none."""
    start = moment - timedelta(microseconds=1)
    latest: time | None = start.time()
    day = start.date()
    for _ in range(_HORIZON_DAYS):
        if expression.matches_day(day):
            found = last_time_until(expression, latest or time(23, 59))
            if found is not None:
                return datetime.combine(day, found)
        latest = None
        day -= _ONE_DAY
    raise NeverHappens(f"no day fits {expression}")


def first_time_from(expression: CronExpression, earliest: time) -> time | None:
    """The first time of day that fits, not before `earliest`."""
    minute, hour, _, _, _ = expression.fields
    if earliest.hour in hour:
        found = minute.next_from(earliest.minute)
        if found is not None:
            return time(earliest.hour, found)
    next_hour = hour.next_from(earliest.hour + 1)
    return None if next_hour is None else time(next_hour, minute.first)


def last_time_until(expression: CronExpression, latest: time) -> time | None:
    """The last time of day that fits, not after `latest`."""
    minute, hour, _, _, _ = expression.fields
    if latest.hour in hour:
        found = minute.last_until(latest.minute)
        if found is not None:
            return time(latest.hour, found)
    last_hour = hour.last_until(latest.hour - 1)
    return None if last_hour is None else time(last_hour, minute.last)


def upcoming(expression: CronExpression, after: datetime, count: int) -> list[datetime]:
    """The next `count` moments after `after`."""
    moments = []
    for _ in range(count):
        after = next_after(expression, after)
        moments.append(after)
    return moments


def between(expression: CronExpression, start: datetime, end: datetime) -> Iterator[datetime]:
    """The moments that fit from `start` (included) to `end` (not included), in order."""
    try:
        moment = next_after(expression, start - timedelta(microseconds=1))
        while moment < end:
            yield moment
            moment = next_after(expression, moment)
    except NeverHappens:
        return


def days_between(start: date, end: date) -> Iterator[date]:
    """The days from `start` to `end`, without the last."""
    while start < end:
        yield start
        start += _ONE_DAY
