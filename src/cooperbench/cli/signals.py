"""Signals and the end of the process: Ctrl-C once stops a run in order, twice stops it at once."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
_RETHROW_SECONDS = 0.1
_JOIN_SECONDS = 5
_command_ended = False
"""True once the command of this process has ended: signals interrupt nothing from then on."""


def treat_signals_as_interrupts() -> None:
    """Raise KeyboardInterrupt for SIGINT, SIGTERM, SIGQUIT and SIGHUP.

    SIGHUP stays ignored under `nohup`. SIGINT is handled even if it was ignored, as it is for the
    background jobs of a shell without job control, because `kill -INT` must end a run.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, _raise_interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def ignore_signals() -> None:
    """Let nothing but SIGKILL end the process before it ends by itself."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def rethrow_interrupts() -> None:
    """Send an interrupt again if it arrived in a finalizer, where Python would only report it."""
    report = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            _interrupt_later()
        else:
            report(unraisable)

    sys.unraisablehook = hook


def run_process(run: Callable[[], int], interrupted_status: int) -> int:
    """Run a command as a whole process, which ends with its exit status.

    Args:
        run: Runs the command and returns its exit status.
        interrupted_status: The exit status after a second interrupt.
    """
    global _command_ended
    statuses: list[int] = []
    # Handlers run in reverse order of registration, so this one runs last.
    atexit.register(_skip_teardown, statuses)
    rethrow_interrupts()
    try:
        status = run()
    except KeyboardInterrupt:
        status = interrupted_status
    # Python runs signal handlers only at calls and jumps. So none can raise between the command
    # and this assignment, and none raises after it: the exit functions remove the sandboxes.
    _command_ended = True
    ignore_signals()
    statuses.append(status)
    if status == interrupted_status:
        _join_threads()
        # Now, not at the interpreter's end, which waits forever for a thread that is stuck. Python
        # has no public name for it.
        atexit._run_exitfuncs()
    return status


def _join_threads() -> None:
    """Wait a few seconds for each thread that is still at work."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(_JOIN_SECONDS)


def _skip_teardown(statuses: list[int]) -> None:
    """End the process without the interpreter's teardown, if there is an exit status.

    After a model call the teardown takes seconds, because LiteLLM loads thousands of modules. It
    may never end: if a thread is stopped during an import, finalizers of LiteLLM wait for the lock
    of that import.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # The interpreter meets the same error and has a message and a status for it.
    if statuses:
        os._exit(statuses[0])


def _interrupt_later() -> None:
    threading.Timer(_RETHROW_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    if not _command_ended:
        raise KeyboardInterrupt


def _hang_up(number: int, frame: FrameType | None) -> None:
    # SIGHUP may come twice, from the shell and from the kernel.
    signal.signal(number, signal.SIG_IGN)
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            # The terminal is gone. Printing must not fail in the middle of the clean-up.
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    _raise_interrupt(number, frame)
