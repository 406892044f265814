"""A scheduler: named jobs, each with an expression and something to do.

It has no clock and no thread of its own: whoever uses it says what time it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Callable, Iterator

from .errors import NeverHappens, SundialError, UnknownJob
from .expression import CronExpression
from .search import next_after, previous_before

Action = Callable[[], object]


@dataclass
class Job:
    """Something to be done again and again."""

    name: str
    expression: CronExpression
    action: Action
    last_run: datetime | None = None
    runs: int = 0

    def is_due(self, now: datetime) -> bool:
        """Did a moment of the job come since it last ran? A job that never ran is due in its own minute only."""
        if self.expression.matches(now):
            return self.last_run is None or self.last_run < now.replace(second=0, microsecond=0)
        if self.last_run is None:
            return False
        try:
            return previous_before(self.expression, now) > self.last_run
        except NeverHappens:
            return False

    def run(self, now: datetime) -> object:
        """Do it, and remember when."""
        self.last_run = now
        self.runs += 1
        return self.action()


class Scheduler:
    """Holds jobs and runs the ones that are due."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def add(self, name: str, expression: str | CronExpression, action: Action) -> Job:
        """Add a job under a name that is not taken."""
        if name in self._jobs:
            raise SundialError(f"there is a job named {name!r} already")
        if isinstance(expression, str):
            expression = CronExpression.parse(expression)
        job = self._jobs[name] = Job(name, expression, action)
        return job

    def remove(self, name: str) -> None:
        """Forget a job."""
        if name not in self._jobs:
            raise UnknownJob(name)
        del self._jobs[name]

    def get(self, name: str) -> Job:
        """The job of a name."""
        try:
            return self._jobs[name]
        except KeyError:
            raise UnknownJob(name) from None

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def due(self, now: datetime) -> list[Job]:
        """The jobs to be run now, in the order in which they were added."""
        return [job for job in self if job.is_due(now)]

    def run_pending(self, now: datetime) -> list[str]:
        """Run what is due and return the names of it. An exception in one job stops the others."""
        names = []
        for job in self.due(now):
            job.run(now)
            names.append(job.name)
        return names

    def next_run(self, now: datetime) -> tuple[datetime, Job] | None:
        """When something is to be done next, and what; None without jobs that can happen."""
        soonest: tuple[datetime, Job] | None = None
        for job in self:
            try:
                moment = next_after(job.expression, now)
            except NeverHappens:
                continue
            if soonest is None or moment < soonest[0]:
                soonest = moment, job
        return soonest
