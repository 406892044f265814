"""A run's results in the formats of other tools: a function a format, named in a table.

Such a function, `write(run, target)`, puts files there and says which, and which pairs it had to leave out. It reads
what is on disk through `report.loading`, so that half-finished and older runs are exported as far as they go.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from cooperbench.errors import UserError
from cooperbench.text import names_for_error

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.loading import Run


class Format(NamedTuple):
    module: str
    function: str
    meaning: str
    """For the help."""
    file_name: str | None = None
    """Of a format that is one file; None: it is a folder of files."""


FORMATS = {
    "csv": Format("tables", "write_csv", "a row for each pair", "pairs.csv"),
    "parquet": Format("tables", "write_parquet", "the same, with types", "pairs.parquet"),
    "junit": Format("junit", "write", "JUnit XML, pairs as tests, for CI", "junit.xml"),
    "leaderboard": Format(
        "submission", "write", "verdicts with checksums of what they rest on, to hand in", "submission.json"
    ),
    "atif": Format(
        "atif", "write", "Agent Trajectory Interchange Format, a document a pair, and one an agent"
    ),
}


class Exported(NamedTuple):
    files: list[Path]
    left_out: list[str]
    """A line for each pair that has nothing to export."""


class _Write(Protocol):
    def __call__(self, run: Run, target: Path) -> Exported: ...


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
    write = cast("_Write", getattr(import_module(f"cooperbench.export.{chosen.module}"), chosen.function))
    try:
        done = write(run, target) if run.pairs else Exported([], [])
    except OSError as error:
        raise UserError(f"{error.filename or target} cannot be written: {error.strerror}") from error
    if not done.files:
        reason = done.left_out[0] if done.left_out else "there are no pairs in it"
        raise UserError(f"nothing of run {run.name!r} can be exported: {reason}")
    return done


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise UserError(f"no format {name!r}; there are: {names_for_error(FORMATS, name)}")
    return FORMATS[name]
