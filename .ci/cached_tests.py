#!/usr/bin/env python3
"""Print tests that pytest remembers of its last run, one per line.

    cached_tests.py CHECKOUT failed|skipped

Skipped tests are those that the machine lacked something for (tests/conftest.py).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

FILES = {"failed": "cache/lastfailed", "skipped": "cooperbench/skipped"}
_GROUP = re.compile(r"@[a-z_-]+$")
"""The group that pytest-xdist adds to the name of a test."""


def main(checkout: str, kind: str) -> None:
    """Print the names of the tests of one kind; none if pytest has not run."""
    path = Path(checkout) / ".pytest_cache" / "v" / FILES[kind]
    if path.exists():
        for name in json.loads(path.read_text()):
            print(_GROUP.sub("", name))


if __name__ == "__main__":
    main(*sys.argv[1:])
