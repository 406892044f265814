"""Identity of processes (a process id is used again, together with the start time it is unique), and clean-up that
Ctrl-C must not cut short."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_MOST_INTERRUPTS = 5
"""After these a clean-up that does not finish is given up."""


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
