"""Numbers and tables for people: as wide as the terminal, or as plain columns in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, TypeAlias

from cooperbench.report.statistics import Estimate
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

NOTHING = "–"
MAX_LINES = 20
_FIXED_SPACE = "\u00a0"
"""Keeps a number and its unit on one line: a cell is broken before its interval."""


def hundredths_text(share: float, digits: int = 0) -> str:
    """Return `63` for 0.625. Halves are rounded away from zero, as in the page's 02_format.js.

    29/200 is 14.5 %, but 100 times its nearest floating-point number is a little less. That is why
    the number is rounded twice.
    """
    exact = Decimal(100 * share).quantize(Decimal("1e-9"), ROUND_HALF_UP)
    rounded = exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    if rounded.is_zero():
        rounded = abs(rounded)
    return str(rounded).replace("-", "−")


def percent_text(value: float | None) -> str:
    """Return `63 %`, or a dash for None."""
    return NOTHING if value is None else f"{hundredths_text(value)}{_FIXED_SPACE}%"


def rate_text(estimate: Estimate) -> str:
    """Return `63 % [50–73]`, or only the rate if there is no interval."""
    text = percent_text(estimate.value)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{hundredths_text(estimate.low)}–{hundredths_text(estimate.high)}]"


def points_text(estimate: Estimate) -> str:
    """Return a difference between rates: `−4.2 points [−10.1, +1.7]`."""
    if estimate.value is None:
        return NOTHING
    text = f"{_signed(estimate.value)}{_FIXED_SPACE}points"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{_signed(estimate.low)},{_FIXED_SPACE}{_signed(estimate.high)}]"


def _signed(value: float) -> str:
    text = hundredths_text(value, 1)
    return text if text == "0.0" or text.startswith("−") else f"+{text}"


def basis_text(estimate: Estimate) -> str:
    """Return the sample behind an interval: `24 pairs of 4 tasks, design effect 1.3`."""
    text = f"{plural(estimate.n, 'pair')} of {plural(estimate.clusters, 'task')}"
    if estimate.design_effect is not None:
        text += f", design effect {estimate.design_effect:.1f}"
    if estimate.note:
        text += f"; {estimate.note}"
    return text


def p_text(value: float) -> str:
    """Return a p-value: `p = 0.042` or `p < 0.001`."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def decimal_text(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, or a dash for None."""
    return NOTHING if value is None else f"{value:,.{digits}f}".replace("-", "−")


def first_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines that fit into a terminal, and how many were left out."""
    hidden = len(lines) - MAX_LINES
    if hidden <= 0:
        return list(lines)
    return [*lines[:MAX_LINES], f"… {hidden:,} more (--json prints all)"]


Cell: TypeAlias = "str | int | Estimate | None"
"""A cell of a table: an estimate is printed as a rate, None as a dash."""
Rows: TypeAlias = "list[list[Cell]]"


@dataclass(frozen=True)
class Table:
    """A title, perhaps a table, and notes below it."""

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    notes: Sequence[str] = ()

    @property
    def texts(self) -> list[list[str]]:
        """The cells as text, the row of headings first."""
        return [[printable(_text(cell)) for cell in row] for row in (self.headings, *self.rows)]


def _text(cell: Cell) -> str:
    if cell is None:
        return NOTHING
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else rate_text(cell)


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables to stdout."""
    if sys.stdout.isatty():
        _print_rich(tables)
        return
    for table in tables:
        lines = [printable(table.title)]
        if table.rows:
            lines += ["", *aligned(table.texts)]
            if table.notes:
                lines.append("")
        lines += [f"  {printable(note)}".rstrip() for note in table.notes]
        sys.stdout.write("\n".join(lines).replace(_FIXED_SPACE, " ") + "\n\n")


def _print_rich(tables: Iterable[Table]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for table in tables:
        console.print(Text(printable(table.title), style="bold"))
        if table.rows:
            _print_rows(console, table)
        for note in table.notes:
            console.print(Padding(Text(printable(note), style="dim"), (0, 0, 0, 2)))
        console.print()


def _print_rows(console: Console, table: Table) -> None:
    console.print()
    console.print(_rich_table(table))
    if table.notes:
        console.print()


def _rich_table(table: Table) -> RichTable:
    """Return the rows for rich. In a narrow terminal, names and cells with spaces are broken."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    headings, *rows = table.texts
    for column, heading in enumerate(headings):
        has_spaces = any(" " in row[column] for row in rows)
        drawn.add_column(
            Text(heading),
            overflow="fold",
            no_wrap=column > 0 and not has_spaces,
            min_width=len(heading),
        )
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines whose columns are aligned, indented by two spaces."""
    if not rows:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines
