"""One field of a cron expression: which numbers it allows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Mapping

from .errors import CronError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM = re.compile(r"(?P<start>\*|\w+)(?:-(?P<end>\w+))?(?:/(?P<step>\d+))?")


@dataclass(frozen=True)
class FieldSpec:
    """What a field is called and which numbers and names it can hold."""

    name: str
    low: int
    high: int
    names: Mapping[str, int] = field(default_factory=dict)


MINUTE = FieldSpec("minute", 0, 59)
HOUR = FieldSpec("hour", 0, 23)
DAY = FieldSpec("day of month", 1, 31)
MONTH = FieldSpec("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)})
WEEKDAY = FieldSpec("day of week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)})

FIELDS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True)
class Field:
    """A field that was understood."""

    spec: FieldSpec
    text: str
    values: frozenset[int]

    @property
    def is_any(self) -> bool:
        """Was it written with a leading star? Cron treats such a day field as no restriction."""
        return self.text.startswith("*")

    def __contains__(self, number: int) -> bool:
        return number in self.values

    def next_from(self, number: int) -> int | None:
        """The smallest allowed number that is at least `number`, if there is one."""
        return min((value for value in self.values if value >= number), default=None)

    def last_until(self, number: int) -> int | None:
        """The largest allowed number that is at most `number`, if there is one."""
        return max((value for value in self.values if value <= number), default=None)

    @property
    def first(self) -> int:
        return min(self.values)

    @property
    def last(self) -> int:
        return max(self.values)


def parse_field(text: str, spec: FieldSpec) -> Field:
    """Understand one field; raises CronError that names it."""
    values: set[int] = set()
    for item in text.lower().split(","):
        values.update(_parse_item(item, spec))
    if spec is WEEKDAY and 7 in values:
        values = (values - {7}) | {0}
    return Field(spec, text, frozenset(values))


def _parse_item(item: str, spec: FieldSpec) -> range:
    """The numbers of one part of a list: `*`, `5`, `1-5`, `*/10`, `3-30/5`; `3/5` means from 3 to the end."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise CronError(f"{spec.name}: cannot understand {item!r}")
    step = int(match["step"] or 1)
    if step == 0:
        raise CronError(f"{spec.name}: a step of 0 never ends: {item!r}")
    if match["start"] == "*":
        if match["end"]:
            raise CronError(f"{spec.name}: a range cannot start with a star: {item!r}")
        return range(spec.low, spec.high + 1, step)
    start = _parse_number(match["start"], spec)
    if match["end"]:
        end = _parse_number(match["end"], spec)
    else:
        end = spec.high if match["step"] else start
    if end < start:
        raise CronError(f"{spec.name}: the range {item!r} is backwards")
    return range(start, end + 1, step)


def _parse_number(text: str, spec: FieldSpec) -> int:
    if text in spec.names:
        return spec.names[text]
    if not text.isdecimal():
        raise CronError(f"{spec.name}: cannot understand {text!r}")
    number = int(text)
    if not spec.low <= number <= spec.high:
        raise CronError(f"{spec.name}: {number} is not between {spec.low} and {spec.high}")
    return number
