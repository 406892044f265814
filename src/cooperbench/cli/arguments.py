"""Arguments that several commands share, their parsers, and the output of results."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from cooperbench.dataset.assignment import EVEN, SPLITS
from cooperbench.dataset.coupling import COUPLINGS
from cooperbench.errors import UserError
from cooperbench.models import MAX_AGENTS
from cooperbench.report import METHODS
from cooperbench.runner.options import (
    BUDGET,
    COUNT,
    DEFAULTS,
    FLAG,
    INTEGER,
    LIST,
    OPTIONS,
    POSITIVE_INTEGER,
    POSITIVE_NUMBER,
    PROBABILITY,
    ValueType,
)
from cooperbench.text import printable, terminal_width, wrap

N = TypeVar("N", int, float)


class ArgumentContainer(Protocol):
    """A parser of argparse, or a group of its arguments."""

    def add_argument(self, *name_or_flags: str, **kwargs: Any) -> argparse.Action:
        """Add an argument."""


def number(
    kind: Callable[[str], N], valid_values: str, is_valid: Callable[[N], bool]
) -> Callable[[str], N]:
    """Return a parser of numbers for argparse; `valid_values` describes valid values in errors."""

    def read(text: str) -> N:
        """Parse a number."""
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not is_valid(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {valid_values}")
        return value

    return read


whole_above_zero = number(int, "a whole number above 0", lambda value: value > 0)
above_zero = number(float, "a number above 0", lambda value: 0 < value < math.inf)
count = number(int, "a whole number from 0", lambda value: value >= 0)
_probability = number(float, "a probability from 0 to 1", lambda value: 0 <= value <= 1)
UNLIMITED = "unlimited"


def budget(text: str) -> int | None:
    """Parse a number from 0, or `unlimited`, which is None."""
    try:
        return None if text == UNLIMITED else count(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not {BUDGET.description}, e.g. 3 or {UNLIMITED}"
        ) from None


_PARSERS: dict[ValueType, Callable[[str], Any]] = {
    INTEGER: number(int, "a whole number", lambda _: True),
    POSITIVE_INTEGER: whole_above_zero,
    POSITIVE_NUMBER: above_zero,
    COUNT: count,
    BUDGET: budget,
    PROBABILITY: _probability,
}
_listed = number(int, "a number", lambda value: value >= 0)
_task = number(int, "a task's number, e.g. 12 or task12", lambda value: value >= 0)


def number_list(text: str) -> list[int]:
    """Parse a list of numbers of features or agents: `1,2`."""
    try:
        return [_listed(part.strip()) for part in text.split(",")]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of numbers, e.g. 1,2 ({error})"
        ) from None


def _couplings(text: str) -> list[str]:
    """Parse a list of classes of coupling: `symbol,text`."""
    names = [part.strip() for part in text.split(",")]
    unknown = [name for name in names if name not in COUPLINGS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is not a class of coupling; choose from {', '.join(COUPLINGS)}"
        )
    return names


def task_number(text: str) -> int:
    """Parse the number of a task: `12` or `task12`."""
    return _task(text.removeprefix("task"))


def add_dataset_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--dataset-dir`."""
    folder = "the dataset's folder, or `demo` for the one in the package"
    default = "(default: $COOPERBENCH_DATASET_DIR or dataset)"
    parser.add_argument("--dataset-dir", metavar="DIR", help=f"{folder} {default}")


def add_selection_arguments(
    parser: argparse.ArgumentParser, *, groups: bool = True, agents: bool = False
) -> None:
    """Add the arguments that select pairs.

    Args:
        parser: The parser of the command.
        groups: Whether to add those for groups of features.
        agents: Whether agents work on the pairs, so that their number can differ from that of
            features (see `read_agent_numbers`).
    """
    selection = parser.add_argument_group("which pairs")
    selection.add_argument("-s", "--subset", metavar="NAME", help="only a named subset, e.g. lite")
    selection.add_argument(
        "-r", "--repo", metavar="REPO", help="only one repository, e.g. llama_index_task"
    )
    selection.add_argument(
        "-t", "--task", dest="task_id", type=task_number, metavar="ID", help="only this task"
    )
    selection.add_argument(
        "-f",
        "--features",
        type=number_list,
        metavar="1,2",
        help=f"only these features together, 2 to {MAX_AGENTS}",
    )
    if groups:
        _add_group_arguments(selection, agents=agents)
    if agents:
        _add_agent_arguments(selection)
        parser.set_defaults(agent_count=None)
    add_dataset_argument(parser)


def _add_group_arguments(selection: ArgumentContainer, *, agents: bool) -> None:
    size_flags = ["--group-size"] if agents else ["--group-size", "--agents"]
    selection.add_argument(
        *size_flags,
        dest="group_sizes",
        type=number_list,
        metavar="2,3",
        help="groups of this many features instead of pairs (with -f: groups of these features)",
    )
    selection.add_argument(
        "--groups",
        dest="groups_per_task",
        type=whole_above_zero,
        metavar="K",
        help="maximum number of groups per size and task (default: the task's number of pairs)",
    )
    selection.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="random seed for sampling groups; groups of one seed are nested over sizes "
        "(default: 0)",
    )
    selection.add_argument(
        "--coupling",
        type=_couplings,
        metavar="CLASS,…",
        help=f"only pairs whose golden patches are coupled like this: {', '.join(COUPLINGS)}",
    )


def _add_agent_arguments(selection: argparse._ActionsContainer) -> None:
    selection.add_argument(
        "--agents",
        dest="agent_numbers",
        type=number_list,
        metavar="N",
        help="number of agents for the features of -f or for each group of --group-size; 1 is "
        "setting solo. Without these two: groups of N features, one agent each (2,3: of several "
        "sizes)",
    )
    ways = "; ".join(f"{name}: {meaning}" for name, meaning in SPLITS.items())
    selection.add_argument(
        "--split",
        default=EVEN,
        metavar="HOW",
        help=f"which agent has which features: 1,2/3,4 (agent1 has 1 and 2), or, evenly, {ways} "
        "(default: %(default)s)",
    )


def read_agent_numbers(args: argparse.Namespace) -> None:
    """Set `agent_count` or `group_sizes` to what `--agents` means.

    With `-f` or `--group-size` it is the number of agents. Alone, it is the size of groups with one
    agent per feature; so is a list of several numbers.
    """
    numbers = args.agent_numbers
    if numbers is None:
        return
    has_groups = bool(args.features or args.group_sizes or args.split not in SPLITS)
    if len(numbers) == 1 and (has_groups or numbers == [1]):
        args.agent_count = numbers[0]
        return
    if args.group_sizes:
        text = ",".join(str(number) for number in numbers)
        raise UserError(f"--agents {text} with --group-size: give one number of agents")
    args.group_sizes = numbers


def add_logs_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--log-dir`."""
    parser.add_argument(
        "--log-dir",
        default="logs",
        metavar="DIR",
        help="folder with results (default: %(default)s)",
    )


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument(
        "--json", action="store_true", help="for machines: one JSON object on stdout"
    )


def add_analysis_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `report` and `compare` share."""
    interval_help = "how intervals are made (default: %(default)s)"
    parser.add_argument("--interval", choices=METHODS, default="clustered", help=interval_help)
    parser.add_argument("--anyway", action="store_true", help="combine runs of different datasets")
    add_option(parser, "sound_only")
    add_json_argument(parser)
    add_logs_argument(parser)


def add_option(group: ArgumentContainer, name: str, **overrides: Any) -> None:
    """Add the argument of a run option; `overrides` replace what `RunOptions` declares."""
    option = OPTIONS[name]
    default = DEFAULTS[name] if option.cli_default is None else option.cli_default
    settings: dict[str, Any] = {"dest": name, "help": option.help}
    if option.type is FLAG and option.optional:
        settings |= {"action": argparse.BooleanOptionalAction, "default": None}
    elif option.type is FLAG:
        settings["action"] = "store_false" if default else "store_true"
    elif option.type is LIST:
        settings |= {"action": "append", "metavar": option.metavar}
    else:
        if default is not None and "default:" not in option.help:
            settings["help"] += " (default: %(default)s)"
        settings |= {
            # The user's settings may have other defaults for these two.
            "default": None if name in ("backend", "eval_network") else default,
            "type": _PARSERS.get(option.type, str),
            "choices": option.choices,
            "metavar": option.metavar,
        }
    group.add_argument(*option.flags, **settings | overrides)


def add_varying_option(group: ArgumentContainer, name: str) -> None:
    """Add the argument of a run option that may have several values, as a list of texts."""
    option = OPTIONS[name]
    notes = []
    if option.choices:
        notes.append(f". One of {', '.join(option.choices)}")
    if DEFAULTS[name] is not None:
        notes.append(f" (default: {DEFAULTS[name]})")
    group.add_argument(
        *option.flags,
        dest=name,
        action="append",
        metavar=f"{option.metavar or name.upper()}[,…]",
        help=option.help + "".join(notes),
    )


def parse_option(name: str, text: str) -> Any:
    """Return the value of a run option; UserError if it is not one."""
    option = OPTIONS[name]
    try:
        value = _PARSERS.get(option.type, str)(text)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{option.flags[-1]}: {error}") from None
    option.check(name, value)
    return value


def print_line(line: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(printable(line) + "\n")


def print_note(line: str) -> None:
    """Print a line that is not part of the result, on stderr."""
    sys.stderr.write(wrap(printable(line), terminal_width(sys.stderr)) + "\n")


def print_json(content: object) -> None:
    """Print the result as JSON."""
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def print_result(args: argparse.Namespace, content: object, lines: Iterable[str]) -> None:
    """Print the content with `--json`, else the lines."""
    if args.json:
        print_json(content)
        return
    for line in lines:
        print_line(line)
