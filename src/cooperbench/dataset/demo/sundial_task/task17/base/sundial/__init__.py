"""sundial: cron expressions and a small scheduler."""

from .calendar_view import agenda, busiest_day
from .errors import CronError, NeverHappens, SundialError, UnknownJob
from .expression import CronExpression
from .scheduler import Job, Scheduler
from .search import between, next_after, previous_before, upcoming

__all__ = [
    "CronError",
    "CronExpression",
    "Job",
    "NeverHappens",
    "Scheduler",
    "SundialError",
    "UnknownJob",
    "agenda",
    "between",
    "busiest_day",
    "next_after",
    "previous_before",
    "upcoming",
]
