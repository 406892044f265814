"""`cooperbench doctor`: what is installed, reachable and configured, and the command that mends what is not."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_dataset_argument
from cooperbench.doctor import LOCAL_BACKEND, Asked, Status, examine_all
from cooperbench.text import printable

if TYPE_CHECKING:
    import argparse

_SIGNS = {Status.OK: "✓", Status.MISSING: "-", Status.BROKEN: "✗"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset_argument(parser)
    parser.add_argument("--redis", metavar="URL", help="a Redis to try (default: that of `run`)")
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object on stdout")


def execute(args: argparse.Namespace) -> int:
    findings = []
    for finding in examine_all(Asked(args.dataset_dir, args.redis)):
        findings.append(finding)
        if not args.json:
            mend = f" → {finding.mend}" if finding.mend else ""
            line = (
                f"{_SIGNS[finding.status]} {finding.status.value:<7} {finding.name}: {finding.detail}{mend}"
            )
            sys.stdout.write(printable(line) + "\n")
            sys.stdout.flush()
    if args.json:
        content = {"findings": [{**asdict(finding), "status": finding.status.value} for finding in findings]}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    works = any(finding.name == LOCAL_BACKEND and finding.status is Status.OK for finding in findings)
    return 0 if works else 1
