"""`cooperbench view`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cooperbench.cli.arguments import add_logs_argument
from cooperbench.errors import UserError

_MOST_PORT = 65_535
_NEWEST = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help=f"which runs (default: the {_NEWEST} newest, also those to come)",
    )
    parser.add_argument(
        "--port", type=_port, default=0, help="where to listen on 127.0.0.1 (default: any that is free)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only say the address, open nothing")
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    from cooperbench.report.loading import run_names
    from cooperbench.report.page.live_server import ADDRESS, LiveRuns, LiveServer

    logs_dir = Path(args.log_dir)
    chosen = [Path(name) if "/" in name else logs_dir / name for name in args.runs]

    def roots() -> list[Path]:
        return chosen or [logs_dir / name for name in reversed(run_names(logs_dir)[:_NEWEST])]

    if not roots():
        raise UserError(f"there is no run in {logs_dir}; start one with `cooperbench run`, or say --log-dir")
    runs = LiveRuns(roots)
    runs.now()
    try:
        server = LiveServer(runs, args.port)
    except OSError as error:
        raise UserError(
            f"cannot listen on {ADDRESS}:{args.port}: {error.strerror}; take another --port"
        ) from None
    with server:
        sys.stdout.write(f"{server.url}\nCtrl-C ends it.\n")
        sys.stdout.flush()
        if not args.no_browser:
            _open(server.url)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            sys.stdout.write("\n")
    return 0


def _open(url: str) -> None:
    import webbrowser

    webbrowser.open(url)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 1 to {_MOST_PORT}, or 0 for any")
    return int(text)
