"""`cooperbench export`: a run's results for other tools."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from cooperbench.cli.arguments import add_logs_argument, print_line, print_note
from cooperbench.errors import UserError
from cooperbench.export import FORMATS, default_target, export_run
from cooperbench.export.submission import verify_submission
from cooperbench.report.loading import Run, resolve_run, run_names
from cooperbench.text import names_for_error, plural

EXIT_MISMATCH = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", help="the experiment's name, or its folder")
    formats = "; ".join(f"{name}: {one.meaning}" for name, one in FORMATS.items())
    add("--format", choices=tuple(FORMATS), default="atif", help=f"{formats} (default: %(default)s)")
    where = "the file, or the folder of files (default: in export/ in the run's folder)"
    add("-o", "--output", type=Path, metavar="PATH", help=where)
    check = (
        "write nothing; check a leaderboard file against itself, and against the run's logs if they are here"
    )
    add("--verify", type=Path, metavar="FILE", help=check)
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    logs_dir = Path(args.log_dir)
    run = resolve_run(args.run, logs_dir) if args.run else None
    if args.verify:
        return _verify(args.verify, logs_dir, run)
    if run is None:
        raise UserError(f"which run? in {logs_dir} there are: {names_for_error(run_names(logs_dir))}")
    target = args.output or default_target(run, args.format)
    done = export_run(run, args.format, target)
    for line in done.left_out:
        print_note(f"left out: {line}")
    # Half of a run is not to be taken for the whole.
    if states := Counter(pair.state for pair in run.pairs if not pair.verdicts):
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        print_note(f"{states.total()} of {plural(len(run.pairs), 'pair')} without a verdict ({counts})")
    pairs = plural(len(run.pairs) - len(done.left_out), "pair")
    if FORMATS[args.format].content:
        print_line(f"wrote {pairs} to {done.files[0]}")
    else:
        print_line(f"wrote {plural(len(done.files), 'file')} of {pairs} to {target}")
    return 0


def _verify(path: Path, logs_dir: Path, run: Run | None) -> int:
    found = verify_submission(path, logs_dir, run)
    for line in found.mismatches:
        print_line(line)
    if found.mismatches:
        count = plural(len(found.mismatches), "mismatch", "mismatches")
        print_note(f"cooperbench: {path} does not hold: {count}")
        return EXIT_MISMATCH
    if found.run is None:
        print_line(f"{path} holds in itself; its logs are not in {logs_dir}, nothing else was checked")
    else:
        print_line(f"{path} holds: {plural(found.pairs, 'pair')}, all as in {found.run.root}")
    return 0
