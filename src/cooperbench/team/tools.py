"""The tools of a team: a shared task list and requests, for commands in sandboxes and for MCP servers alike.

A tool is a method: the parameters after the calling agent, and the docstring, are those of the MCP tool and of the
command, for which what has a default is an option (`-n`, `--note`).
"""

from __future__ import annotations

import argparse
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial, wraps
from inspect import Parameter, signature
from typing import Any, Literal, NoReturn, TypeAlias, get_args, get_origin

from cooperbench.storage import utc_now
from cooperbench.team.sandbox_rpc import Response
from cooperbench.text import head_and_tail, plural, printable

Tools: TypeAlias = "dict[str, Callable[..., Response]]"
State: TypeAlias = Literal["open", "in_progress", "blocked", "done"]
MAX_TEXT_CHARACTERS = 1_000
"""Characters of a title, and of a note."""
MAX_CHANGES = 20_000
"""To the task list by one agent: it is told so, instead of filling disks and contexts."""
MAX_LISTED = 100
DEFAULT_WAIT_SECONDS = 60.0
MAX_WAIT_SECONDS = 3600.0
MAX_REQUESTS = 500
"""Requests of one agent."""
MAX_BODY_CHARACTERS = 20_000
"""Characters of a request, and of its answer."""
NO_ANSWER = 3
"""Exit code of a request that was not answered in time."""
_MAX_SHOWN = 20
_MAX_ERROR_CHARACTERS = 500
_WORD = re.compile(r"[\w./-]+")


def shown(text: str) -> str:
    """A text of an agent in a line for others: short, without line breaks and control characters."""
    return printable(text if len(text) <= 200 else text[:199] + "…")


@dataclass(frozen=True)
class Teammates:
    """The agents of a team, as its tools see them."""

    agent_ids: tuple[str, ...]
    step_of: Callable[[str], int]
    tell: Callable[[str, str, str], None]
    """Shows something to an agent before its next step: a subject and a text."""

    def announce(self, agent_id: str, subject: str, text: str) -> None:
        """Tell all others what an agent did."""
        for other in self.agent_ids:
            if other != agent_id:
                self.tell(other, subject, text)


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


class TaskList:
    """Who does what. What an agent that has ended did not finish may be claimed by others. Safe from any thread."""

    def __init__(self, team: Teammates) -> None:
        self._team = team
        self._tasks: list[Task] = []
        self._log: list[dict[str, Any]] = []
        self._changes: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        self.started = time.monotonic()
        """When the agents began."""
        self._first_claim: float | None = None

    def create(self, agent_id: str, title: str, assign: str = "") -> Response:
        """Put a task on the shared list, for an agent or (without --assign) for whoever claims it."""
        if not title.strip():
            return Response(2, "the title is empty")
        if assign not in ("", *self._team.agent_ids):
            return Response(
                2,
                f"no agent {printable(assign[:50])!r}; there is: {', '.join(self._team.agent_ids)}",
            )
        with self._lock:
            if problem := self._problem(agent_id, title):
                return problem
            self._tasks.append(Task(len(self._tasks) + 1, title, agent_id, assign or None))
            return self._changed(agent_id, self._tasks[-1], "create")

    def claim(self, agent_id: str, task_id: int) -> Response:
        """Take a task. Exit code 2: somebody else has it."""
        return self._update(agent_id, task_id, "in_progress", "", "claim")

    def update(self, agent_id: str, task_id: int, state: State, note: str = "") -> Response:
        """Say how a task stands; `open` gives it back."""
        return self._update(agent_id, task_id, state, note, "update")

    def _update(
        self, agent_id: str, task_id: int, state: State, note: str, change: str
    ) -> Response:
        """By its owner or by who created it; a task that nobody has becomes the agent's own, unless it is opened."""
        with self._lock:
            if not 1 <= task_id <= len(self._tasks):
                return Response(2, f"there is no task {task_id}")
            if problem := self._problem(agent_id, note):
                return problem
            task = self._tasks[task_id - 1]
            free = task.owner in (None, agent_id) or (
                task.owner in self._ended and task.state != "done"
            )
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

    def listing(self, agent_id: str, mine: bool = False, open: bool = False) -> Response:  # noqa: A002  # an option's name
        """Show the shared tasks: all, only yours, or only those that are not done."""
        with self._lock:
            chosen = [one for one in self._tasks if not mine or one.owner == agent_id]
            chosen = [one for one in chosen if not open or one.state != "done"]
            chosen.sort(key=lambda task: task.state == "done")
            lines = [task.line() for task in chosen[:MAX_LISTED]]
        if len(chosen) > MAX_LISTED:
            lines.append(f"… and {plural(len(chosen) - MAX_LISTED, 'more task')}")
        return Response(0, "\n".join(lines or ["No tasks."]) + "\n")

    def end(self, agent_id: str) -> None:
        """An agent is done: the others hear what it leaves unfinished."""
        with self._lock:
            self._ended.add(agent_id)
            left = [
                f"#{one.id}" for one in self._tasks if one.owner == agent_id and one.state != "done"
            ]
        if left:
            numbers = ", ".join(left[:20]) + (" …" if len(left) > 20 else "")
            text = (
                f"{agent_id} has ended with unfinished tasks, which others can claim now: {numbers}"
            )
            self._team.announce(agent_id, f"end of {agent_id}", text)

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
            counts = Counter((entry["agent"], entry["change"]) for entry in self._log)
            return {
                "tasks_total": len(self._tasks),
                "tasks_done": sum(task.state == "done" for task in self._tasks),
                "unowned_at_end": sum(task.owner is None for task in self._tasks),
                "time_to_first_claim_seconds": None
                if first is None
                else round(first - self.started, 3),
                "claims_per_agent": {one: counts[one, "claim"] for one in self._team.agent_ids},
                "updates_per_agent": {one: counts[one, "update"] for one in self._team.agent_ids},
                "claims_lost": sum(counts[one, "claim_lost"] for one in self._team.agent_ids),
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
        if len(text) > MAX_TEXT_CHARACTERS:
            return Response(2, f"the text is too long: at most {MAX_TEXT_CHARACTERS} characters")
        if self._changes[agent_id] >= MAX_CHANGES:
            return Response(
                2, f"you have changed the task list enough: at most {MAX_CHANGES} times"
            )
        return None

    def _changed(self, agent_id: str, task: Task, change: str) -> Response:
        self._record(agent_id, task, change)
        did = {"create": "created", "claim": "claimed", "update": "updated"}[change]
        self._team.announce(agent_id, f"task {task.id}", f"{agent_id} {did} {task.line()}")
        return Response(0, f"{task.line()}\n")

    def _record(self, agent_id: str, task: Task, change: str) -> None:
        self._changes[agent_id] += 1
        stamp = {
            "time": utc_now(),
            "agent": agent_id,
            "step": self._team.step_of(agent_id),
            "change": change,
        }
        now = {"task": task.id, "owner": task.owner, "state": task.state, "note": task.note}
        self._log.append(stamp | now)


@dataclass(eq=False)
class Request:
    id: int
    sender: str
    recipient: str
    kind: str
    body: str
    asked_at: str
    sender_step: int
    answer: str | None = None
    answered_at: str | None = None
    waited_seconds: float | None = None
    """How long the sender waited; None while it still does."""
    asked: float = field(default_factory=time.monotonic)
    response: Response | None = None
    """What the sender was told in the end."""

    def text(self) -> str:
        how = f'answer it with coop-respond {self.id} "…"'
        body = head_and_tail(self.body, 4_000)
        return f"Request {self.id} from {self.sender} ({self.kind}); {how}:\n{body}"

    def outcome(self) -> str:
        name = f"your request {self.id} ({self.kind})"
        if self.answer is None:
            return f"No answer yet to {name}."
        return f"{self.recipient} answered {name}:\n{self.answer}"


class Requests:
    """One agent asks and waits, another answers. Safe from any thread.

    Waiting also ends when the one who waits is asked something: two who ask each other would wait for nothing. A later
    answer is shown to the one who asked before its next step.
    """

    def __init__(self, team: Teammates) -> None:
        self._team = team
        self._all: list[Request] = []
        self._ended: set[str] = set()
        self._changed = threading.Condition()

    def ask(
        self, agent_id: str, agent: str, kind: str, body: str, wait: float = DEFAULT_WAIT_SECONDS
    ) -> Response:
        """Ask a teammate (kind: one word, e.g. review) and wait, in seconds. Exit code 3: no answer in time."""
        others = [one for one in self._team.agent_ids if one != agent_id]
        if agent not in others:
            return Response(
                2, f"no teammate {printable(agent[:50])!r}; there is: {', '.join(others)}"
            )
        if not body.strip() or len(body) > MAX_BODY_CHARACTERS:
            return Response(2, f"a request has 1 to {MAX_BODY_CHARACTERS} characters")
        if not 0 <= wait <= MAX_WAIT_SECONDS:
            return Response(2, f"a request waits 0 to {MAX_WAIT_SECONDS:g} seconds")
        with self._changed:
            if agent in self._ended:
                return Response(NO_ANSWER, f"{agent} has finished and cannot answer")
            if sum(one.sender == agent_id for one in self._all) >= MAX_REQUESTS:
                return Response(2, f"you have asked enough: at most {MAX_REQUESTS} requests")
            step, kind = self._team.step_of(agent_id), printable(kind[:40])
            request = Request(len(self._all) + 1, agent_id, agent, kind, body, utc_now(), step)
            text = f"no answer yet: {agent_id} asks you.\n{request.text()}"
            self._end_waiting(lambda one: one.sender == agent, Response(NO_ANSWER, text))
            self._all.append(request)
            self._team.tell(agent, f"request {request.id}", request.text())
            self._changed.wait_for(lambda: request.response, wait)
            late = Response(NO_ANSWER, f"no answer within {wait:g} seconds")
            self._end_waiting(lambda one: one is request, late)
            return request.response or late

    def respond(self, agent_id: str, request_id: int, body: str) -> Response:
        """Answer a request."""
        if not body.strip() or len(body) > MAX_BODY_CHARACTERS:
            return Response(2, f"an answer has 1 to {MAX_BODY_CHARACTERS} characters")
        with self._changed:
            request = self._all[request_id - 1] if 1 <= request_id <= len(self._all) else None
            if request is None or request.recipient != agent_id:
                return Response(2, f"there is no request {request_id} to you")
            if request.answer is not None:
                return Response(2, f"request {request_id} is answered already")
            request.answer, request.answered_at = body, utc_now()
            if request.response is not None:
                self._team.tell(request.sender, f"answer {request.id}", request.outcome())
            self._end_waiting(lambda one: one is request, Response(0, f"{request.outcome()}\n"))
        return Response(0, f"{request.sender} has your answer.\n")

    def pending(self, agent_id: str) -> Response:
        """Show what you are asked, and what became of your own requests."""
        with self._changed:
            asked = [
                one.text() for one in self._all if one.recipient == agent_id and one.answer is None
            ]
            own = [one.outcome() for one in self._all if one.sender == agent_id]
        texts = [*asked[:_MAX_SHOWN], *own[-_MAX_SHOWN:]] or ["No requests."]
        return Response(0, "\n\n".join(texts) + "\n")

    def end(self, agent_id: str) -> None:
        """An agent is done: nobody waits for its answers any more."""
        with self._changed:
            self._ended.add(agent_id)
            response = Response(NO_ANSWER, f"{agent_id} has finished and cannot answer")
            self._end_waiting(lambda one: agent_id in (one.sender, one.recipient), response)

    def log(self) -> list[dict[str, Any]]:
        with self._changed:
            records = [asdict(one) for one in self._all]
        return [
            {key: one[key] for key in one if key not in ("asked", "response")} for one in records
        ]

    def metrics(self) -> dict[str, Any]:
        with self._changed:
            return {
                "requests_total": len(self._all),
                "requests_answered": sum(one.answer is not None for one in self._all),
                "request_waiting_seconds": round(
                    sum(one.waited_seconds or 0.0 for one in self._all), 3
                ),
            }

    def _end_waiting(self, which: Callable[[Request], bool], response: Response) -> None:
        for request in self._all:
            if request.response is None and which(request):
                request.response = response
                request.waited_seconds = round(time.monotonic() - request.asked, 3)
        self._changed.notify_all()


def tools_of(
    agent_id: str,
    tasks: TaskList | None,
    requests: Requests | None,
    before: Callable[[], None] = lambda: None,
) -> Tools:
    """Those that an agent has, by the names of the commands; a part that is off has none. `before` is called first."""
    methods: Tools = {}
    if tasks is not None:
        methods["coop-task-create"] = tasks.create
        methods["coop-task-claim"] = tasks.claim
        methods["coop-task-update"] = tasks.update
        methods["coop-task-list"] = tasks.listing
    if requests is not None:
        methods["coop-request"] = requests.ask
        methods["coop-respond"] = requests.respond
        methods["coop-pending"] = requests.pending
    return {name: _called_by(agent_id, method, before) for name, method in methods.items()}


def _called_by(
    agent_id: str, method: Callable[..., Response], before: Callable[[], None]
) -> Callable[..., Response]:
    own = partial(method, agent_id)

    @wraps(method)
    def tool(**arguments: Any) -> Response:
        before()
        return own(**arguments)

    vars(tool)["__signature__"] = signature(own, eval_str=True)
    return tool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def run_command(name: str, tool: Callable[..., Response], words: Sequence[str]) -> Response:
    """A tool with the words of a command line."""
    parser = _Parser(prog=name, description=tool.__doc__, add_help=False, allow_abbrev=False)
    parameters = signature(tool).parameters.values()
    places = [one.name for one in parameters if one.default is Parameter.empty]
    for one in parameters:
        settings: dict[str, Any] = {"type": one.annotation}
        if one.annotation is bool:
            settings = {"action": "store_true"}
        elif get_origin(one.annotation) is Literal:
            settings = {"choices": get_args(one.annotation)}
        elif one.annotation is str and one.name == places[-1]:
            settings["nargs"] = "+"  # a text need not be quoted
        if one.name in places:
            parser.add_argument(one.name, **settings)
        else:
            parser.add_argument(f"-{one.name[0]}", f"--{one.name}", default=one.default, **settings)
    if words[:1] in (["-h"], ["--help"]):
        return Response(0, parser.format_help())
    try:
        values = vars(parser.parse_args(words))
    except ValueError as error:
        return Response(
            2, f"{printable(str(error))[:_MAX_ERROR_CHARACTERS]}\n{parser.format_usage()}"
        )
    texts = {key: " ".join(value) for key, value in values.items() if isinstance(value, list)}
    return tool(**values | texts)
