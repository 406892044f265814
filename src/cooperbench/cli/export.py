"""`cooperbench export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_logs_argument
from cooperbench.export import FORMATS, export_run
from cooperbench.report.loading import resolve_run
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the experiment's name, or its folder")
    formats = "; ".join(f"{name}: {text}" for name, (_, text) in FORMATS.items())
    parser.add_argument(
        "--format", choices=tuple(FORMATS), default="atif", help=f"{formats} (default: %(default)s)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="where files go (default: export/FORMAT in the run's folder)",
    )
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    run = resolve_run(args.run, Path(args.log_dir))
    target = args.output or run.root / "export" / args.format
    done = export_run(run, args.format, target)
    for line in done.left_out:
        sys.stderr.write(printable(f"left out: {line}") + "\n")
    pairs = len(run.pairs) - len(done.left_out)
    sys.stdout.write(f"wrote {plural(len(done.files), 'file')} of {plural(pairs, 'pair')} to {target}\n")
    return 0
