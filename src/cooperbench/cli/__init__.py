"""The command line. The module of a command is imported only when the command is used."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

from cooperbench._version import __version__
from cooperbench.cli.signals import (
    ignore_signals,
    run_process,
    treat_signals_as_interrupts,
)
from cooperbench.errors import CooperBenchError, UserError, is_interrupt
from cooperbench.secrets import load_env_file, redact
from cooperbench.text import printable, terminal_width, wrap

COMMANDS = {
    "demo": "run a complete experiment on this machine, without any setup",
    "run": "run agents on pairs of features and evaluate the results",
    "sweep": "run the same pairs at several levels of a factor: agents, messages, models, …",
    "ablate": "run the same pairs with parts of cooperation switched off,"
    " to measure what each part contributes",
    "fork": "replay a recorded pair up to a point and go on from there,"
    " to measure what one change does",
    "eval": "evaluate the results of a run",
    "status": "show the state of a run: its process, pairs and cost",
    "attach": "follow a run that was started with --detach",
    "view": "show runs in the browser, also while they are running",
    "report": "analyze runs: rates with intervals, deficit, difficulty, costs",
    "compare": "compare the same pairs in two runs, or solo with coop",
    "tasks": "list tasks, features and pairs",
    "prepare": "download the dataset",
    "validate": "check a dataset: tests, golden patches, conflicts",
    "author": "make tasks from a repository of your own",
    "export": "write the results of a run for other tools",
    "import-run": "import results of the public release of CooperBench as a run",
    "agents": "list agents, install and remove their frameworks",
    "images": "list, pull, build, push and remove task images",
    "doctor": "check what is installed, reachable and configured",
    "prompts": "print the prompts of a run's agents",
    "config": "show and change your settings",
    "schema": "print the JSON Schema of a result file",
    "clean": "remove what killed runs left behind",
}
_MODULES = {
    "ablate": "study",
    "agents": "machine",
    "attach": "background",
    "author": "author",
    "clean": "machine",
    "compare": "results",
    "config": "machine",
    "demo": "run",
    "doctor": "machine",
    "eval": "run",
    "export": "results",
    "fork": "fork",
    "images": "images",
    "import-run": "import_run",
    "prepare": "machine",
    "prompts": "run",
    "report": "results",
    "run": "run",
    "schema": "schema",
    "status": "background",
    "sweep": "study",
    "tasks": "dataset",
    "validate": "dataset",
    "view": "results",
}
"""The module in `cooperbench.cli` that implements each command."""
EXIT_ERRORS = 1
"""Exit status if some pairs ended in infrastructure errors."""
EXIT_USAGE = 2
EXIT_OVER_BUDGET = 3
EXIT_INTERRUPTED = 130
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Command(NamedTuple):
    """The two functions of a command."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that prints one line for a mistake, with the help page of its command."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(  # type: ignore[override]  # the base class has overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Reject unknown arguments here: the top-level parser would name its own help page."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, []


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser. Only the module of `command` is imported, for its arguments."""
    parser = _Parser(
        prog="cooperbench",
        description="Can coding agents work together? Run, evaluate and compare them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cooperbench {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for name, text in COMMANDS.items():
        description = f"{text[0].upper()}{text[1:]}."
        subparser = subparsers.add_parser(
            name, help=text, description=description, allow_abbrev=False
        )
        if name == command:
            _find_command(name).add_arguments(subparser)
    return parser


def _find_command(name: str) -> Command:
    module = import_module(f"cooperbench.cli.{_MODULES[name]}")
    return Command(*module.COMMANDS[name])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Without `argv`, this call is the whole process, which then ends with that status.
    """
    if argv is not None:
        return _execute(list(argv))
    return run_process(lambda: _execute(sys.argv[1:]), EXIT_INTERRUPTED)


def _execute(argv: list[str]) -> int:
    treat_signals_as_interrupts()
    try:
        return _run_command(argv)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else EXIT_USAGE
    except UserError as error:
        return _fail(str(error), EXIT_USAGE)
    except CooperBenchError as error:
        return _fail(str(error), EXIT_ERRORS)
    except (KeyboardInterrupt, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_interrupt(error):
            raise
        return _report_interrupt()
    except OSError as error:
        return _report_os_error(error)


def _run_command(argv: list[str]) -> int:
    name = next((argument for argument in argv if argument in COMMANDS), None)
    args = make_parser(name).parse_args(argv)
    args.argv = argv
    for warning in load_env_file():
        sys.stderr.write(f"cooperbench: {printable(warning)}\n")
    status = _find_command(args.command).execute(args)
    # A full disk or a closed pipe may show only now; at exit it would be a traceback.
    if sys.stdout is not None:
        sys.stdout.flush()
    return status


def _report_interrupt() -> int:
    # Everything has ended. Another Ctrl-C must not kill the process during its exit.
    ignore_signals()
    sys.stderr.write(
        "cooperbench: interrupted. Completed pairs are saved. Rerun the same command to resume\n"
    )
    return EXIT_INTERRUPTED


def _report_os_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader of stdout has exited, as with `| head`.
        _silence_stdout()
        return EXIT_ERRORS
    if error.errno not in _DISK_FULL:
        raise error
    file = ""
    if error.filename is None:
        _silence_stdout()
    else:
        file = f" while writing {error.filename}"
    message = f"the disk is full{file}. Completed pairs are saved. Free some disk space and rerun"
    return _fail(message, EXIT_ERRORS)


def _silence_stdout() -> None:
    """Discard what is still buffered for stdout, because writing it would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    line = f"cooperbench: {printable(redact(message))}"
    sys.stderr.write(wrap(line, terminal_width(sys.stderr)) + "\n")
    return status
