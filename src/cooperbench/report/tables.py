"""Tables on a terminal: drawn to its width by rich, plain columns when piped. Hostile text is made visible."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.report.table import aligned
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table as RichTable


_ANY_WIDTH = 10_000
_NEVER_BROKEN = 12
"""Characters of a column that stays as wide as it is."""


@dataclass(frozen=True)
class Table:
    """A title, columns, and what has to be said about them."""

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


def print_tables(tables: Iterable[Table]) -> None:
    """On stdout, one after the other."""
    if sys.stdout.isatty():
        _print_rich(tables)
        return
    for table in tables:
        sys.stdout.write("\n".join(plain_lines(table)) + "\n\n")


def plain_lines(table: Table) -> list[str]:
    """The same at every width: for pipes and files."""
    rows = [[printable(cell).replace("\u00a0", " ") for cell in row] for row in (table.headings, *table.rows)]
    body = aligned(rows) if table.rows else []
    notes = [f"  {printable(note)}".replace("\u00a0", " ").rstrip() for note in table.notes]
    return [printable(table.title), *([""] if body else []), *body, *([""] if body and notes else []), *notes]


def _print_rich(tables: Iterable[Table]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for table in tables:
        console.print(Text(printable(table.title), style="bold"))
        if table.rows:
            drawn = _drawn(table)
            natural = console.measure(drawn, options=console.options.update(max_width=_ANY_WIDTH)).maximum
            console.print()
            console.print(_drawn(table, break_before="[") if natural > console.width else drawn)
            if table.notes:
                console.print()
        for note in table.notes:
            console.print(Padding(Text(printable(note), style="dim"), (0, 0, 0, 2)))
        console.print()


def _drawn(table: Table, break_before: str = "") -> RichTable:
    """With `break_before`, cells have a second line where that begins: `62 %` above `[50–73]`."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    rows = [[printable(cell) for cell in row] for row in table.rows]
    if break_before:
        rows = [[cell.replace(f" {break_before}", f"\n{break_before}") for cell in row] for row in rows]
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, heading in enumerate(printable(heading) for heading in table.headings):
        lines = [line for row in rows for line in row[place].splitlines()]
        # Where it gets narrow, long names are broken, numbers are not.
        short = max(map(len, [heading, *lines])) <= _NEVER_BROKEN
        drawn.add_column(Text(heading), overflow="fold", no_wrap=bool(place) and short)
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn
