"""A run's results in the formats of other tools. They are read through `report.loading`, so that half-finished runs are
exported as far as they go. `junit`, `submission` and `atif` make the contents of these formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import UserError
from cooperbench.storage import write_bytes
from cooperbench.text import names_for_error

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.loading import Run


class Format(NamedTuple):
    meaning: str
    """For the help."""
    file_name: str | None = None
    """Of a format that is one file; None: it is a folder of files."""


FORMATS = {
    "csv": Format("a row for each pair", "pairs.csv"),
    "parquet": Format("the same, with types", "pairs.parquet"),
    "junit": Format("JUnit XML, pairs as tests, for CI", "junit.xml"),
    "leaderboard": Format("verdicts with checksums of what they rest on, to hand in", "submission.json"),
    "atif": Format("Agent Trajectory Interchange Format, a document for each agent"),
}


class Exported(NamedTuple):
    files: list[Path]
    left_out: list[str]
    """A line for each pair that has nothing to export."""


def default_target(run: Run, format_name: str) -> Path:
    """In the run's own folder."""
    return run.root / "export" / (FORMATS[format_name].file_name or format_name)


def export_run(run: Run, format_name: str, target: Path) -> Exported:
    """Write a run into a file, or into a folder (formats of one file go there under their usual name).

    Nothing to write at all is the user's error.
    """
    if format_name not in FORMATS:
        raise UserError(f"no format {format_name!r}; there are: {names_for_error(FORMATS, format_name)}")
    file_name = FORMATS[format_name].file_name
    if file_name is not None and target.is_dir():
        target /= file_name
    try:
        if not run.pairs:
            done = Exported([], ["there are no pairs in it"])
        elif file_name is None:
            from cooperbench.export.atif import write_documents

            done = Exported(*write_documents(run, target))
        else:
            write_bytes(target, _content(run, format_name))
            done = Exported([target], [])
    except OSError as error:
        raise UserError(f"{error.filename or target} cannot be written: {error.strerror}") from error
    if not done.files:
        raise UserError(f"nothing of run {run.name!r} can be exported: {done.left_out[0]}")
    return done


def _content(run: Run, format_name: str) -> bytes:
    """Of a format that is one file. The rows are those of `cooperbench report --csv`."""
    from cooperbench.export import junit, submission
    from cooperbench.report.loading import csv_bytes, pair_rows, parquet_bytes

    match format_name:
        case "csv":
            return csv_bytes(pair_rows([run]))
        case "parquet":
            return parquet_bytes(pair_rows([run]))
        case "junit":
            return junit.junit_bytes(run)
    return submission.submission_bytes(run)
