"""workspace.json: which agent's commands changed which files of a shared workspace."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from cooperbench.records.files import Record


class FileChange(msgspec.Struct, kw_only=True, frozen=True):
    """A file that differs between two snapshots of the work tree."""

    path: str
    status: str
    """As git has it: `A` added, `M` modified, `D` deleted, `T` of another type."""
    added: int | None
    """Number of added lines; None for a binary file, as is the next field."""
    removed: int | None


class WorkspaceChange(msgspec.Struct, kw_only=True, frozen=True):
    """The difference between one snapshot and the one before it."""

    time: str
    agents: list[str]
    """Agents whose commands ran between the two snapshots. One of them changed the files, or a
    process that a command had left in the background. Empty if no command ran."""
    steps: dict[str, int]
    """The step of each of these agents."""
    files: list[FileChange]
    is_complete: bool = True
    """False if more files have changed than are listed."""


class WorkspaceRecord(Record, kw_only=True, frozen=True):
    """The changes of a shared workspace, in order. Files that git ignores are left out."""

    SCHEMA: ClassVar[str] = "cooperbench.workspace/1"

    changes: list[WorkspaceChange]
    snapshots: int
    """Number of snapshots: one after each command, or one for commands that end together."""
    failed_snapshots: int
    """Number of snapshots that failed. The next one has the changes of all agents since."""
    snapshot_seconds: float
    """Time that all snapshots took."""
    problem: str | None
    """Why the last failed snapshot failed, on one line."""
    ended_during: list[str] | None
    """Agents whose commands ran when the sandbox ended from inside, or since the last snapshot
    before; None if it did not end."""
