"""Processes: which one is which (a number is given out again, with its start time it is not), and signals to ours."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
_FINALIZER_SECONDS = 0.1
_MOST_INTERRUPTS = 5
"""Then a clean-up that does not come to an end is given up."""


def start_of(pid: int) -> str:
    """When a process started; empty where there is none. OSError where that cannot be known: it may be alive."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[19]


@cache
def namespace() -> str:
    """Of process numbers: a process of another one cannot be seen from here, dead or alive."""
    return f"{Path('/proc/self/ns/pid').stat().st_ino:x}"


def end_like_ctrl_c() -> None:
    """SIGTERM, SIGQUIT, and SIGHUP unless it is ignored, as under `nohup`.

    SIGINT also where it is ignored, as in the background of a shell without job control: `kill -INT` must end it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGQUIT, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def lose_no_interrupt() -> None:
    """One that comes while Python runs a finalizer would only be reported there: it comes once more, a moment later."""
    report = sys.unraisablehook

    def hook(problem: sys.UnraisableHookArgs) -> None:
        if problem.exc_type is KeyboardInterrupt:
            threading.Timer(_FINALIZER_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            report(problem)

    sys.unraisablehook = hook


def finished(action: Callable[[], T]) -> T:
    """What an action gives; as often as Ctrl-C comes meanwhile it is begun again, and then interrupted."""
    try:
        return action()
    except KeyboardInterrupt:
        for _ in range(_MOST_INTERRUPTS):
            with suppress(KeyboardInterrupt):
                action()
                break
        raise


def ignore_all() -> None:
    """From now on nothing but SIGKILL ends the process before it ends by itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signal handler's shape
    raise KeyboardInterrupt


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
