"""The patches of agents: which symbols they change, and where two patches meet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cooperbench.diff import ChangedFile, parse_diff
from cooperbench.patch_symbols import (
    ChangedLine,
    changed_lines,
    changed_symbols,
    meeting_changes,
)


@dataclass(frozen=True)
class AgentPatch:
    """The patch of one agent."""

    agent_id: str
    files: tuple[ChangedFile, ...] = ()
    is_readable: bool = False
    """False if there is no patch, or if it is not a diff. Nothing is known about it then."""

    @cached_property
    def by_path(self) -> dict[str, ChangedFile]:
        """The files by path; renamed files under both of their paths."""
        files = {}
        for file in self.files:
            for path in file.paths:
                files[path] = file
        return files

    @cached_property
    def lines(self) -> tuple[ChangedLine, ...]:
        """All changed lines, in the order of the patch."""
        return changed_lines(self.files)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that it changes, with their files: `src/money.py: Money.add`."""
        return changed_symbols(self.lines)


@dataclass(frozen=True)
class Overlap:
    """Files and symbols that two agents both change."""

    first: str
    second: str
    files: dict[str, int]
    """Number of changes of the first agent that meet one of the second, by path."""
    symbols: tuple[str, ...]


def read_agent_patch(agent_id: str, patch: bytes | None) -> AgentPatch:
    """Parse the patch of an agent. A patch that cannot be read is marked as such."""
    if patch is None:
        return AgentPatch(agent_id)
    try:
        return AgentPatch(agent_id, parse_diff(patch), is_readable=True)
    except ValueError:
        return AgentPatch(agent_id)


def find_overlap(first: AgentPatch, second: AgentPatch) -> Overlap:
    """Return what two patches both change."""
    files = {}
    for file in first.files:
        other = _same_file(file, second)
        if other is None:
            continue
        overlapping = len(set(meeting_changes(file, other)))
        if file.is_binary or other.is_binary:
            overlapping += 1
        files[file.path] = overlapping
    other_symbols = set(second.symbols)
    shared_symbols = tuple(symbol for symbol in first.symbols if symbol in other_symbols)
    return Overlap(first.agent_id, second.agent_id, files, shared_symbols)


def _same_file(file: ChangedFile, patch: AgentPatch) -> ChangedFile | None:
    for path in file.paths:
        if path in patch.by_path:
            return patch.by_path[path]
    return None
