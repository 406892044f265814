"""The command line: arguments in, one call out. Modules of commands are imported only when these are called."""

from __future__ import annotations

import argparse
import atexit
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import NoReturn, cast

from cooperbench._version import __version__
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.secrets import load_env_file, redact
from cooperbench.text import printable

COMMANDS = {
    "demo": "a complete experiment on this machine, with nothing to set up",
    "run": "run agents on pairs of features, and judge what they did",
    "ablate": "run the same pairs with parts of cooperation switched off, to tell what each is worth",
    "eval": "judge the results of a run",
    "status": "how a run stands, and who is at work on it",
    "attach": "follow a run that was started with --detach",
    "view": "look at runs in the browser, also while they go on",
    "report": "what runs mean: rates with intervals, deficit, difficulty, costs",
    "compare": "the same pairs in two runs, or solo against coop",
    "tasks": "list tasks, features and pairs",
    "prepare": "download the dataset",
    "validate": "check a dataset: tests, golden patches, conflicts",
    "export": "write a run's results for other tools",
    "agents": "list agents, install and remove their frameworks",
    "images": "list, pull, build and remove task images",
    "doctor": "what is installed, reachable and configured",
    "prompts": "what the agents of a run are told",
    "config": "show and change your settings",
    "clean": "remove what killed runs left behind",
}
_MODULES = {
    **dict.fromkeys(("ablate", "demo", "eval", "prompts", "run"), "run"),
    **dict.fromkeys(("attach", "status"), "background"),
    **dict.fromkeys(("tasks", "validate"), "dataset"),
    **dict.fromkeys(("agents", "clean", "config", "doctor", "prepare"), "machine"),
    **dict.fromkeys(("compare", "export", "report", "view"), "results"),
}
"""Where commands are that have no module of their name."""
Add = Callable[[argparse.ArgumentParser], None]
Execute = Callable[[argparse.Namespace], int]
EXIT_ERRORS = 1
"""Some pairs ended in infrastructure errors."""
EXIT_USAGE = 2
EXIT_OVER_BUDGET = 3
EXIT_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LATER_SECONDS = 0.1


class _Parser(argparse.ArgumentParser):
    """argparse, with one line for a mistake instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole parser as far as one command needs it: only that command's module is imported."""
    parser = _Parser(
        prog="cooperbench",
        description="Can coding agents work together? Run, judge and compare them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cooperbench {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for name, text in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
        )
        if name == command:
            _functions(name)[0](subparser)
    return parser


def _functions(command: str) -> tuple[Add, Execute]:
    """What adds the arguments of a command, and what executes it; imported only where it is called."""
    functions = import_module(f"cooperbench.cli.{_MODULES.get(command, command)}").COMMANDS
    return cast("tuple[Add, Execute]", functions[command])


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code. Without `argv` this is the whole of a process, which then ends at once."""
    if argv is not None:
        return _execute(list(argv))
    codes: list[int] = []
    # Before anything else registers: what is registered first comes last.
    atexit.register(_end_process, codes)
    _lose_no_interrupt()
    code = EXIT_INTERRUPTED
    with suppress(
        KeyboardInterrupt
    ):  # a second one, or one that comes too late to interrupt anything
        code = _execute(sys.argv[1:])
        _ignore_all()
    codes.append(code)
    if code == EXIT_INTERRUPTED:
        # Python's own end could wait for ever for a thread that began or ended when an interrupt came.
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join(5)
        atexit._run_exitfuncs()
    return code


def _end_process(codes: list[int]) -> None:
    """End without the interpreter's own end, unless there is no exit code.

    Once a model has been asked, that takes seconds (it takes apart thousands of modules), and it may never come: a
    thread that it stops in the middle of an import keeps the import's lock, and finalizers of LiteLLM wait for it.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter meets it, too, and has a message and an exit code for it
    if codes:
        os._exit(codes[0])


def _execute(words: list[str]) -> int:
    command = next((word for word in words if word in COMMANDS), None)
    _end_like_ctrl_c()
    try:
        args = make_parser(command).parse_args(words)
        args.words = words
        for note in load_env_file():
            sys.stderr.write(f"cooperbench: {printable(note)}\n")
        return _functions(args.command)[1](args)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else EXIT_USAGE
    except UserError as error:
        return _fail(error, EXIT_USAGE)
    except CooperBenchError as error:
        return _fail(error, EXIT_ERRORS)
    except KeyboardInterrupt:
        # Everything has ended: another Ctrl-C must not turn the orderly exit into a killed process.
        _ignore_all()
        sys.stderr.write(
            "cooperbench: interrupted. Completed pairs are saved. Rerun the same command to resume\n"
        )
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone (`| head`); nothing more can be said.
        _say_no_more()
        return EXIT_ERRORS
    except OSError as error:
        if error.errno not in _FULL:
            raise
        if error.filename is None:
            _say_no_more()
        where = f" while writing {error.filename}" if error.filename else ""
        line = f"the disk is full{where}; what is finished is kept: make room, and call again"
        return _fail(UserError(line), EXIT_ERRORS)


def _say_no_more() -> None:
    """What is still to be written to stdout cannot be; it must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception, code: int) -> int:
    sys.stderr.write(f"cooperbench: {printable(redact(str(error)))}\n")
    return code


def _end_like_ctrl_c() -> None:
    """SIGTERM, SIGQUIT, and SIGHUP unless it is ignored, as under `nohup`.

    SIGINT also where it is ignored, as in the background of a shell without job control: `kill -INT` must end it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def _lose_no_interrupt() -> None:
    """One that comes while Python runs a finalizer would only be reported there."""
    report = sys.unraisablehook

    def hook(problem: sys.UnraisableHookArgs) -> None:
        if problem.exc_type is KeyboardInterrupt:
            _interrupt_later()
        else:
            report(problem)

    sys.unraisablehook = hook


def _interrupt_later() -> None:
    threading.Timer(_LATER_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()


def _ignore_all() -> None:
    """From now on nothing but SIGKILL ends the process before it ends by itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(_: int, frame: FrameType | None) -> None:
    while frame is not None and frame.f_code.co_name != "__set_name__":
        frame = frame.f_back
    if frame is None:
        raise KeyboardInterrupt
    # While a class is made, as imports do: Python 3.11 would turn it into a RuntimeError.
    _interrupt_later()


def _hang_up(signum: int, frame: FrameType | None) -> None:
    # It may come twice, from the shell and from the kernel.
    signal.signal(signum, signal.SIG_IGN)
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            # The terminal is gone: a line for it must not become an error in the middle of the clean-up.
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    _interrupt(signum, frame)
