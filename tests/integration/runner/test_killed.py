"""Runs that are killed or interrupted: nothing half written, nothing repeated, nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cooperbench.storage import read_json
from tests.support.agents.mini_swe import MODEL, TOOLS, write_config
from tests.support.modelserver import Answer, ModelServer, Request
from tests.support.runner.harness import Harness


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGINT,),
        (signal.SIGTERM,),
        (signal.SIGHUP, signal.SIGHUP),
        (signal.SIGQUIT, signal.SIGINT, signal.SIGTERM),
    ],
)
def test_an_interrupted_run_ends_everything_and_continues(
    tmp_path: Path, signals: tuple[signal.Signals, ...]
) -> None:
    harness = Harness(tmp_path, step="test -e /workspace/repo/go || { touch started; sleep 300; }")
    process = harness.start()
    assert process.stdout
    while "features_" not in process.stdout.readline():
        assert process.poll() is None
    harness.wait_for_sandboxes(process)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Rerun the same command to resume" in output
    assert harness.survivors() == []
    assert not list((harness.cache / "sandboxes").glob("*/*"))
    assert harness.results() == {}
    summary = read_json(tmp_path / "logs/r/summary.json")
    assert summary is not None
    assert summary["settings"]["coop"]["missing"] == 6


def test_a_run_whose_parent_ignores_sigint_is_interrupted_by_it(tmp_path: Path) -> None:
    """As `cooperbench run … &` in a script."""
    harness = Harness(tmp_path, step="sleep 300")
    harness.words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *harness.words]
    process = harness.start()
    harness.wait_for_sandboxes(process)
    output = harness.interrupt(process)
    assert process.returncode == 130, output
    assert harness.survivors() == []


@pytest.mark.usefixtures("hangup")
def test_a_closed_terminal_ends_the_run_and_everything_of_it(tmp_path: Path) -> None:
    harness = Harness(tmp_path, step="sleep 300")
    ours, its = os.openpty()
    environment = {**os.environ, "COOPERBENCH_CACHE_DIR": str(harness.cache), "TERM": "xterm"}
    # What a shell in a terminal does: the terminal is the session's, and all that the run has.
    in_terminal = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", in_terminal, *harness.words],
        env=environment, stdin=its, stdout=its, stderr=its, start_new_session=True,
    )  # fmt: skip
    os.close(its)
    try:
        harness.wait_for_sandboxes(process)
        os.close(ours)
        assert process.wait(30) == 130
    finally:
        process.kill()
    assert harness.survivors() == []
    assert not list((harness.cache / "sandboxes").glob("*/*"))
    assert read_json(tmp_path / "logs/r/summary.json") is not None


def test_nohup_is_heeded(tmp_path: Path) -> None:
    harness = Harness(tmp_path, step="sleep 1")
    harness.words = ["nohup", *harness.words, "-f", "1,2"]
    process = harness.start()
    harness.wait_for_sandboxes(process)
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output


def test_an_interrupted_run_does_not_wait_for_the_model(tmp_path: Path) -> None:
    asked = threading.Event()

    def slowly(request: Request) -> Answer:
        asked.set()
        return Answer("", hold=60)

    with ModelServer() as server:
        server.script("", slowly)
        config = write_config(tmp_path / "agent.yaml", server.openai_url)
        harness = Harness(tmp_path)
        harness.words += ["-a", TOOLS, "-m", MODEL, "--agent-config", str(config), "-f", "1,2"]
        process = harness.start()
        assert asked.wait(60)
        output = harness.interrupt(process)
    assert process.returncode == 130, output
    assert "Rerun the same command to resume" in output
    assert harness.survivors() == []
    assert harness.results() == {}
    (log,) = (tmp_path / "logs").rglob("agent1.log")
    assert "aborted: Interrupted" in log.read_text()


HALF_IMPORTED = """
import atexit

class Late:
    def __init__(self):
        self.myself = self

    def __del__(self):
        import slow_module

late = Late()
# Collected when the interpreter ends, while imports still work.
atexit.register(globals().pop, "late")

class Agent:
    @staticmethod
    def warm_up():
        import slow_module

    def run(self, session):
        while True:
            session.execute("sleep 0.1")
"""
PROGRAM = """
from cooperbench import run
run("r", agent="half_imported:Agent", backend="local", dataset_dir="data", logs_dir="logs", features=[1, 2])
"""


@pytest.mark.parametrize(
    ("program", "import_seconds"), [(None, 3), (PROGRAM, 3)], ids=["command", "call"]
)
def test_an_interrupted_run_ends_in_the_middle_of_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, import_seconds: int
) -> None:
    # What LiteLLM does: its import takes seconds, and its finalizers import.
    (tmp_path / "half_imported.py").write_text(HALF_IMPORTED)
    module = f"import time\nopen('importing', 'w').close()\ntime.sleep({import_seconds})\n"
    (tmp_path / "slow_module.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    harness = Harness(tmp_path)
    harness.words += ["-a", "half_imported:Agent", "-f", "1,2"]
    if program is not None:
        harness.words = [sys.executable, "-c", program]
    process = harness.start()
    deadline = time.monotonic() + 30
    while (
        not list((tmp_path / "logs").rglob("agent1.log")) or not (tmp_path / "importing").exists()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    output = harness.interrupt(process)
    assert "KeyboardInterrupt" in output if program else process.returncode == 130, output
    assert harness.survivors() == []


INTERRUPTED_FINALIZER = """
import os, signal, time, weakref

class Gone:
    pass

def interrupt(_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)

gone = Gone()
kept = weakref.ref(gone, interrupt)
del gone

class Agent:
    def run(self, session):
        session.execute("sleep 60")
"""
INTERRUPTED_CLASS = """
import os, signal

class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)

class Agent:
    field = Field()
    def run(self, session):
        session.execute("sleep 60")
"""


@pytest.mark.parametrize(
    "module", [INTERRUPTED_FINALIZER, INTERRUPTED_CLASS], ids=["finalizer", "class"]
)
def test_an_interrupt_where_python_would_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """In a finalizer it would be reported, where a class is made it would be another error: imports have both."""
    (tmp_path / "interrupted.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    harness = Harness(tmp_path)
    harness.words += ["-a", "interrupted:Agent", "-f", "1,2"]
    code, output = harness.finish()
    assert code == 130, output
    assert "Traceback" not in output
    assert harness.survivors() == []


def test_a_run_cannot_be_started_twice(tmp_path: Path) -> None:
    harness = Harness(tmp_path, step="sleep 300")
    first = harness.start()
    assert first.stdout
    while "features_" not in first.stdout.readline():
        assert first.poll() is None
    code, output = harness.finish()
    assert code == 2
    assert f"in use by process {first.pid}" in output
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
