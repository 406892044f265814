"""The patches of a pair side by side, file by file, as the page shows them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from cooperbench.diff import Change, ChangedFile
from cooperbench.patch_symbols import meeting_changes
from cooperbench.report.patches import AgentPatch

MAX_LINES_PER_FILE = 2_000
Mark = Literal["", "overlap", "conflict"]


@dataclass(frozen=True)
class ShownHunk:
    """A hunk of one patch."""

    start: int
    """First base line."""
    heading: str
    mark: Mark
    """Whether it changes the same or neighboring base lines as another patch."""
    lines: tuple[str, ...]
    cut: int
    """Number of lines that are left out."""


@dataclass(frozen=True)
class FileSide:
    """The changes of one patch to a file."""

    new: bool
    binary: bool
    lines: int
    """Number of added and removed lines."""
    hunks: tuple[ShownHunk, ...]


@dataclass(frozen=True)
class FileChanges:
    """A file that at least one patch changes."""

    path: str
    shared: bool
    """Whether several patches change it."""
    conflict: bool
    """Whether git cannot merge it."""
    overlap: bool
    """Whether a hunk is marked."""
    sides: tuple[FileSide | None, ...]
    """One for each patch; None if it does not change the file."""


def side_by_side(
    patches: Sequence[AgentPatch], conflicting_files: Collection[str]
) -> list[FileChanges]:
    """Return every changed file, those with conflicts and overlaps first.

    Hunks are marked if their changes meet in the base. In a file that git cannot merge they are
    marked as conflicting: git computes conflicts on the whole file, the mark shows where to look.
    """
    paths: dict[str, None] = {}
    for patch in patches:
        paths.update(dict.fromkeys(file.path for file in patch.files))
    files = [_file_changes(path, patches, path in conflicting_files) for path in paths]
    return sorted(files, key=lambda file: (not file.conflict, not file.overlap, not file.shared))


def _file_changes(path: str, patches: Sequence[AgentPatch], is_conflicting: bool) -> FileChanges:
    versions = [_find_file(patch, path) for patch in patches]
    present = [version for version in versions if version is not None]
    sides: list[FileSide | None] = []
    for version in versions:
        if version is None:
            sides.append(None)
            continue
        others = [other for other in present if other is not version]
        sides.append(_file_side(version, others, "conflict" if is_conflicting else "overlap"))
    return FileChanges(
        path=path,
        shared=len(present) > 1,
        conflict=is_conflicting,
        overlap=any(_has_marks(side) for side in sides),
        sides=tuple(sides),
    )


def _find_file(patch: AgentPatch, path: str) -> ChangedFile | None:
    for file in patch.files:
        if file.path == path:
            return file
    return None


def _has_marks(side: FileSide | None) -> bool:
    return side is not None and any(hunk.mark for hunk in side.hunks)


def _file_side(file: ChangedFile, others: Sequence[ChangedFile], mark: Mark) -> FileSide:
    meeting: set[Change] = set()
    for other in others:
        meeting.update(meeting_changes(file, other))
    lines_left = MAX_LINES_PER_FILE
    hunks = []
    for hunk in file.hunks:
        lines = hunk.lines[: max(0, lines_left)]
        lines_left -= len(hunk.lines)
        hunks.append(
            ShownHunk(
                start=hunk.old_start,
                heading=hunk.heading,
                mark=mark if meeting.intersection(hunk.changes) else "",
                lines=lines,
                cut=len(hunk.lines) - len(lines),
            )
        )
    return FileSide(
        new=file.old_path is None,
        binary=file.is_binary,
        lines=sum(len(change.lines) for change in file.changes),
        hunks=tuple(hunks),
    )
