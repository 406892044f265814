"""The lines of a git diff, as far as verdicts need them; `report/patches` takes a whole one apart for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

HUNK = re.compile(rb"@@ -(\d{1,10})(?:,(\d{1,10}))? \+(\d{1,10})(?:,(\d{1,10}))? @@ ?(.*)")


class NewLine(NamedTuple):
    """A line of what a patch makes of a file, as far as the patch shows it."""

    path: str
    number: int
    offset: int
    """Of its content in the patch."""
    added: bool
    content: bytes


def new_lines(patch: bytes) -> Iterator[NewLine]:
    """Inside a hunk no line is a header."""
    path, number, old_left, new_left, offset = "", 0, 0, 0, 0
    for line in patch.split(b"\n"):
        kind = line[:1]
        if old_left <= 0 and new_left <= 0:
            if line.startswith(b"+++ "):
                path = line[4:].partition(b"\t")[0].decode("utf-8", "replace").removeprefix("b/")
            elif hunk := HUNK.match(line):
                counts = (1 if count is None else int(count) for count in hunk.groups()[1:4])
                old_left, number, new_left = counts
        elif kind != b"\\":
            if kind != b"-":
                yield NewLine(path, number, offset + 1, kind == b"+", line[1:])
            old_left -= kind != b"+"
            new_left -= kind != b"-"
            number += kind != b"-"
        offset += len(line) + 1
