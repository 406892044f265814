"""The process that is left when a harness dies while bubblewrap starts, made on purpose, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local.bubblewrap import executables
from cooperbench.backends.local.mounts import SHELL
from cooperbench.backends.local.run_folder import end_orphans

if TYPE_CHECKING:
    from cooperbench.backends.local import LocalBackend


def make_orphan(bwrap: str) -> int | None:
    """Kill bubblewrap as soon as it has a child; the child's number if it has stayed behind."""
    flags = ["--unshare-all", "--unshare-user", "--die-with-parent", "--ro-bind", "/", "/"]
    process = subprocess.Popen([bwrap, *flags, "--", SHELL], stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    numbers: list[str] = []
    with contextlib.suppress(OSError):
        while process.poll() is None and not (numbers := children.read_text().split()):
            pass
    process.kill()
    process.wait()
    return int(numbers[0]) if numbers and is_alive(int(numbers[0])) else None


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_an_orphan_is_ended_and_a_sandbox_is_not(local: LocalBackend) -> None:
    bwrap = next(map(str, executables()), None)
    if bwrap is None:
        pytest.skip("there is no bubblewrap here")
    sandbox = local.create_sandbox("host", timeout=300)
    orphan = next((pid for _ in range(50) if (pid := make_orphan(bwrap)) is not None), None)
    if orphan is None:
        pytest.skip("this bubblewrap leaves no orphans")
    try:
        deadline = time.monotonic() + 30
        while is_alive(orphan):
            assert time.monotonic() < deadline
            end_orphans()
    finally:
        with contextlib.suppress(OSError):
            os.kill(orphan, signal.SIGKILL)
    assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"
    sandbox.terminate()
