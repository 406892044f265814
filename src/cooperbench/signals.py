"""Signals that end a process of ours: each like Ctrl-C, so that everything it has started is ended with it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

T = TypeVar("T")

_OUTPUTS = (1, 2)


def end_like_ctrl_c() -> None:
    """SIGTERM, and SIGHUP (the terminal is closed) unless it is ignored, as under `nohup`."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def finished(action: Callable[[], T]) -> T:
    """What an action gives; if Ctrl-C comes meanwhile, it is done once more, and then interrupted."""
    try:
        return action()
    except KeyboardInterrupt:
        action()
        raise


def ignore_all() -> None:
    """From now on nothing but SIGKILL ends the process before it ends by itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signal handler's shape
    raise KeyboardInterrupt


def _hang_up(signum: int, frame: FrameType | None) -> None:
    # It may come twice, from the shell and from the kernel.
    signal.signal(signum, signal.SIG_IGN)
    for descriptor in _OUTPUTS:
        try:
            os.write(descriptor, b"")
        except OSError:
            # The terminal is gone: a line for it must not become an error in the middle of the clean-up.
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    _interrupt(signum, frame)
