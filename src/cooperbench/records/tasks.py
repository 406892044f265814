"""tasks.json and task_log.json: the shared task list of a pair in setting team."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from cooperbench.records.files import Record


class TaskRecord(msgspec.Struct, kw_only=True, frozen=True):
    """One task on the list."""

    id: int
    title: str
    created_by: str
    owner: str | None
    """Agent that has claimed it or was assigned to it."""
    state: str
    """`open`, `in_progress`, `blocked` or `done`."""
    note: str


class TaskListRecord(Record, kw_only=True, frozen=True):
    """The task list as it was at the end."""

    SCHEMA: ClassVar[str] = "cooperbench.tasks/1"

    tasks: list[TaskRecord]


class TaskChange(msgspec.Struct, kw_only=True, frozen=True):
    """One change to the task list, with the task as it was afterwards."""

    time: str
    agent: str
    step: int
    """Number of steps that the agent had taken."""
    change: str
    """`create`, `claim`, `claim_lost` or `update`."""
    task: int
    owner: str | None
    state: str
    note: str


class RequestRecord(msgspec.Struct, kw_only=True, frozen=True):
    """One request from an agent to another, and its answer."""

    id: int
    sender: str
    recipient: str
    kind: str
    body: str
    asked_at: str
    sender_step: int
    answer: str | None
    answered_at: str | None
    waited_seconds: float | None
    """How long the sender waited; None if it was still waiting at the end."""


class TaskLog(Record, kw_only=True, frozen=True):
    """Every change to the task list, and every request. A tool that was off has no list."""

    SCHEMA: ClassVar[str] = "cooperbench.task_log/1"
    OMITTED_IF_NONE: ClassVar[frozenset[str]] = frozenset(("changes", "requests"))

    changes: list[TaskChange] | None = None
    requests: list[RequestRecord] | None = None
