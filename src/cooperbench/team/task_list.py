"""The task list that the agents of a team share: who does what, and every change to it.

Plain Python: the commands in sandboxes and the MCP tools both call it (team/tools). A claim has one winner, since all
changes are made under one lock in the harness. What an agent that has ended did not finish may be claimed by others.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.storage import utc_now
from cooperbench.team.sandbox_rpc import Response
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

OPEN, IN_PROGRESS, BLOCKED, DONE = STATES = ("open", "in_progress", "blocked", "done")
LONGEST_TITLE = 1_000
"""Characters of a title, and of a note."""
MOST_CHANGES = 20_000
"""Of one agent: it is told so, instead of filling disks and contexts."""
MOST_LISTED = 100
_SHOWN_TITLE = 200
_WORD = re.compile(r"[\w./-]+")


@dataclass
class Task:
    id: int
    title: str
    created_by: str
    created_at: str
    owner: str | None = None
    state: str = OPEN
    note: str = ""

    def line(self) -> str:
        """For people and models: one line, whatever the title is."""
        note = f" — {shown(self.note)}" if self.note else ""
        return f"#{self.id} [{self.state}] {self.owner or 'nobody'}: {shown(self.title)}{note}"


def shown(text: str) -> str:
    """A text of an agent in a line for others: short, without line breaks and control characters."""
    return printable(text if len(text) <= _SHOWN_TITLE else text[: _SHOWN_TITLE - 1] + "…")


class TaskList:
    """All methods may be called from several threads."""

    def __init__(
        self,
        agent_ids: Sequence[str],
        step_of: Callable[[str], int],
        announce: Callable[[str, str, str], None],
    ) -> None:
        self.agent_ids = tuple(agent_ids)
        self._step_of = step_of
        self._announce = announce
        """Called with who changed something, what (a later change of it replaces this one), and a line about it."""
        self._tasks: list[Task] = []
        self._log: list[dict[str, Any]] = []
        self._changes: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._started = time.monotonic()
        self._first_claim: float | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Agents begin: times are counted from here."""
        self._started = time.monotonic()

    def create(self, agent_id: str, title: str, assign: str | None = None) -> Response:
        if not title.strip():
            return Response(2, "the title is empty")
        if assign is not None and assign not in self.agent_ids:
            return Response(2, f"no agent {printable(assign)[:50]!r}; there is: {', '.join(self.agent_ids)}")
        with self._lock:
            if refused := self._refused(agent_id, title):
                return refused
            task = Task(len(self._tasks) + 1, title, agent_id, utc_now(), assign)
            self._tasks.append(task)
            self._changed(agent_id, task, "create")
        return Response(0, f"{task.line()}\n")

    def claim(self, agent_id: str, task_id: int) -> Response:
        return self.update(agent_id, task_id, IN_PROGRESS, change="claim")

    def update(
        self, agent_id: str, task_id: int, state: str, note: str | None = None, change: str = "update"
    ) -> Response:
        """By its owner or by who created it; what nobody has becomes the agent's own, unless it is opened again."""
        with self._lock:
            if refused := self._refused(agent_id, note or ""):
                return refused
            if not 1 <= task_id <= len(self._tasks):
                return Response(2, f"there is no task {task_id}")
            task = self._tasks[task_id - 1]
            claims = change == "claim"
            free = task.owner in (None, agent_id) or (task.owner in self._ended and task.state != DONE)
            if not free and (claims or task.created_by != agent_id):
                if claims:
                    self._record(agent_id, task, "claim_lost")
                return Response(2, f"task {task_id} belongs to {task.owner}")
            if claims and task.state == DONE:
                return Response(2, f"task {task_id} is done")
            owner = None if state == OPEN else agent_id if free else task.owner
            if owner == agent_id and (claims or owner != task.owner):
                change = "claim" if state == IN_PROGRESS else change
                self._first_claim = self._first_claim or time.monotonic()
            task.owner, task.state = owner, state
            task.note = task.note if note is None else note
            self._changed(agent_id, task, change)
        return Response(0, f"{task.line()}\n")

    def listing(self, agent_id: str, *, mine: bool = False, unfinished: bool = False) -> Response:
        """Those that are not done first, and never more than a context can take."""
        with self._lock:
            chosen = [
                task
                for task in self._tasks
                if (not mine or task.owner == agent_id) and not (unfinished and task.state == DONE)
            ]
            chosen.sort(key=lambda task: (task.state == DONE, task.id))
            lines = [task.line() for task in chosen[:MOST_LISTED]]
        if len(chosen) > MOST_LISTED:
            lines.append(f"… and {plural(len(chosen) - MOST_LISTED, 'more task')}")
        return Response(0, "".join(f"{line}\n" for line in lines) or "No tasks.\n")

    def end(self, agent_id: str) -> None:
        """An agent is done: the others hear what it leaves unfinished."""
        with self._lock:
            if agent_id in self._ended:
                return
            self._ended.add(agent_id)
            left = [task.id for task in self._tasks if task.owner == agent_id and task.state != DONE]
        if left:
            numbers = ", ".join(f"#{number}" for number in left[:20]) + (" …" if len(left) > 20 else "")
            text = f"{agent_id} has ended with unfinished tasks, which others can claim now: {numbers}"
            self._announce(agent_id, f"ended {agent_id}", text)

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
            per_change = Counter((entry["change"], entry["agent"]) for entry in self._log)
            first = None if self._first_claim is None else round(self._first_claim - self._started, 3)
            return {
                "tasks_total": len(self._tasks),
                "tasks_done": sum(task.state == DONE for task in self._tasks),
                "unowned_at_end": sum(task.owner is None for task in self._tasks),
                "time_to_first_claim_seconds": first,
                "claims_per_agent": {one: per_change["claim", one] for one in self.agent_ids},
                "updates_per_agent": {one: per_change["update", one] for one in self.agent_ids},
                "claims_lost": sum(per_change["claim_lost", one] for one in self.agent_ids),
                "changes_to_files_of_others_tasks": self._foreign_changes(files_changed),
            }

    def _foreign_changes(self, files_changed: Mapping[str, Sequence[str]]) -> int:
        """Files that an agent changed though only tasks of others name them (by path, or by the end of it)."""
        owners: dict[str, set[str]] = {}
        for task in self._tasks:
            for word in set(_WORD.findall(f"{task.title} {task.note}")) if task.owner else ():
                owners.setdefault(word.strip("./"), set()).add(str(task.owner))
        found = 0
        for agent_id, paths in files_changed.items():
            for path in paths:
                parts = path.split("/")
                names = {"/".join(parts[place:]) for place in range(len(parts))}
                named_by = set().union(*(owners.get(name, ()) for name in names))
                found += bool(named_by) and agent_id not in named_by
        return found

    def _refused(self, agent_id: str, text: str) -> Response | None:
        if len(text) > LONGEST_TITLE:
            return Response(2, f"the text is too long: at most {LONGEST_TITLE} characters")
        if self._changes[agent_id] >= MOST_CHANGES:
            return Response(2, f"you have changed the task list enough: at most {MOST_CHANGES} times")
        return None

    def _changed(self, agent_id: str, task: Task, change: str) -> None:
        self._record(agent_id, task, change)
        words = {"create": "created", "claim": "claimed"}.get(change, "updated")
        self._announce(agent_id, f"task {task.id}", f"{agent_id} {words} {task.line()}")

    def _record(self, agent_id: str, task: Task, change: str) -> None:
        self._changes[agent_id] += 1
        entry = {"time": utc_now(), "agent": agent_id, "step": self._step_of(agent_id), "change": change}
        now = {
            name: value for name, value in asdict(task).items() if name in ("title", "owner", "state", "note")
        }
        self._log.append(entry | {"task": task.id} | now)
