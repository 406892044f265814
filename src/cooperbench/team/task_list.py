"""The task list that the agents of a team share: who does what, and every change to it.

A claim has one winner, since all changes are made under one lock in the harness. What an agent that has ended did not
finish may be claimed by others.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cooperbench.storage import utc_now
from cooperbench.team.sandbox_rpc import Response
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

State: TypeAlias = Literal["open", "in_progress", "blocked", "done"]
LONGEST_TEXT = 1_000
"""Characters of a title, and of a note."""
MOST_CHANGES = 20_000
"""Of one agent: it is told so, instead of filling disks and contexts."""
MOST_LISTED = 100
_WORD = re.compile(r"[\w./-]+")


@dataclass
class Task:
    id: int
    title: str
    created_by: str
    owner: str | None
    state: State = "open"
    note: str = ""

    def line(self) -> str:
        """For people and models: one line, whatever the title is."""
        note = f" — {shown(self.note)}" if self.note else ""
        return f"#{self.id} [{self.state}] {self.owner or 'nobody'}: {shown(self.title)}{note}"


def shown(text: str) -> str:
    """A text of an agent in a line for others: short, without line breaks and control characters."""
    return printable(text if len(text) <= 200 else text[:199] + "…")


class TaskList:
    """All methods may be called from several threads."""

    def __init__(
        self,
        agent_ids: Sequence[str],
        step_of: Callable[[str], int],
        announce: Callable[[str, str, str], None],
    ) -> None:
        """`announce(agent, subject, line)` tells all others what an agent has changed."""
        self._agent_ids = tuple(agent_ids)
        self._step_of = step_of
        self._announce = announce
        self._tasks: list[Task] = []
        self._log: list[dict[str, Any]] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        self.started = time.monotonic()
        """When the agents began."""
        self._first_claim: float | None = None

    def create(self, agent_id: str, title: str, assign: str = "") -> Response:
        if not title.strip():
            return Response(2, "the title is empty")
        if assign not in ("", *self._agent_ids):
            return Response(2, f"no agent {printable(assign[:50])!r}; there is: {', '.join(self._agent_ids)}")
        with self._lock:
            if problem := self._problem(agent_id, title):
                return problem
            self._tasks.append(Task(len(self._tasks) + 1, title, agent_id, assign or None))
            return self._changed(agent_id, self._tasks[-1], "create")

    def claim(self, agent_id: str, task_id: int) -> Response:
        return self._update(agent_id, task_id, "in_progress", "", "claim")

    def update(self, agent_id: str, task_id: int, state: State, note: str = "") -> Response:
        """By its owner or by who created it; a task that nobody has becomes the agent's own, unless it is opened."""
        return self._update(agent_id, task_id, state, note, "update")

    def _update(self, agent_id: str, task_id: int, state: State, note: str, change: str) -> Response:
        with self._lock:
            if not 1 <= task_id <= len(self._tasks):
                return Response(2, f"there is no task {task_id}")
            if problem := self._problem(agent_id, note):
                return problem
            task = self._tasks[task_id - 1]
            free = task.owner in (None, agent_id) or (task.owner in self._ended and task.state != "done")
            if not free and (change == "claim" or task.created_by != agent_id):
                if change == "claim":
                    self._record(agent_id, task, "claim_lost")
                return Response(2, f"task {task_id} belongs to {task.owner}")
            if change == "claim" and task.state == "done":
                return Response(2, f"task {task_id} is done")
            if state == "in_progress" and free and task.owner != agent_id:
                change = "claim"
            if change == "claim":
                self._first_claim = self._first_claim or time.monotonic()
            task.owner = None if state == "open" else agent_id if free else task.owner
            task.state, task.note = state, note or task.note
            return self._changed(agent_id, task, change)

    def listing(self, agent_id: str, *, mine: bool = False, unfinished: bool = False) -> Response:
        """Those that are not done first, and never more than a context can take."""
        with self._lock:
            chosen = [one for one in self._tasks if not mine or one.owner == agent_id]
            chosen = [one for one in chosen if not unfinished or one.state != "done"]
            chosen.sort(key=lambda task: task.state == "done")
            lines = [task.line() for task in chosen[:MOST_LISTED]]
        if len(chosen) > MOST_LISTED:
            lines.append(f"… and {plural(len(chosen) - MOST_LISTED, 'more task')}")
        return Response(0, "\n".join(lines or ["No tasks."]) + "\n")

    def end(self, agent_id: str) -> None:
        """An agent is done: the others hear what it leaves unfinished."""
        with self._lock:
            self._ended.add(agent_id)
            left = [f"#{one.id}" for one in self._tasks if one.owner == agent_id and one.state != "done"]
        if left:
            numbers = ", ".join(left[:20]) + (" …" if len(left) > 20 else "")
            text = f"{agent_id} has ended with unfinished tasks, which others can claim now: {numbers}"
            self._announce(agent_id, f"end of {agent_id}", text)

    def tasks(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(task) for task in self._tasks]

    def log(self) -> list[dict[str, Any]]:
        """Every change: who, when, at which step."""
        with self._lock:
            return list(self._log)

    def metrics(self, files_changed: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Over the whole attempt; `files_changed` by agent."""
        with self._lock:
            first = self._first_claim
            return {
                "tasks_total": len(self._tasks),
                "tasks_done": sum(task.state == "done" for task in self._tasks),
                "unowned_at_end": sum(task.owner is None for task in self._tasks),
                "time_to_first_claim_seconds": None if first is None else round(first - self.started, 3),
                "claims_per_agent": {one: self._counts[one, "claim"] for one in self._agent_ids},
                "updates_per_agent": {one: self._counts[one, "update"] for one in self._agent_ids},
                "claims_lost": sum(self._counts[one, "claim_lost"] for one in self._agent_ids),
                "changes_to_files_of_others_tasks": self._foreign_changes(files_changed),
            }

    def _foreign_changes(self, files_changed: Mapping[str, Sequence[str]]) -> int:
        """Files that an agent changed though only tasks of others name them (by path, or by the end of it)."""
        owners: dict[str, set[str]] = {}
        for task in self._tasks:
            for word in _WORD.findall(task.title) if task.owner else ():
                owners.setdefault(word.strip("./"), set()).add(str(task.owner))
        found = 0
        for agent_id, paths in files_changed.items():
            for parts in (path.split("/") for path in paths):
                ends = ("/".join(parts[place:]) for place in range(len(parts)))
                named_by = {owner for end in ends for owner in owners.get(end, ())}
                found += bool(named_by) and agent_id not in named_by
        return found

    def _problem(self, agent_id: str, text: str) -> Response | None:
        if len(text) > LONGEST_TEXT:
            return Response(2, f"the text is too long: at most {LONGEST_TEXT} characters")
        if (
            sum(self._counts[agent_id, one] for one in ("create", "claim", "update", "claim_lost"))
            >= MOST_CHANGES
        ):
            return Response(2, f"you have changed the task list enough: at most {MOST_CHANGES} times")
        return None

    def _changed(self, agent_id: str, task: Task, change: str) -> Response:
        self._record(agent_id, task, change)
        did = {"create": "created", "claim": "claimed", "update": "updated"}[change]
        self._announce(agent_id, f"task {task.id}", f"{agent_id} {did} {task.line()}")
        return Response(0, f"{task.line()}\n")

    def _record(self, agent_id: str, task: Task, change: str) -> None:
        self._counts[agent_id, change] += 1
        stamp = {"time": utc_now(), "agent": agent_id, "step": self._step_of(agent_id), "change": change}
        self._log.append(
            stamp | {"task": task.id, "owner": task.owner, "state": task.state, "note": task.note}
        )
