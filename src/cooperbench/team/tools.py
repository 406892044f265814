"""The tools of a team, as functions: commands in sandboxes and MCP servers call the same ones.

Parameters, choices and help come from the signatures and docstrings. An MCP server takes the functions as they are
(`finished` gives their response); for a command, what has a default is an option (`-n`, `--note`). Command lines are
parsed here, so that one small script in sandboxes does for all tools.
"""

from __future__ import annotations

import argparse
import inspect
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args, get_origin, get_type_hints

from cooperbench.team.requests import DEFAULT_WAIT_SECONDS
from cooperbench.team.sandbox_rpc import Response
from cooperbench.team.task_list import State  # noqa: TC001  # get_type_hints needs it
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cooperbench.team.requests import Requests
    from cooperbench.team.task_list import TaskList

Answer: TypeAlias = Response | Future[Response]
"""A future where somebody else has to do something first."""
Tools: TypeAlias = "dict[str, Callable[..., Answer]]"
_MOST_SAID = 500


def finished(answer: Answer) -> Response:
    return answer.result() if isinstance(answer, Future) else answer


def tools_of(agent_id: str, tasks: TaskList | None, requests: Requests | None) -> Tools:
    """Those that an agent has, by the names of the commands; a part that is off has none."""
    return (_task_tools(agent_id, tasks) if tasks else {}) | (
        _request_tools(agent_id, requests) if requests else {}
    )


def _task_tools(agent_id: str, tasks: TaskList) -> Tools:
    def create(title: str, assign: str = "") -> Answer:
        """Put a task on the shared list, for an agent or (without --assign) for whoever claims it."""
        return tasks.create(agent_id, title, assign)

    def claim(task_id: int) -> Answer:
        """Take a task. Exit code 2: somebody else has it."""
        return tasks.claim(agent_id, task_id)

    def update(task_id: int, state: State, note: str = "") -> Answer:
        """Say how a task stands; `open` gives it back."""
        return tasks.update(agent_id, task_id, state, note)

    def listing(mine: bool = False, open: bool = False) -> Answer:  # noqa: A002  # as the option is called
        """Show the shared tasks: all, only yours, or only those that are not done."""
        return tasks.listing(agent_id, mine=mine, unfinished=open)

    return {
        "coop-task-create": create,
        "coop-task-claim": claim,
        "coop-task-update": update,
        "coop-task-list": listing,
    }


def _request_tools(agent_id: str, requests: Requests) -> Tools:
    def ask(agent: str, kind: str, body: str, wait: float = DEFAULT_WAIT_SECONDS) -> Answer:
        """Ask a colleague (kind: one word, e.g. review) and wait, in seconds. Exit code 3: no answer in time."""
        return requests.ask(agent_id, agent, kind, body, wait)

    def respond(request_id: int, body: str) -> Answer:
        """Answer a request."""
        return requests.respond(agent_id, request_id, body)

    def pending() -> Answer:
        """Show what you are asked, and what became of your own requests."""
        return requests.pending(agent_id)

    return {"coop-request": ask, "coop-respond": respond, "coop-pending": pending}


class _BadArguments(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _BadArguments(message)


def run_command(name: str, function: Callable[..., Answer], words: Sequence[str]) -> Answer:
    """A tool with the words of a command line."""
    parser = _Parser(prog=name, description=function.__doc__, add_help=False, allow_abbrev=False)
    kinds, parameters = get_type_hints(function), inspect.signature(function).parameters.values()
    places = [one.name for one in parameters if one.default is inspect.Parameter.empty]
    for one in parameters:
        kind, settings = kinds[one.name], dict[str, Any]()
        if kind is bool:
            settings = {"action": "store_true"}
        elif get_origin(kind) is Literal:
            settings = {"choices": get_args(kind)}
        else:
            settings = {"type": kind}
            if one.name == places[-1] and kind is str:
                settings |= {"nargs": "+"}  # a text need not be quoted
        if one.name in places:
            parser.add_argument(one.name, **settings)
        else:
            parser.add_argument(f"-{one.name[0]}", f"--{one.name}", default=one.default, **settings)
    if words[:1] in (["-h"], ["--help"]):
        return Response(0, parser.format_help())
    try:
        values = vars(parser.parse_args(words))
    except _BadArguments as error:
        return Response(2, f"{printable(str(error))[:_MOST_SAID]}\n{parser.format_usage()}")
    texts = {key: " ".join(value) for key, value in values.items() if isinstance(value, list)}
    return function(**values | texts)
