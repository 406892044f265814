"""`cooperbench doctor`: what is installed, reachable and configured, and what to do about the rest."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_dataset_argument, add_json_argument, print_json, print_line
from cooperbench.doctor.checks import Status, examine_all

if TYPE_CHECKING:
    import argparse

_SIGNS = {Status.OK: "✓", Status.MISSING: "-", Status.BROKEN: "✗"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset_argument(parser)
    parser.add_argument("--redis", metavar="URL", help="a Redis to try (default: that of `run`)")
    add_json_argument(parser)


def execute(args: argparse.Namespace) -> int:
    """1 where something is missing that `cooperbench run` needs with the user's defaults."""
    findings = []
    for finding in examine_all(args.dataset_dir, args.redis):
        findings.append(finding)
        if not args.json:
            needed = "needed: " if finding.needed and finding.status is not Status.OK else ""
            fix = f" → {finding.fix}" if finding.fix else ""
            what = f"{finding.status:<7} {finding.name}: {needed}{finding.detail}{fix}"
            print_line(f"{_SIGNS[finding.status]} {what}")
            sys.stdout.flush()
    lacking = [finding.name for finding in findings if finding.needed and finding.status is not Status.OK]
    if args.json:
        print_json({"ok": not lacking, "findings": [asdict(finding) for finding in findings]})
    elif lacking:
        print_line(f"your defaults need: {', '.join(lacking)}")
    return 1 if lacking else 0
