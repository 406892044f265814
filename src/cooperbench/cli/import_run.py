"""`cooperbench import-run`: results of the public release become a run under logs/."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cooperbench.cli import arguments
from cooperbench.importing.import_run import Imported, import_run
from cooperbench.text import plural, printable

_MAX_LINES = 40
"""Problems that are printed; import.json has all of them."""


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench import-run`."""
    folder = (
        "folder of one run in the layout of the public release (any version) or of the quick start,"
        " or a folder of its trajectories"
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help=folder)
    name = "name of the new run (default: that of the folder)"
    parser.add_argument("-n", "--name", help=name)
    arguments.add_logs_argument(parser)
    arguments.add_json_argument(parser)


def import_folder(args: argparse.Namespace) -> int:
    """Import a run, and print what was imported and what was missing."""
    imported = import_run(args.folder, Path(args.log_dir), args.name)
    problems = list(_problem_lines(imported))
    for line in problems[:_MAX_LINES]:
        arguments.print_note(line)
    if len(problems) > _MAX_LINES:
        hidden = plural(len(problems) - _MAX_LINES, "more line")
        arguments.print_note(f"{hidden} in {imported.root}/import.json")
    content = {"run_name": imported.name, **msgspec.to_builtins(imported.record)}
    arguments.print_result(args, content, _lines(imported))
    return 0


def _problem_lines(imported: Imported) -> Iterator[str]:
    yield from imported.record.left_out
    for pair in imported.record.pairs:
        for problem in pair.problems:
            yield f"{printable(pair.source)}: {problem}"


def _lines(imported: Imported) -> Iterator[str]:
    counts = ", ".join(f"{count:,} {setting}" for setting, count in imported.settings.items())
    pairs = plural(len(imported.record.pairs), "pair")
    yield f"imported {pairs} ({counts}) to {imported.root}"
    verdicts = [verdict.passed for verdict in imported.verdicts]
    recorded = len([verdict for verdict in verdicts if verdict is not None])
    yield f"recorded verdicts: {recorded:,}, of which {verdicts.count(True):,} passed"
    missing = ", ".join(imported.record.missing)
    if missing:
        yield f"not in the source, so null in every pair: {missing}"
    partly = [pair for pair in imported.record.pairs if pair.missing]
    if partly:
        yield f"{plural(len(partly), 'pair')} with more missing values: see import.json"
    yield f"next: cooperbench eval -n {imported.name} --backend docker"


COMMANDS = {"import-run": (add_import_arguments, import_folder)}
