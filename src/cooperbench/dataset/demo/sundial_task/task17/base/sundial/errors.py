"""What can go wrong with schedules."""

from __future__ import annotations


class SundialError(Exception):
    """Base of all errors of this package."""


class CronError(SundialError, ValueError):
    """A text is not a cron expression."""


class NeverHappens(SundialError, LookupError):
    """An expression is correct but no day fits it, e.g. the 30th of February."""


class UnknownJob(SundialError, KeyError):
    """A scheduler has no job of a name."""

    def __str__(self) -> str:
        return f"there is no job named {self.args[0]!r}"
