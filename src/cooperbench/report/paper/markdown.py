"""Tables and the README for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cooperbench._version import __version__
from cooperbench.report.mismatch import MARK, MARK_NOTE, mismatch_lines, unchecked_lines
from cooperbench.report.paper.content import Number, PaperTable
from cooperbench.report.paper.tables import PaperData
from cooperbench.text import printable


@dataclass(frozen=True)
class RunSource:
    """A run that the numbers come from."""

    name: str
    configuration: str
    dataset: str
    config_sha256: str
    pairs: int


@dataclass(frozen=True)
class PaperCommands:
    """The commands that a paper names."""

    paper: str
    """Makes the folder."""
    query: str
    """Prints the JSON that numbers point into."""


def escape(text: str) -> str:
    """Return a text that Markdown shows as it is, in a cell of a table."""
    text = printable(text).replace("\n", " ")
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return text


def tables_text(tables: Sequence[PaperTable]) -> str:
    """Return tables.md."""
    parts = ["# Tables", ""]
    for table in tables:
        parts += [f"## {escape(table.caption)}", "", *_table_lines(table), ""]
        parts += [f"- {escape(note)}" for note in table.all_notes]
        parts += [f"- Numbers: `{table.name}/…` in [numbers.json](numbers.json)", ""]
    return "\n".join(parts)


def _table_lines(table: PaperTable) -> list[str]:
    labels = len(table.rows[0].labels)
    numbers = len(table.headings) - labels
    lines = [
        _line([escape(heading) for heading in table.headings]),
        _line([*["---"] * labels, *["---:"] * numbers]),
    ]
    for row in table.rows:
        cells = [escape(label) for label in row.labels]
        cells += [_number_text(number) for number in row.numbers]
        lines.append(_line(cells))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number_text(number: Number | None) -> str:
    if number is None:
        return "–"
    return escape(number.text) + (MARK if number.has_mismatch else "")


def readme_text(
    data: PaperData,
    tables: Sequence[PaperTable],
    figures: Mapping[str, str],
    sources: Sequence[RunSource],
    commands: PaperCommands,
) -> str:
    """Return README.md; `figures` has their captions by name."""
    lines = [
        "# Tables and figures",
        "",
        f"Made by CooperBench {__version__} with",
        "",
        f"    {printable(commands.paper)}",
        "",
        "The same command makes the folder again, with the same content if the runs have not",
        "changed.",
        "",
        "| file | content |",
        "| --- | --- |",
        "| `numbers.json` | every number, with the run, the filter, the formula and the query |",
        "| `tables.md` | all tables |",
        "| `paper.tex` | a document with all tables and figures, to look at them |",
    ]
    lines += [f"| `tables/{table.name}.tex` | {escape(table.caption)} |" for table in tables]
    lines += [
        f"| `figures/{name}.pdf`, `.svg` | {escape(caption)} |" for name, caption in figures.items()
    ]
    lines += _usage_lines(commands)
    lines += _run_lines(sources)
    lines += _mismatch_lines(data)
    return "\n".join(lines)


def _usage_lines(commands: PaperCommands) -> list[str]:
    """Return how to include the files, and how to find where a number comes from."""
    return [
        "",
        "LaTeX needs `\\usepackage{booktabs,graphicx,textcomp}` and",
        "`\\usepackage[T1]{fontenc}`; include a table with `\\input{tables/rates}`. Figures have",
        "the width of one column of a two-column paper.",
        "",
        "## Where a number comes from",
        "",
        "In `tables/*.tex`, a comment behind each number has its key in `numbers.json`. The entry",
        "has a JSON pointer into the output of",
        "",
        f"    {printable(commands.query)}",
        "",
        "Definitions: docs/statistics.md and docs/coordination.md of CooperBench.",
        "",
    ]


def _run_lines(sources: Sequence[RunSource]) -> list[str]:
    """Return the table of runs."""
    lines = [
        "## Runs",
        "",
        "| run | model and agent | dataset | pairs | SHA-256 of config.json |",
        "| --- | --- | --- | ---: | --- |",
    ]
    for source in sources:
        cells = [source.name, source.configuration, source.dataset, f"{source.pairs:,}"]
        cells = [escape(cell) for cell in cells]
        lines.append(_line([*cells, f"`{source.config_sha256}`"]))
    lines.append("")
    return lines


def _mismatch_lines(data: PaperData) -> list[str]:
    mismatches = mismatch_lines(data.analysis.mismatches)
    unchecked = unchecked_lines(data.analysis.mismatches)
    lines: list[str] = []
    if mismatches:
        lines += ["## Mismatches", "", f"{MARK_NOTE}.", ""]
        lines += [f"- {escape(line)}" for line in mismatches]
        lines.append("")
    if unchecked:
        lines += ["## Not checked", ""]
        lines += [f"- {escape(line)}" for line in unchecked]
        lines.append("")
    if data.analysis.problems:
        lines += ["## Could not be read", ""]
        lines += [f"- {escape(line)}" for line in data.analysis.problems]
        lines.append("")
    return lines
