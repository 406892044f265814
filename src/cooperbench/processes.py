"""Which process is which: numbers are given out again, a number together with a start time is not.

For telling what a process that is gone has left behind from what belongs to a living one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


def start_of(pid: int) -> str:
    """When a process started; empty where there is no such process.

    OSError where that cannot be known just now: no process may pass for dead because a file could not be opened.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[19]


@cache
def namespace() -> str:
    """Of process numbers: a process of another one cannot be seen from here, dead or alive."""
    return f"{Path('/proc/self/ns/pid').stat().st_ino:x}"
