"""Signals that end the process: all of them do what Ctrl-C does."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

_FINALIZER_SECONDS = 0.1


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
