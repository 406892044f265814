"""`cooperbench export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_logs_argument
from cooperbench.errors import UserError
from cooperbench.export import FORMATS, default_target, export_run
from cooperbench.text import names_for_error, plural, printable

if TYPE_CHECKING:
    import argparse

    from cooperbench.report.loading import Run

EXIT_MISMATCH = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="the experiment's name, or its folder")
    formats = "; ".join(f"{name}: {one.meaning}" for name, one in FORMATS.items())
    parser.add_argument(
        "--format", choices=tuple(FORMATS), default="atif", help=f"{formats} (default: %(default)s)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="the file, or the folder of files (default: in export/ in the run's folder)",
    )
    parser.add_argument(
        "--verify",
        type=Path,
        metavar="FILE",
        help="write nothing; check a leaderboard file against itself, and against the run's logs if they are here",
    )
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    from cooperbench.report.loading import resolve_run, run_names

    logs_dir = Path(args.log_dir)
    run = resolve_run(args.run, logs_dir) if args.run else None
    if args.verify:
        return _verify(args.verify, logs_dir, run)
    if run is None:
        raise UserError(f"which run? in {logs_dir} there are: {names_for_error(run_names(logs_dir))}")
    return _export(run, args.format, args.output or default_target(run, args.format))


def _export(run: Run, format_name: str, target: Path) -> int:
    done = export_run(run, format_name, target)
    for line in [*(f"left out: {one}" for one in done.left_out), *_without_verdict(run)]:
        sys.stderr.write(printable(line) + "\n")
    pairs = len(run.pairs) - len(done.left_out)
    where = done.files[0] if FORMATS[format_name].file_name else target
    files = "" if FORMATS[format_name].file_name else f"{plural(len(done.files), 'file')} of "
    sys.stdout.write(f"wrote {files}{plural(pairs, 'pair')} to {where}\n")
    return 0


def _without_verdict(run: Run) -> list[str]:
    """Half of a run is not to be taken for the whole."""
    states = [pair.state for pair in run.pairs if pair.verdicts is None]
    if not states:
        return []
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return [f"{len(states)} of {plural(len(run.pairs), 'pair')} without a verdict ({counts})"]


def _verify(path: Path, logs_dir: Path, run: Run | None) -> int:
    from cooperbench.export.submission import verify_submission

    found = verify_submission(path, logs_dir, run)
    for line in found.mismatches:
        sys.stdout.write(printable(line) + "\n")
    if found.mismatches:
        count = plural(len(found.mismatches), "mismatch", "mismatches")
        sys.stderr.write(printable(f"cooperbench: {path} does not hold: {count}") + "\n")
        return EXIT_MISMATCH
    if found.run is None:
        sys.stdout.write(
            f"{path} holds in itself; its logs are not in {logs_dir}, nothing else was checked\n"
        )
    else:
        sys.stdout.write(f"{path} holds: {plural(found.pairs, 'pair')}, all as in {found.run.root}\n")
    return 0
