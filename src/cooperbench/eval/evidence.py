"""Added lines that reach for the test process: listed as evidence for people, and deciding nothing by themselves."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_LINES = 50
_LONGEST_LINE = 200
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
# They take time linear in a line, which can have megabytes.
_SUSPICIOUS: dict[str, str] = {
    r"\.py$": (
        r"\bos\s*\.\s*(?:_exit|abort|kill|exec[lv]\w*)\b|\bsys\s*\.\s*(?:exit|settrace|setprofile|modules|meta_path)\b"
        r"|\batexit\b|\bSkipTest\b|\b(?:pytest|_pytest|unittest|conftest|pluggy)\b|\bgc\s*\.\s*get_objects\b"
        r"|\bsys\._getframe\b|\binspect\.(?:stack|currentframe)\b|__builtins__|\bbuiltins\b|\bctypes\b|/proc/"
        r"|\bdef __eq__\([^)]{0,99}\)[^:]{0,99}:\s*return True"
    ),
    r"\.[cm]?[jt]sx?$": (
        r"\bprocess\s*\.\s*(?:exit|reallyExit|abort|kill|exitCode)\b|\bprocess\.on\b|\bglobalThis\.(?:it|test|expect|describe)\b"
        r"|[\"'](?:node:test|vitest|jest|@jest/\w+|mocha|node:child_process|child_process)[\"']|/proc/"
    ),
    r"\.go$": r'\bos\.Exit\b|\bsyscall\.(?:Exit|Kill)\b|\bruntime\.Goexit\b|"testing"|\bflag\.Set\(|/proc/',
    r"\.rs$": r"\bprocess::(?:exit|abort)\b|\bpanic::(?:set_hook|catch_unwind)\b|\blibc::_?exit\b|/proc/",
}
_PATTERNS = {re.compile(ending): re.compile(pattern) for ending, pattern in _SUSPICIOUS.items()}


class SuspiciousLine(NamedTuple):
    path: str
    line: int
    text: str


def suspicious_lines(patch: bytes) -> list[SuspiciousLine]:
    """At most 50 of them."""
    return list(islice(_found_in(patch), _MOST_LINES))


def _found_in(patch: bytes) -> Iterator[SuspiciousLine]:
    for line in new_lines(patch):
        pattern = next((one for ending, one in _PATTERNS.items() if ending.search(line.path)), None)
        text = line.content.decode("utf-8", "replace") if line.added and pattern else ""
        if pattern and pattern.search(text):
            yield SuspiciousLine(line.path, line.number, text.strip()[:_LONGEST_LINE])


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
            elif hunk := _HUNK.match(line):
                old_left, number, new_left = (1 if count is None else int(count) for count in hunk.groups())
        elif kind != b"\\":
            if kind != b"-":
                yield NewLine(path, number, offset + 1, kind == b"+", line[1:])
            old_left -= kind != b"+"
            new_left -= kind != b"-"
            number += kind != b"-"
        offset += len(line) + 1
