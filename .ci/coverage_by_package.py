#!/usr/bin/env python3
"""Print the coverage of each package of cooperbench as a table.

    coverage_by_package.py COVERAGE_JSON

The argument is a file that `coverage json` wrote.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def package_of(path: str) -> str:
    """Return the package of a source file, or "(top level)" for modules beside the packages."""
    inner = path.partition("cooperbench/")[2]
    package, slash, _ = inner.partition("/")
    return package if slash else "(top level)"


def main(report: str) -> None:
    """Print one line per package, and the total."""
    covered: Counter[str] = Counter()
    statements: Counter[str] = Counter()
    for path, entry in json.loads(Path(report).read_text())["files"].items():
        for package in (package_of(path), "total"):
            covered[package] += entry["summary"]["covered_lines"]
            statements[package] += entry["summary"]["num_statements"]
    for package in sorted(statements, key=lambda name: (name == "total", name)):
        share = covered[package] / max(statements[package], 1)
        print(
            f"{package:<12} {covered[package]:>6} of {statements[package]:>6} lines  {share:>6.1%}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
