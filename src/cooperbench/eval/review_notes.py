"""Lines of a patch that reach for the test process, which a person may want to read.

Honest code has such lines too: a command-line program calls `sys.exit`. So they are notes for a
review. Whether tests decided a verdict is what confirmations are for.
"""

from __future__ import annotations

import re

from cooperbench.bounded import UnreadableInput, call_bounded
from cooperbench.diff import new_lines
from cooperbench.records.evaluation import ReviewNote

_MAX_NOTES = 50
_MAX_LINE_LENGTH = 200
# Each pattern takes time linear in the length of a line, which can have megabytes.
_PATTERNS = {
    re.compile(r"\.py$"): re.compile(
        r"""
        \b os \s*\.\s* (?: _exit | abort | kill | exec[lv]\w* ) \b
        | \b sys \s*\.\s* (?: exit | settrace | setprofile | modules | meta_path ) \b
        | \b atexit \b | \b SkipTest \b
        | \b (?: pytest | _pytest | unittest | conftest | pluggy ) \b
        | \b gc \s*\.\s* get_objects \b
        | \b sys\._getframe \b | \b inspect\. (?: stack | currentframe ) \b
        | __builtins__ | \b builtins \b | \b ctypes \b
        | /proc/
        | \b def[ ]__eq__\( [^)]{0,99} \) [^:]{0,99} : \s* return[ ]True
        """,
        re.VERBOSE,
    ),
    re.compile(r"\.[cm]?[jt]sx?$"): re.compile(
        r"""
        \b process \s*\.\s* (?: exit | reallyExit | abort | kill | exitCode ) \b
        | \b process\.on \b
        | \b globalThis\. (?: it | test | expect | describe ) \b
        | ["'] (?: node:test | vitest | jest | @jest/\w+ | mocha
                 | node:child_process | child_process ) ["']
        | /proc/
        """,
        re.VERBOSE,
    ),
    re.compile(r"\.go$"): re.compile(
        r"""
        \b os\.Exit \b | \b syscall\. (?: Exit | Kill ) \b | \b runtime\.Goexit \b
        | "testing" | \b flag\.Set\(
        | /proc/
        """,
        re.VERBOSE,
    ),
    re.compile(r"\.rs$"): re.compile(
        r"""
        \b process:: (?: exit | abort ) \b
        | \b panic:: (?: set_hook | catch_unwind ) \b
        | \b libc::_?exit \b
        | /proc/
        """,
        re.VERBOSE,
    ),
}
"""By the ending of a file: code that reaches for the test process."""


def read_review_notes(patch: bytes, agent_id: str) -> list[ReviewNote]:
    """Return the notes about a patch, which a worker process looks for."""
    try:
        return call_bounded(find_review_notes, patch, agent_id)
    except UnreadableInput as problem:
        text = f"lines that reach for the test process cannot be looked for: {problem}"
        return [ReviewNote(agent=agent_id, path="(patch)", line=0, text=text)]


def find_review_notes(patch: bytes, agent_id: str) -> list[ReviewNote]:
    """Return a note for each line of that kind that a patch adds, at most 50."""
    notes: list[ReviewNote] = []
    for line in new_lines(patch):
        pattern = _pattern_for(line.path)
        if not line.added or pattern is None:
            continue
        text = line.content.decode("utf-8", "replace")
        if pattern.search(text):
            notes.append(
                ReviewNote(
                    agent=agent_id,
                    path=line.path,
                    line=line.number,
                    text=text.strip()[:_MAX_LINE_LENGTH],
                )
            )
        if len(notes) == _MAX_NOTES:
            break
    return notes


def _pattern_for(path: str) -> re.Pattern[str] | None:
    for ending, pattern in _PATTERNS.items():
        if ending.search(path):
            return pattern
    return None
