"""A whole cron expression, and whether a moment fits it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from .errors import CronError
from .fields import FIELDS, Field, parse_field


@dataclass(frozen=True)
class CronExpression:
    """An expression that was understood. Two are equal if they were written the same way."""

    text: str
    fields: tuple[Field, ...]
    """In the order in which they are written."""

    @classmethod
    def parse(cls, text: str) -> CronExpression:
        """Understand an expression; raises CronError."""
        parts = text.split()
        if len(parts) != len(FIELDS):
            raise CronError(f"expected {len(FIELDS)} fields, found {len(parts)} in {text!r}")
        fields = tuple(parse_field(part, spec) for part, spec in zip(parts, FIELDS))
        return cls(text.strip(), fields)

    def matches(self, moment: datetime) -> bool:
        """Does the expression fit the minute that a moment lies in?"""
        minute, hour, _, _, _ = self.fields
        return moment.minute in minute and moment.hour in hour and self.matches_day(moment.date())

    def matches_day(self, day: date) -> bool:
        """Does the expression fit any minute of a day?

        Where both day fields are restricted, one of them is enough.
        """
        _, _, days, months, weekdays = self.fields
        if day.month not in months:
            return False
        day_fits = day.day in days
        weekday_fits = day.isoweekday() % 7 in weekdays
        if days.is_any or weekdays.is_any:
            return day_fits and weekday_fits
        return day_fits or weekday_fits

    def __str__(self) -> str:
        return self.text
