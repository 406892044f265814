"""`cooperbench view`: the page of runs in the browser, also while they go on."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path

from cooperbench.cli.arguments import add_logs_argument, number, print_line
from cooperbench.errors import UserError
from cooperbench.report.loading import run_folders, run_names
from cooperbench.report.page.live_server import ADDRESS, LiveServer

_NEWEST = 8
_port = number(int, "a port: 1 to 65535, or 0 for any", lambda value: 0 <= value <= 65_535)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = f"which runs (default: the {_NEWEST} newest, also those to come)"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=which)
    where = "where to listen on 127.0.0.1 (default: any that is free)"
    parser.add_argument("--port", type=_port, default=0, help=where)
    parser.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    logs_dir = Path(args.log_dir)
    chosen = run_folders(args.runs, logs_dir)

    def roots() -> list[Path]:
        return chosen or [logs_dir / name for name in reversed(run_names(logs_dir)[:_NEWEST])]

    if not roots():
        raise UserError(f"there is no run in {logs_dir}; start one with `cooperbench run`, or say --log-dir")
    try:
        server = LiveServer(roots, args.port)
    except OSError as error:
        raise UserError(
            f"cannot listen on {ADDRESS}:{args.port}: {error.strerror}; take another --port"
        ) from None
    with server:
        server.now()
        print_line(server.url)
        print_line("Ctrl-C ends it.")
        sys.stdout.flush()
        if not args.no_browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            print_line("")
    return 0
