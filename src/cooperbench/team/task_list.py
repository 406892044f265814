"""The shared task list of a team (`coop-task-create` and the like)."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from cooperbench.records.tasks import TaskChange
from cooperbench.storage import utc_now
from cooperbench.team.sandbox_rpc import Response
from cooperbench.team.teammates import Teammates, one_line
from cooperbench.text import plural, printable

TaskState: TypeAlias = Literal["open", "in_progress", "blocked", "done"]
Change: TypeAlias = Literal["create", "claim", "claim_lost", "update"]
MAX_TEXT_CHARACTERS = 1_000
"""Maximum length of a title, and of a note."""
MAX_CHANGES = 20_000
"""Maximum number of changes per agent, so that a loop cannot fill disks and contexts."""
MAX_LISTED = 100
"""Maximum number of tasks that one listing shows."""
_MAX_UNFINISHED_NAMED = 20
_WORD = re.compile(r"[\w./-]+")
_PAST_TENSE = {"create": "created", "claim": "claimed", "update": "updated"}


@dataclass
class Task:
    """One task on the list."""

    id: int
    title: str
    created_by: str
    owner: str | None
    state: TaskState = "open"
    note: str = ""

    def line(self) -> str:
        """Return the task as one line, for people and models."""
        line = f"#{self.id} [{self.state}] {self.owner or 'nobody'}: {one_line(self.title)}"
        if self.note:
            line += f" — {one_line(self.note)}"
        return line


@dataclass(frozen=True)
class TaskMetrics:
    """How a team used its task list, over one attempt at a pair."""

    tasks_total: int
    tasks_done: int
    unowned_at_end: int
    time_to_first_claim_seconds: float | None
    claims_per_agent: dict[str, int]
    updates_per_agent: dict[str, int]
    claims_lost: int
    changes_to_files_of_others_tasks: int


class TaskList:
    """The tasks of a team and who works on them. Safe to use from any thread.

    The public methods that take an agent id first and return a `Response` are tools of agents:
    their docstrings and parameters are shown to models (see `cooperbench.team.tools`).
    """

    def __init__(self, team: Teammates) -> None:
        self._team = team
        self._tasks: list[Task] = []
        self._log: list[TaskChange] = []
        self._changes: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        self.started = time.monotonic()
        """Monotonic time at which the agents began."""
        self._first_claim: float | None = None

    def create(self, agent_id: str, title: str, assign: str = "") -> Response:
        """Put a task on the shared list, for one agent or (without --assign) for any agent."""
        if not title.strip():
            return Response(2, "the title is empty")
        if assign and assign not in self._team.agent_ids:
            names = ", ".join(self._team.agent_ids)
            unknown = printable(assign[:50])
            return Response(2, f"no agent {unknown!r}; agents of the team: {names}")
        with self._lock:
            if refusal := self._check_limits(agent_id, title):
                return refusal
            task = Task(len(self._tasks) + 1, title, created_by=agent_id, owner=assign or None)
            self._tasks.append(task)
            return self._publish(agent_id, task, "create")

    def claim(self, agent_id: str, task_id: int) -> Response:
        """Take a task. Exit code 2: another agent has it."""
        with self._lock:
            task = self._find(task_id)
            if task is None:
                return Response(2, f"there is no task {task_id}")
            if refusal := self._check_limits(agent_id, text=""):
                return refusal
            if not self._is_free_for(agent_id, task):
                self._record(agent_id, task, "claim_lost")
                return Response(2, f"task {task_id} belongs to {task.owner}")
            if task.state == "done":
                return Response(2, f"task {task_id} is done")
            return self._claim(agent_id, task)

    def update(self, agent_id: str, task_id: int, state: TaskState, note: str = "") -> Response:
        """Set the state of a task; `open` gives it back."""
        with self._lock:
            task = self._find(task_id)
            if task is None:
                return Response(2, f"there is no task {task_id}")
            if refusal := self._check_limits(agent_id, note):
                return refusal
            is_free = self._is_free_for(agent_id, task)
            if not is_free and task.created_by != agent_id:
                return Response(2, f"task {task_id} belongs to {task.owner}")
            if note:
                task.note = note
            if state == "in_progress" and is_free and task.owner != agent_id:
                return self._claim(agent_id, task)
            task.state = state
            if state == "open":
                task.owner = None
            elif is_free:
                task.owner = agent_id
            return self._publish(agent_id, task, "update")

    def listing(
        self,
        agent_id: str,
        mine: bool = False,
        open: bool = False,  # noqa: A002  # the name of the option
    ) -> Response:
        """Show the shared tasks: all, only yours, or only those that are not done."""
        with self._lock:
            tasks = list(self._tasks)
            if mine:
                tasks = [task for task in tasks if task.owner == agent_id]
            if open:
                tasks = [task for task in tasks if task.state != "done"]
            tasks.sort(key=lambda task: task.state == "done")
            lines = [task.line() for task in tasks[:MAX_LISTED]]
        if len(tasks) > MAX_LISTED:
            lines.append(f"… and {plural(len(tasks) - MAX_LISTED, 'more task')}")
        return Response(0, "\n".join(lines or ["No tasks."]) + "\n")

    def end(self, agent_id: str) -> None:
        """Let others claim the unfinished tasks of an agent that has finished, and notify them."""
        with self._lock:
            self._ended.add(agent_id)
            unfinished = [
                f"#{task.id}"
                for task in self._tasks
                if task.owner == agent_id and task.state != "done"
            ]
        if not unfinished:
            return
        numbers = ", ".join(unfinished[:_MAX_UNFINISHED_NAMED])
        if len(unfinished) > _MAX_UNFINISHED_NAMED:
            numbers += " …"
        text = f"{agent_id} has ended with unfinished tasks, which others can claim now: {numbers}"
        self._team.notify_others(agent_id, f"end of {agent_id}", text)

    def tasks(self) -> list[Task]:
        """Return copies of all tasks, in order."""
        with self._lock:
            return [replace(task) for task in self._tasks]

    def log(self) -> list[TaskChange]:
        """Return every change so far, in order."""
        with self._lock:
            return list(self._log)

    def metrics(self, files_changed: Mapping[str, Sequence[str]]) -> TaskMetrics:
        """Return how the list was used; `files_changed` has the changed files of each agent."""
        with self._lock:
            delay = None
            if self._first_claim is not None:
                delay = round(self._first_claim - self.started, 3)
            return TaskMetrics(
                tasks_total=len(self._tasks),
                tasks_done=sum(task.state == "done" for task in self._tasks),
                unowned_at_end=sum(task.owner is None for task in self._tasks),
                time_to_first_claim_seconds=delay,
                claims_per_agent=self._count_per_agent("claim"),
                updates_per_agent=self._count_per_agent("update"),
                claims_lost=sum(self._count_per_agent("claim_lost").values()),
                changes_to_files_of_others_tasks=self._count_foreign_changes(files_changed),
            )

    def _count_per_agent(self, change: Change) -> dict[str, int]:
        counts = Counter(entry.agent for entry in self._log if entry.change == change)
        return {agent_id: counts[agent_id] for agent_id in self._team.agent_ids}

    def _count_foreign_changes(self, files_changed: Mapping[str, Sequence[str]]) -> int:
        """Count files that an agent changed although only tasks of other agents name them.

        A title names a file by its path or by the end of its path.
        """
        owners_by_name: dict[str, set[str]] = {}
        for task in self._tasks:
            if task.owner is None:
                continue
            for word in _WORD.findall(task.title):
                owners_by_name.setdefault(word.strip("./"), set()).add(task.owner)
        count = 0
        for agent_id, paths in files_changed.items():
            for path in paths:
                owners = _owners_of(path, owners_by_name)
                if owners and agent_id not in owners:
                    count += 1
        return count

    def _find(self, task_id: int) -> Task | None:
        if 1 <= task_id <= len(self._tasks):
            return self._tasks[task_id - 1]
        return None

    def _is_free_for(self, agent_id: str, task: Task) -> bool:
        """Tell whether an agent may take a task: unowned, its own, or left by an ended agent."""
        if task.owner is None or task.owner == agent_id:
            return True
        return task.owner in self._ended and task.state != "done"

    def _claim(self, agent_id: str, task: Task) -> Response:
        if self._first_claim is None:
            self._first_claim = time.monotonic()
        task.owner = agent_id
        task.state = "in_progress"
        return self._publish(agent_id, task, "claim")

    def _check_limits(self, agent_id: str, text: str) -> Response | None:
        """Return a refusal if the text is too long or the agent has made too many changes."""
        if len(text) > MAX_TEXT_CHARACTERS:
            return Response(2, f"the text is too long: at most {MAX_TEXT_CHARACTERS} characters")
        if self._changes[agent_id] >= MAX_CHANGES:
            return Response(2, f"Limit of changes to the task list reached ({MAX_CHANGES})")
        return None

    def _publish(self, agent_id: str, task: Task, change: Change) -> Response:
        """Record a change, notify the other agents, and return the response to the agent."""
        self._record(agent_id, task, change)
        text = f"{agent_id} {_PAST_TENSE[change]} {task.line()}"
        self._team.notify_others(agent_id, f"task {task.id}", text)
        return Response(0, f"{task.line()}\n")

    def _record(self, agent_id: str, task: Task, change: Change) -> None:
        self._changes[agent_id] += 1
        entry = TaskChange(
            time=utc_now(),
            agent=agent_id,
            step=self._team.step_of(agent_id),
            change=change,
            task=task.id,
            owner=task.owner,
            state=task.state,
            note=task.note,
        )
        self._log.append(entry)


def _owners_of(path: str, owners_by_name: Mapping[str, set[str]]) -> set[str]:
    """Return the owners of tasks whose title names a path, or the end of it."""
    parts = path.split("/")
    owners: set[str] = set()
    for start in range(len(parts)):
        owners |= owners_by_name.get("/".join(parts[start:]), set())
    return owners
