"""`cooperbench doctor`: what is installed, reachable and configured, and what to do about the rest."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_dataset_argument
from cooperbench.doctor.checks import Asked, Status, examine_all
from cooperbench.text import printable

if TYPE_CHECKING:
    import argparse

_SIGNS = {Status.OK: "✓", Status.MISSING: "-", Status.BROKEN: "✗"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset_argument(parser)
    parser.add_argument("--redis", metavar="URL", help="a Redis to try (default: that of `run`)")
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object on stdout")


def execute(args: argparse.Namespace) -> int:
    """1 where something is missing that `cooperbench run` needs with the user's defaults."""
    findings = []
    for finding in examine_all(Asked(args.dataset_dir, args.redis)):
        findings.append(finding)
        if not args.json:
            needed = "needed: " if finding.needed and finding.status is not Status.OK else ""
            mend = f" → {finding.mend}" if finding.mend else ""
            line = (
                f"{_SIGNS[finding.status]} {finding.status:<7} {finding.name}: {needed}{finding.detail}{mend}"
            )
            sys.stdout.write(printable(line) + "\n")
            sys.stdout.flush()
    lacking = [finding.name for finding in findings if finding.needed and finding.status is not Status.OK]
    if args.json:
        content = {"ok": not lacking, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    elif lacking:
        sys.stdout.write(f"your defaults need: {', '.join(lacking)}\n")
    return 1 if lacking else 0
