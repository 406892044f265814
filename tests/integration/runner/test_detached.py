"""Runs in the background: one that is said to be at work is there, one that was interrupted is not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.runner.harness import Harness

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path, step="sleep 300")
    made.words += ["-f", "1,2", "--detach"]
    yield made
    for process in at_work(tmp_path):
        os.kill(process, signal.SIGKILL)
    made.wait_for_no_survivors()


def at_work(folder: Path) -> list[int]:
    """Processes of the command whose words name this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"cooperbench" in words and bytes(folder) in words:
            found.append(int(entry.name))
    return found


def the_process_at_work(folder: Path) -> int:
    """Return the only process; a program that it starts has the same words for a moment."""
    deadline = time.monotonic() + 10
    while len(processes := at_work(folder)) != 1:
        assert time.monotonic() < deadline, processes
        time.sleep(0.05)
    return processes[0]


def call(harness: Harness, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cooperbench", *words, "--log-dir", str(harness.root / "logs")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_detached_run_is_followed_left_and_ended(harness: Harness) -> None:
    code, output = harness.finish()
    assert code == 0, output
    # At once: it is an experiment by now.
    following = call(harness, "attach", "r")
    assert following.stdout is not None
    while "Agent 2: Implementing feature 2" not in (line := following.stdout.readline()):
        assert line, "attach has ended"
    deadline = time.monotonic() + 30
    output = ""
    while not re.search(r"tiny_task/task7 f1_f2: agent1 \d steps?, \$0.00", output):
        assert time.monotonic() < deadline, output
        output, _ = call(harness, "status", "r").communicate(timeout=30)
        assert "coop: 1 running" in output
        assert "missing" not in output
    following.send_signal(signal.SIGTERM)
    output, _ = following.communicate(timeout=30)
    assert following.returncode == 0
    assert "r keeps running: process" in output
    process = the_process_at_work(harness.root)
    following = call(harness, "attach", "r")
    os.kill(process, signal.SIGTERM)
    output, _ = following.communicate(timeout=60)
    assert "interrupted. Completed pairs are saved" in output
    assert following.returncode == 1, "a run that was ended is no success"
    assert harness.survivors() == []
    assert at_work(harness.root) == []
    output, _ = call(harness, "status", "r").communicate(timeout=30)
    assert "r: not running; rerun the same command to continue" in output
    assert "running:" not in output
    assert "coop: 1 missing" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_before_it_is_in_the_background_ends_it(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    marker = tmp_path / "importing"
    # In the background only: the command that starts it has looked at the agent, too.
    (tmp_path / "slow.py").write_text(
        "import sys, time\n"
        "class Agent:\n    def run(self, session): ...\n"
        f"if '--detach' not in sys.argv:\n    open({str(marker)!r}, 'w')\n    time.sleep(300)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    harness.words += ["-a", "slow:Agent"]
    process = harness.start()
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert at_work(tmp_path) == []
