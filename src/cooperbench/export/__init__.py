"""A run's results in the formats of other tools: one module a format, named in a table.

A format is a function `write(run, target)` that puts files into a folder and says which, and which pairs it had to
leave out. It reads what is on disk through `report.loading`, so that half-finished and older runs are exported as far
as they go.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from cooperbench.errors import UserError
from cooperbench.text import names_for_error

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.loading import Run

FORMATS = {
    "atif": (
        "cooperbench.export.atif",
        "Agent Trajectory Interchange Format: a document a pair, and one an agent",
    ),
}
"""Module and what it is, for the help."""


class Exported(NamedTuple):
    files: list[Path]
    left_out: list[str]
    """A line for each pair that has nothing to export."""


class _Format(Protocol):
    def write(self, run: Run, target: Path) -> Exported: ...


def export_run(run: Run, format_name: str, target: Path) -> Exported:
    """Write a run into a folder. Nothing to write at all is the user's error."""
    if format_name not in FORMATS:
        raise UserError(f"no format {format_name!r}; there are: {names_for_error(FORMATS, format_name)}")
    module = cast("_Format", import_module(FORMATS[format_name][0]))
    done = module.write(run, target)
    if not done.files:
        reason = done.left_out[0] if done.left_out else "there are no pairs in it"
        raise UserError(f"nothing of run {run.name!r} can be exported: {reason}")
    return done
