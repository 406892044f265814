"""Numbers and tables as people read them: on a terminal as wide as it is, in a pipe as plain columns."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import TypeAlias

from cooperbench.report.statistics import Estimate
from cooperbench.text import plural, printable

NOTHING = "–"
MAX_LINES = 20
_FIXED_SPACE = "\u00a0"
"""A cell that has to be broken is broken before its interval, not before its unit."""


def hundredths_text(share: float, digits: int = 0) -> str:
    """`63` for 0.625: halves go away from zero, as in `hundredths` of the page's 02_format.js.

    29/200 is 14.5 %, though 100 times its nearest floating-point number is a little less: hence the first rounding.
    """
    exact = Decimal(100 * share).quantize(Decimal("1e-9"), ROUND_HALF_UP)
    shown = exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{abs(shown) if shown.is_zero() else shown}".replace("-", "−")


def percent_text(value: float | None) -> str:
    return NOTHING if value is None else f"{hundredths_text(value)}{_FIXED_SPACE}%"


def rate_text(estimate: Estimate) -> str:
    """`63 % [50–73]`; without an interval only the rate."""
    text, low, high = percent_text(estimate.value), estimate.low, estimate.high
    if low is None or high is None:
        return text
    return f"{text} [{hundredths_text(low)}–{hundredths_text(high)}]"


def points_text(estimate: Estimate) -> str:
    """`−4.2 points [−10.1, +1.7]`, of a difference between rates."""
    if estimate.value is None:
        return NOTHING
    text = f"{_signed(estimate.value)}{_FIXED_SPACE}points"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{_signed(estimate.low)},{_FIXED_SPACE}{_signed(estimate.high)}]"


def _signed(value: float) -> str:
    shown = hundredths_text(value, 1)
    return shown if shown == "0.0" or shown.startswith("−") else f"+{shown}"


def basis_text(estimate: Estimate) -> str:
    """What an interval rests on: `24 pairs of 4 tasks, design effect 1.3`."""
    pairs, tasks = plural(estimate.n, "pair"), plural(estimate.clusters, "task")
    effect = (
        "" if estimate.design_effect is None else f", design effect {estimate.design_effect:.1f}"
    )
    return f"{pairs} of {tasks}{effect}" + (f"; {estimate.note}" if estimate.note else "")


def p_text(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def decimal_text(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}".replace("-", "−")


def first_lines(lines: Sequence[str]) -> list[str]:
    """What a terminal has room for."""
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], *([f"… {more} more (--json has all)"] if more > 0 else [])]


Cell: TypeAlias = "str | int | Estimate | None"
"""An estimate is shown as a rate; nothing as a dash."""
Rows: TypeAlias = "list[list[Cell]]"


@dataclass(frozen=True)
class Table:
    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    notes: Sequence[str] = ()

    @property
    def texts(self) -> list[list[str]]:
        return [[printable(_text(cell)) for cell in row] for row in (self.headings, *self.rows)]


def _text(cell: Cell) -> str:
    if cell is None:
        return NOTHING
    return str(cell) if isinstance(cell, str | int) else rate_text(cell)


def print_tables(tables: Iterable[Table]) -> None:
    if sys.stdout.isatty():
        _print_rich(tables)
        return
    for table in tables:
        body = aligned(table.texts) if table.rows else []
        notes = [f"  {printable(note)}".rstrip() for note in table.notes]
        lines = [
            printable(table.title),
            *([""] if body else []),
            *body,
            *([""] if body and notes else []),
        ]
        sys.stdout.write("\n".join([*lines, *notes]).replace(_FIXED_SPACE, " ") + "\n\n")


def _print_rich(tables: Iterable[Table]) -> None:
    """Where it gets narrow, names are broken, and cells before their interval; single words and numbers are not."""
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    for table in tables:
        console.print(Text(printable(table.title), style="bold"))
        if table.rows:
            drawn = RichTable(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
            headings, *rows = table.texts
            for place, heading in enumerate(headings):
                whole = place > 0 and not any(" " in row[place] for row in rows)
                drawn.add_column(
                    Text(heading), overflow="fold", no_wrap=whole, min_width=len(heading)
                )
            for row in rows:
                drawn.add_row(*map(Text, row))
            console.print("", drawn, *([""] if table.notes else []), sep="\n")
        for note in table.notes:
            console.print(Padding(Text(printable(note), style="dim"), (0, 0, 0, 2)))
        console.print()


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = (
        [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    )
    return [
        (
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
