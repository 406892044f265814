"""Contributions and overwrites of agents that share one tree."""

from __future__ import annotations

from cooperbench.records.workspace import FileChange, WorkspaceChange, WorkspaceRecord
from cooperbench.report.workspace import find_overwrites


def change(agents: str, *paths: str, status: str = "M") -> WorkspaceChange:
    files = [FileChange(path=path, status=status, added=1, removed=0) for path in paths]
    names = [f"agent{number}" for number in agents]
    steps = dict.fromkeys(names, 1)
    return WorkspaceChange(time="2026-01-01T00:00:00Z", agents=names, steps=steps, files=files)


def overwrites(*changes: WorkspaceChange) -> list[str]:
    record = WorkspaceRecord(
        changes=list(changes),
        snapshots=len(changes),
        failed_snapshots=0,
        snapshot_seconds=0.0,
        problem=None,
        ended_during=None,
    )
    return [overwrite.text for overwrite in find_overwrites(record)]


def test_only_certain_overwrites_count() -> None:
    assert overwrites(
        change("1", "a", "b"),
        change("1", "a"),  # its own
        change("12", "b"),  # perhaps its own
        change("2", "a"),
        change("3", "b", status="D"),
        change("1", "a", "c"),
    ) == [
        "agent2 changed a after agent1",
        "agent3 deleted b after agent1 or agent2",
        "agent1 changed a after agent2",
    ]


def test_processes_in_the_background_overwrite_nothing() -> None:
    assert overwrites(change("1", "a"), change("", "a"), change("1", "a")) == []
    assert overwrites(change("1", "a"), change("", "a"), change("2", "a")) == [
        "agent2 changed a after agent1"
    ]
