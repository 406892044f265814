"""A patch as places in the base: which lines it changes, and where in the patch file that stands.

Built on `cooperbench.diff`, which decides what belongs to which file. A change is a run of removed and added lines
without context; its place is the range of base lines that it replaces (empty for an insertion).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.diff import PatchError, parse_diff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.diff import FilePatch

_HUNK = re.compile(r"@@ -(\d{1,10})(?:,(\d{1,10}))? \+\d{1,10}(?:,\d{1,10})? @@ ?(.*)")


@dataclass(frozen=True)
class HunkLine:
    """One line of a hunk."""

    kind: str
    """` `, `-` or `+`."""
    text: str
    patch_line: int
    """Its place in the patch file, from 1."""


@dataclass(frozen=True)
class Hunk:
    heading: str
    """What git found above the hunk: a function or class, as a rule."""
    old_start: int
    """The base line of its first line, from 1; for a hunk without base lines the one after which it goes."""
    old_count: int
    patch_line: int
    lines: tuple[HunkLine, ...]


@dataclass(frozen=True)
class Change:
    """Removed and added lines that stand together."""

    old_start: int
    """First base line that is replaced; for an insertion the one that it goes in front of."""
    old_end: int
    """The base line after the last one that is replaced."""
    removed: tuple[str, ...]
    added: tuple[str, ...]
    patch_line: int
    """Where it begins in the patch file, from 1."""


@dataclass(frozen=True)
class ChangedFile:
    path: str
    """After the change; before it where the file is deleted."""
    old_path: str | None
    is_new: bool
    is_binary: bool
    patch_line: int
    """Where its section begins in the patch file, from 1."""
    hunks: tuple[Hunk, ...]
    changes: tuple[Change, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for path in (self.path, self.old_path) if path is not None))

    @property
    def changed_lines(self) -> int:
        return sum(len(change.removed) + len(change.added) for change in self.changes)


@dataclass(frozen=True)
class Work:
    """What one agent handed in."""

    agent_id: str
    files: tuple[ChangedFile, ...]
    usable: bool
    """False: there is no patch, or it is no diff. Nothing can be said about it then."""

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(path for file in self.files for path in file.paths)


def read_work(agent_id: str, patch: bytes | None) -> Work:
    """Take an agent's patch apart; one that cannot be read is marked, not an error."""
    if patch is None:
        return Work(agent_id, (), usable=False)
    try:
        diff = parse_diff(patch)
    except PatchError:
        return Work(agent_id, (), usable=False)
    files = []
    line = 1 + diff.preamble.count(b"\n")
    for section in diff.files:
        # A header alone changes nothing.
        if section.data.count(b"\n") > 1:
            files.append(_changed_file(section, line))
        line += section.data.count(b"\n") + section.trailer.count(b"\n")
    return Work(agent_id, tuple(files), usable=True)


def _changed_file(section: FilePatch, patch_line: int) -> ChangedFile:
    path = section.new_path if section.new_path is not None else section.old_path
    assert path is not None, "a section names a path"
    hunks = tuple(_hunks(section.data.decode("utf-8", "surrogateescape"), patch_line))
    changes = tuple(change for hunk in hunks for change in changes_of(hunk))
    is_new = section.old_path is None
    return ChangedFile(path, section.old_path, is_new, section.is_binary, patch_line, hunks, changes)


def _hunks(text: str, first_line: int) -> Iterator[Hunk]:
    """Of one file's section, whose hunks `parse_diff` has counted: a body line never begins with `@@`."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    heads = [(at, head) for at, line in enumerate(lines) if (head := _HUNK.match(line))]
    ends = [at for at, _ in heads[1:]] + [len(lines)]
    for (at, head), end in zip(heads, ends, strict=True):
        body = tuple(
            HunkLine(
                line[:1] if line[:1] in ("-", "+") else " ", line[1:].removesuffix("\r"), first_line + number
            )
            for number, line in enumerate(lines[at + 1 : end], at + 1)
            if not line.startswith("\\")
        )
        old_count = 1 if head[2] is None else int(head[2])
        yield Hunk(head[3].strip(), int(head[1]), old_count, first_line + at, body)


def changes_of(hunk: Hunk) -> Iterator[Change]:
    """The changes of a hunk, each with its place in the base."""
    base_line = hunk.old_start + (hunk.old_count == 0)
    removed: list[str] = []
    added: list[str] = []
    began = 0
    start = base_line
    for line in hunk.lines:
        if line.kind == " ":
            if began:
                yield Change(start, base_line, tuple(removed), tuple(added), began)
            removed, added, began = [], [], 0
            base_line += 1
            continue
        if not began:
            began, start = line.patch_line, base_line
        if line.kind == "-":
            removed.append(line.text)
            base_line += 1
        else:
            added.append(line.text)
    if began:
        yield Change(start, base_line, tuple(removed), tuple(added), began)
