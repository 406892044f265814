"""How much patches change, and how much a feature should."""

from __future__ import annotations

from typing import NamedTuple

from cooperbench.diff import parse_diff
from cooperbench.text import plural

MAX_LINES = 600
"""Changed lines of a golden patch that an agent can be expected to write."""
MAX_FILES = 20
MAX_TEST_LINES = 2000


class PatchSize(NamedTuple):
    """Numbers of changed files and of added and removed lines."""

    files: int
    lines: int


def patch_size(patch: bytes) -> PatchSize:
    """Return how much a patch changes.

    Raises:
        ValueError: It is not a diff.
    """
    files = parse_diff(patch)
    lines = 0
    for file in files:
        lines += sum(len(change.lines) for change in file.changes)
    return PatchSize(len(files), lines)


def golden_size_problem(size: PatchSize) -> str:
    """Return why a golden patch is too large for a task; empty if it is not."""
    if size.files > MAX_FILES:
        return f"it changes {plural(size.files, 'file')}, more than {MAX_FILES}"
    if size.lines > MAX_LINES:
        return f"it changes {plural(size.lines, 'line')}, more than {MAX_LINES}"
    return ""


def tests_size_problem(size: PatchSize) -> str:
    """Return why a patch of tests is too large for a task; empty if it is not."""
    if size.lines > MAX_TEST_LINES:
        return f"it changes {plural(size.lines, 'line')} of tests, more than {MAX_TEST_LINES}"
    return ""
