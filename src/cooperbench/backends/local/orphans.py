"""The one process that a harness can leave behind when it is killed in the very moment in which bubblewrap starts.

Bubblewrap's outer process dies with the harness at once. Its child does so only later in its life: before, it waits for
the outer one to map its user, and nobody ever will. It has no files of ours yet and uses no time, but it stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.local.launcher import PROBE_FILE
from cooperbench.backends.local.view import SHELL

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS = (SHELL.encode(), PROBE_FILE.encode())
"""What stands on the command lines of our sandboxes, and nobody else's."""


def end_orphans() -> list[int]:
    """End those of this user; their process numbers."""
    ended = []
    for pid in _orphans():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            ended.append(pid)
    return ended


def _orphans() -> Iterator[int]:
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and _is_orphan(entry):
                yield int(entry.name)


def _is_orphan(process: Path) -> bool:
    """The first process of a namespace, still bubblewrap itself, whose parent is bubblewrap no more."""
    try:
        if _program(process) != "bwrap":
            return False
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
        is_first = len(numbers := status["NSpid"].split()) > 1 and numbers[-1] == "1"
        if not is_first or int(status["Uid"].split()[0]) != os.getuid():
            return False
        words = (process / "cmdline").read_bytes()
        return any(mark in words for mark in _OURS) and _program(process.parent / status["PPid"]) != "bwrap"
    except (OSError, KeyError, ValueError):
        return False


def _program(process: Path) -> str:
    """By its name: what it was started from may not be read of other users' processes, init among them."""
    return (process / "comm").read_text().strip()
