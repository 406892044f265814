"""The tools of a team, in one table: as commands in sandboxes, and as MCP tools for agents that want them.

`AgentTools` are those of one agent. An MCP server offers them in a loop:

    for tool in session.tools:
        add(tool.mcp_name, tool.help, tool.json_schema(), lambda arguments: tool.call(arguments).text)

`call` blocks until there is a response; its code is 0 where it was done. A command gives its arguments as text, in a
request of the sandbox's RPC; they are parsed here, so that the scripts in sandboxes stay small.
"""

from __future__ import annotations

import argparse
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from cooperbench.team.requests import DEFAULT_WAIT_SECONDS, LONGEST_WAIT_SECONDS
from cooperbench.team.sandbox_rpc import Response
from cooperbench.team.task_list import STATES
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cooperbench.team.requests import Requests
    from cooperbench.team.task_list import TaskList

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_MOST_SAID = 500


class Parameter(NamedTuple):
    name: str
    help: str
    kind: type = str
    flags: tuple[str, ...] = ()
    """On the command line; without, it is required, and stands in its place."""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    """One tool of one agent."""

    name: str
    """Of the command."""
    part: str
    """Of setting team."""
    help: str
    parameters: tuple[Parameter, ...]
    handler: Callable[..., Response | Future[Response]]
    """Takes the parameters by name."""

    @property
    def mcp_name(self) -> str:
        return self.name.replace("-", "_")

    def json_schema(self) -> dict[str, Any]:
        properties = {
            one.name: {"type": _JSON_TYPES[one.kind], "description": one.help}
            | ({"enum": list(one.choices)} if one.choices else {})
            for one in self.parameters
        }
        required = [one.name for one in self.parameters if not one.flags]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def call(self, arguments: Mapping[str, Any]) -> Response:
        """For MCP: arguments as JSON has them; waits for a response that takes its time."""
        known = {one.name: one for one in self.parameters}
        missing = [name for name, one in known.items() if not one.flags and name not in arguments]
        wrong = [
            name for name, value in arguments.items() if name not in known or not _fits(known[name], value)
        ]
        if missing or wrong:
            return Response(2, f"missing or wrong: {printable(', '.join([*missing, *wrong]))[:_MOST_SAID]}")
        answer = self.handler(**arguments)
        return answer.result() if isinstance(answer, Future) else answer

    def run(self, words: Sequence[str]) -> Response | Future[Response]:
        """For the command, with the words of its command line."""
        parser = _Parser(prog=self.name, description=self.help, add_help=False, allow_abbrev=False)
        for place, one in enumerate(self.parameters):
            rest = one.kind is str and place == len(self.parameters) - 1 and not one.flags
            settings: dict[str, Any] = {"help": one.help}
            if one.kind is bool:
                settings |= {"action": "store_true", "default": False}
            else:
                settings |= {"type": one.kind, "choices": one.choices or None}
            if one.flags:
                settings |= {"dest": one.name}
            else:
                settings |= {"nargs": "+"} if rest else {}
                settings |= {"metavar": None if one.choices else one.name.upper()}
            parser.add_argument(*(one.flags or (one.name,)), **settings)
        if words and words[0] in ("-h", "--help"):
            return Response(0, parser.format_help())
        try:
            values = vars(parser.parse_args(list(words)))
        except _BadArguments as error:
            return Response(2, f"{printable(str(error))[:_MOST_SAID]}\n{parser.format_usage()}")
        return self.handler(
            **{name: " ".join(value) if isinstance(value, list) else value for name, value in values.items()}
        )


class _BadArguments(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _BadArguments(message)


def _fits(parameter: Parameter, value: object) -> bool:
    kinds = (int, float) if parameter.kind is float else (parameter.kind,)
    right_kind = isinstance(value, kinds) and isinstance(value, bool) == (parameter.kind is bool)
    return right_kind and (not parameter.choices or value in parameter.choices)


_ID = Parameter("task_id", "the task's number", int)


def tools_of(agent_id: str, tasks: TaskList | None, requests: Requests | None) -> tuple[Tool, ...]:
    """Those that an agent has; a part that is off has none."""
    found: list[Tool] = []
    if tasks is not None:
        found += _task_tools(agent_id, tasks)
    if requests is not None:
        found += _request_tools(agent_id, requests)
    return tuple(found)


def _task_tools(agent_id: str, tasks: TaskList) -> list[Tool]:
    def create(title: str, assign: str | None = None) -> Response:
        return tasks.create(agent_id, title, assign)

    def claim(task_id: int) -> Response:
        return tasks.claim(agent_id, task_id)

    def update(task_id: int, state: str, note: str | None = None) -> Response:
        return tasks.update(agent_id, task_id, state, note)

    def listing(mine: bool = False, open: bool = False) -> Response:  # noqa: A002  # as the flag is called
        return tasks.listing(agent_id, mine=mine, unfinished=open)

    part = "task_list"
    assign = Parameter("assign", "the agent who is to do it", flags=("--assign",), choices=tasks.agent_ids)
    return [
        Tool("coop-task-create", part, "Put a task on the shared list.", (
            assign, Parameter("title", "what is to be done, in one line")), create),
        Tool("coop-task-claim", part, "Take a task. Exit code 2: somebody else has it.", (_ID,), claim),
        Tool("coop-task-update", part, "Say how a task stands; open gives it back.", (
            _ID, Parameter("state", "how it stands", choices=STATES),
            Parameter("note", "a line about it", flags=("-n", "--note"))), update),
        Tool("coop-task-list", part, "The shared tasks: number, state, who has it, title.", (
            Parameter("mine", "only yours", bool, ("--mine",)),
            Parameter("open", "only those that are not done", bool, ("--open",))), listing),
    ]  # fmt: skip


def _request_tools(agent_id: str, requests: Requests) -> list[Tool]:
    def ask(agent: str, kind: str, body: str, wait: float | None = None) -> Response | Future[Response]:
        return requests.ask(agent_id, agent, kind, body, wait)

    def respond(request_id: int, body: str) -> Response:
        return requests.respond(agent_id, request_id, body)

    part = "protocol"
    body = Parameter("body", "the text; - for what is on stdin")
    seconds = f"seconds, at most {LONGEST_WAIT_SECONDS:g} ({DEFAULT_WAIT_SECONDS:g} unless told)"
    wait = Parameter("wait", f"how long to wait: {seconds}", float, ("--wait",))
    return [
        Tool("coop-request", part, "Ask a colleague and wait for the answer. Exit code 3: none came in time.", (
            wait, Parameter("agent", "whom"), Parameter("kind", "one word, e.g. review or question"), body), ask),
        Tool("coop-respond", part, "Answer a request.", (
            Parameter("request_id", "the request's number", int), body), respond),
        Tool("coop-pending", part, "What you are asked, and what became of your requests.", (),
             lambda: requests.pending(agent_id)),
    ]  # fmt: skip
