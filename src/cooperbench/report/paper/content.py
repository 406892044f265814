"""Types of the content of a paper: tables whose numbers know where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cooperbench.report.mismatch import MARK
from cooperbench.report.statistics import Estimate


@dataclass(frozen=True)
class Number:
    """A number of a table, with the query that gives it; an entry of numbers.json."""

    key: str
    """`table/row/column`, unique in the folder."""
    text: str
    """As the tables show it, without marks."""
    value: float | int | None
    low: float | None
    """Ends of the 95 % interval; None if there is none."""
    high: float | None
    n: int | None
    """Number of pairs, agents or other units behind it; None for counts and sums."""
    runs: tuple[str, ...]
    filter: Mapping[str, str]
    """Which results of these runs are counted."""
    formula: str
    pointer: str
    """JSON pointer into the output of `command` in numbers.json."""
    has_mismatch: bool
    """Whether it is marked, because something on disk does not fit."""
    note: str = ""
    """A remark on the interval."""

    @property
    def title(self) -> str:
        """Row and column."""
        _, row, column = self.key.split("/", 2)
        return f"{row} {column}"


@dataclass(frozen=True)
class Row:
    """A row of a table: one or more labels, then numbers."""

    labels: tuple[str, ...]
    numbers: tuple[Number | None, ...]
    """None where a number does not apply."""


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper."""

    name: str
    """Name of the file, and first part of the keys of its numbers."""
    caption: str
    headings: tuple[str, ...]
    """Titles of the labels and of the numbers."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, those of intervals, and the meaning of marks if there are any."""
        numbers = numbers_of([self])
        notes = list(self.notes)
        titles_by_note: dict[str, list[str]] = {}
        for number in numbers:
            if number.note:
                titles_by_note.setdefault(number.note, []).append(number.title)
        notes += [f"{', '.join(titles)}: {note}" for note, titles in titles_by_note.items()]
        if any(number.has_mismatch for number in numbers):
            notes.append(f"{MARK} something on disk does not fit: README.md, Mismatches")
        return tuple(notes)


@dataclass(frozen=True)
class Source:
    """The row of a table that numbers belong to, and where its values are."""

    table: str
    row: str
    runs: tuple[str, ...]
    pointer: str
    """JSON pointer of the row."""
    filter: Mapping[str, str]
    has_mismatch: bool = False

    def estimate(
        self, column: str, text: str, estimate: Estimate | None, formula: str, pointer: str
    ) -> Number | None:
        """Return a number with an interval; None if it does not apply."""
        if estimate is None or estimate.value is None:
            return None
        number = self.count(column, text, estimate.value, formula, pointer)
        return replace(
            number, low=estimate.low, high=estimate.high, n=estimate.n, note=estimate.note
        )

    def whole(self, column: str, value: int, formula: str, pointer: str) -> Number:
        """Return a whole number."""
        return self.count(column, f"{value:,}", value, formula, pointer)

    def count(
        self, column: str, text: str, value: float | int, formula: str, pointer: str
    ) -> Number:
        """Return a number without an interval."""
        return Number(
            key=f"{self.table}/{self.row}/{column}",
            text=text,
            value=value,
            low=None,
            high=None,
            n=None,
            runs=self.runs,
            filter=self.filter,
            formula=formula,
            pointer=f"{self.pointer}/{pointer}",
            has_mismatch=self.has_mismatch,
        )


def numbers_of(tables: Sequence[PaperTable]) -> list[Number]:
    """Return all numbers in the order of the tables."""
    numbers: list[Number] = []
    for table in tables:
        for row in table.rows:
            numbers += [number for number in row.numbers if number is not None]
    return numbers
