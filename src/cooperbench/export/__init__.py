"""Export of a run to the formats of other tools. Unfinished runs are exported as far as they go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cooperbench.errors import UserError
from cooperbench.export.atif import write_documents
from cooperbench.export.hub_dataset import write_dataset
from cooperbench.export.inspect_log import inspect_log_bytes
from cooperbench.export.junit import junit_bytes
from cooperbench.export.otlp import otlp_bytes, untraced_lines
from cooperbench.export.submission import submission_bytes
from cooperbench.export.wandb_run import write_wandb_run
from cooperbench.report.loading import Run
from cooperbench.report.pair_table import csv_bytes, pair_rows, parquet_bytes
from cooperbench.storage import write_bytes
from cooperbench.text import names_for_error


class Exported(NamedTuple):
    """Files that an export has written."""

    files: list[Path]
    left_out: list[str]
    """A line for each pair that has nothing to export."""


class Format(NamedTuple):
    """One of the formats of `cooperbench export`."""

    meaning: str
    """One line for the help."""
    target: str
    """Default name of the file or folder."""
    content: Callable[[Run], bytes] | None = None
    """Makes the content of a format that is one file; None if the format is a folder of files."""
    left_out: Callable[[Run], list[str]] | None = None
    """Returns a line for each pair that the file does not have; None if it has all of them."""
    write: Callable[[Run, Path], tuple[list[Path], list[str]]] | None = None
    """Writes a format that is a folder; returns its files, and a line for each pair without any."""


FORMATS = {
    "csv": Format("a row for each pair", "pairs.csv", lambda run: csv_bytes(pair_rows([run]))),
    "parquet": Format(
        "the same, with types", "pairs.parquet", lambda run: parquet_bytes(pair_rows([run]))
    ),
    "junit": Format("JUnit XML, pairs as tests, for CI", "junit.xml", junit_bytes),
    "leaderboard": Format(
        "verdicts with checksums of the files behind them, for a leaderboard",
        "submission.json",
        submission_bytes,
    ),
    "inspect": Format("a log of Inspect, for `inspect view`", "run.eval", inspect_log_bytes),
    "otlp": Format(
        "traces for OpenTelemetry, JSON lines (see --otlp)",
        "traces.jsonl",
        otlp_bytes,
        untraced_lines,
    ),
    "hf": Format("a dataset for Hugging Face, with a card (see --push)", "hf", write=write_dataset),
    "wandb": Format("a run of Weights & Biases, for `wandb sync`", "wandb", write=write_wandb_run),
    "atif": Format(
        "Agent Trajectory Interchange Format, a document for each agent",
        "atif",
        write=write_documents,
    ),
}


def export_run(run: Run, format_name: str, target: Path) -> Exported:
    """Write a run to a file or into a folder.

    If `target` is a folder, a format of one file is written there under its default name.

    Raises:
        UserError: There is nothing to export, or the target cannot be written.
    """
    if format_name not in FORMATS:
        names = names_for_error(FORMATS, format_name)
        raise UserError(f"no format {format_name!r}; available: {names}")
    export_format = FORMATS[format_name]
    try:
        exported = _write(run, export_format, target)
    except OSError as error:
        path = error.filename or target
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    if not exported.files:
        raise UserError(f"nothing of run {run.name!r} can be exported: {exported.left_out[0]}")
    return exported


def _write(run: Run, export_format: Format, target: Path) -> Exported:
    if not run.pairs:
        return Exported([], ["there are no pairs in it"])
    if export_format.write is not None:
        return Exported(*export_format.write(run, target))
    assert export_format.content is not None
    if target.is_dir():
        target /= export_format.target
    left_out = export_format.left_out(run) if export_format.left_out else []
    if len(left_out) == len(run.pairs):
        return Exported([], left_out)
    write_bytes(target, export_format.content(run))
    return Exported([target], left_out)
