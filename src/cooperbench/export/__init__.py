"""A run's results in the formats of other tools: a function for each format, named in a table.

Such a function, `write(run, target)`, writes files there and returns which, and which pairs it had to leave out. It
reads what is on disk through `report.loading`, so that half-finished and older runs are exported as far as they go.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import UserError
from cooperbench.storage import write_bytes
from cooperbench.text import names_for_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cooperbench.report.loading import Run


class Format(NamedTuple):
    writer: str
    """`module:function`, imported when it is used."""
    meaning: str
    """For the help."""
    file_name: str | None = None
    """Of a format that is one file; None: it is a folder of files."""


FORMATS = {
    "csv": Format("cooperbench.export:write_csv", "a row for each pair", "pairs.csv"),
    "parquet": Format("cooperbench.export:write_parquet", "the same, with types", "pairs.parquet"),
    "junit": Format("cooperbench.export.junit:write", "JUnit XML, pairs as tests, for CI", "junit.xml"),
    "leaderboard": Format(
        "cooperbench.export.submission:write",
        "verdicts with checksums of what they rest on, to hand in",
        "submission.json",
    ),
    "atif": Format(
        "cooperbench.export.atif:write",
        "Agent Trajectory Interchange Format, a document a pair, and one an agent",
    ),
}


class Exported(NamedTuple):
    files: list[Path]
    left_out: list[str]
    """A line for each pair that has nothing to export."""


def default_target(run: Run, format_name: str) -> Path:
    """In the run's own folder."""
    return run.root / "export" / (_format(format_name).file_name or format_name)


def export_run(run: Run, format_name: str, target: Path) -> Exported:
    """Write a run into a file, or into a folder (formats of one file go there under their usual name).

    Nothing to write at all is the user's error.
    """
    chosen = _format(format_name)
    if chosen.file_name is not None and target.is_dir():
        target /= chosen.file_name
    module, _, function = chosen.writer.partition(":")
    write: Callable[[Run, Path], Exported] = getattr(import_module(module), function)
    try:
        done = write(run, target) if run.pairs else Exported([], [])
    except OSError as error:
        raise UserError(f"{error.filename or target} cannot be written: {error.strerror}") from error
    if not done.files:
        reason = done.left_out[0] if done.left_out else "there are no pairs in it"
        raise UserError(f"nothing of run {run.name!r} can be exported: {reason}")
    return done


def write_csv(run: Run, target: Path) -> Exported:
    """The same rows as `cooperbench report --csv`."""
    from cooperbench.report.rows import csv_bytes, pair_rows

    write_bytes(target, csv_bytes(pair_rows([run])))
    return Exported([target], [])


def write_parquet(run: Run, target: Path) -> Exported:
    from cooperbench.report.rows import pair_rows, parquet_bytes

    write_bytes(target, parquet_bytes(pair_rows([run])))
    return Exported([target], [])


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise UserError(f"no format {name!r}; there are: {names_for_error(FORMATS, name)}")
    return FORMATS[name]
