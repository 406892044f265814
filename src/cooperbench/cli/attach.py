"""`cooperbench attach`: follow a run in the background; and `--detach`, which starts one there."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_logs_argument, print_line
from cooperbench.cli.status import existing
from cooperbench.errors import UserError
from cooperbench.storage import read_json

if TYPE_CHECKING:
    import argparse

    from cooperbench.storage import ExperimentPaths

_POLL_SECONDS = 0.2
_LAST_SECONDS = 1.0


def detach(paths: ExperimentPaths, words: list[str]) -> int:
    """Start the same command in the background; 0 when it has begun, its exit code where it ended before."""
    if holder := paths.holder():
        raise UserError(f"experiment {paths.run_name!r} is in use by {holder}; wait for it or end it")
    paths.root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cooperbench", *(word for word in words if word != "--detach")]
    with paths.driver_log.open("w+") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        while paths.holder() != f"process {process.pid}":
            if process.poll() is not None:
                log.seek(0)
                sys.stderr.write(log.read())
                return process.returncode
            time.sleep(_POLL_SECONDS)
    name = paths.run_name
    print_line(
        f"{name} goes on in the background: process {process.pid}; `kill {process.pid}` ends it like Ctrl-C"
    )
    print_line(f"see it with `cooperbench status {name}`, follow it with `cooperbench attach {name}`")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the experiment's name")
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    """Show what it has printed and prints, until it ends. Ctrl-C leaves it at work."""
    paths = existing(args)
    if not paths.driver_log.exists():
        raise UserError(f"{args.name} was not started with --detach; see `cooperbench status {args.name}`")
    with paths.driver_log.open(encoding="utf-8", errors="replace") as log:
        quiet_since = time.monotonic()
        try:
            # Its last lines come after it has let go of the experiment.
            while paths.holder() or time.monotonic() < quiet_since + _LAST_SECONDS:
                if text := log.read():
                    quiet_since = time.monotonic()
                    sys.stdout.write(text)
                    sys.stdout.flush()
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            print_line(f"{args.name} goes on: {paths.holder()}")
            return 0
    return 1 if (read_json(paths.summary) or {}).get("errors") else 0
