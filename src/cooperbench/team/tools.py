"""The tools of a team, as commands in sandboxes and as MCP tools.

A tool is a method of `TaskList` or `Requests`. Its docstring, and its parameters after the calling
agent, describe the MCP tool and the command alike. In the command, parameters with a default are
options (`-n`, `--note`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial, wraps
from inspect import Parameter, signature
from typing import Any, Literal, NoReturn, TypeAlias, get_args, get_origin

from cooperbench.team.requests import Requests
from cooperbench.team.sandbox_rpc import Response
from cooperbench.team.task_list import TaskList
from cooperbench.text import printable

Tool: TypeAlias = "Callable[..., Response]"
Tools: TypeAlias = "dict[str, Tool]"
_MAX_ERROR_CHARACTERS = 500


def make_tools(
    agent_id: str,
    tasks: TaskList | None,
    requests: Requests | None,
    before_call: Callable[[], None] = lambda: None,
) -> Tools:
    """Return an agent's tools by command name; a part that is switched off (None) has none."""
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
    return {name: _bind_to_agent(agent_id, method, before_call) for name, method in methods.items()}


def _bind_to_agent(agent_id: str, method: Tool, before_call: Callable[[], None]) -> Tool:
    """Return a tool without its first parameter, the calling agent."""
    bound = partial(method, agent_id)

    @wraps(method)
    def _tool(**arguments: object) -> Response:
        before_call()
        return bound(**arguments)

    # MCP servers and `run_command` read the parameters from here.
    vars(_tool)["__signature__"] = signature(bound, eval_str=True)
    return _tool


class _ToolArgumentParser(argparse.ArgumentParser):
    """A parser that raises ValueError where argparse would exit the process."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as a ValueError."""
        raise ValueError(message)


def run_command(name: str, tool: Tool, argv: Sequence[str]) -> Response:
    """Run a tool with the arguments of a command line."""
    parser = _make_parser(name, tool)
    if argv and argv[0] in ("-h", "--help"):
        return Response(0, parser.format_help())
    try:
        arguments = vars(parser.parse_args(argv))
    except ValueError as error:
        message = printable(str(error))[:_MAX_ERROR_CHARACTERS]
        return Response(2, f"{message}\n{parser.format_usage()}")
    for key, value in arguments.items():
        if isinstance(value, list):
            arguments[key] = " ".join(value)
    return tool(**arguments)


def _make_parser(name: str, tool: Tool) -> argparse.ArgumentParser:
    parser = _ToolArgumentParser(
        prog=name, description=tool.__doc__, add_help=False, allow_abbrev=False
    )
    parameters = signature(tool).parameters.values()
    positional = [item for item in parameters if item.default is Parameter.empty]
    for parameter in positional:
        is_last = parameter is positional[-1]
        parser.add_argument(parameter.name, **_argument_options(parameter, takes_rest=is_last))
    for parameter in parameters:
        if parameter.default is not Parameter.empty:
            flags = (f"-{parameter.name[0]}", f"--{parameter.name}")
            options = _argument_options(parameter, takes_rest=False)
            parser.add_argument(*flags, default=parameter.default, **options)
    return parser


def _argument_options(parameter: Parameter, *, takes_rest: bool) -> dict[str, Any]:
    """Return the keywords of `add_argument` for a parameter of a tool."""
    annotation = parameter.annotation
    if annotation is bool:
        return {"action": "store_true"}
    if get_origin(annotation) is Literal:
        return {"choices": get_args(annotation)}
    if annotation is str and takes_rest:
        return {"type": str, "nargs": "+"}  # the last text need not be quoted
    return {"type": annotation}
