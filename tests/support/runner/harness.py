"""`cooperbench run` as a process, for tests that end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.support.sandbox_processes import sandbox_processes
from tests.support.tiny import TASK_ID, write_script, write_tiny

if TYPE_CHECKING:
    from pathlib import Path


class Harness:
    """`cooperbench run` as a process of its own, on six pairs, with a cache of its own."""

    def __init__(self, tmp_path: Path, *, step: str = "sleep 0.05") -> None:
        self.root = tmp_path
        self.cache = tmp_path / "cache"
        dataset = write_tiny(tmp_path / "data")
        work: dict[int, list[object]] = {
            number: [
                {"run": step},
                {"apply": f"data/tiny_task/task{TASK_ID}/feature{number}/feature.patch"},
            ]
            for number in (1, 2, 3, 4)
        }
        script = write_script(tmp_path / "script.yaml", work)
        self.words = [
            sys.executable, "-m", "cooperbench", "run", "-n", "r", "-a", "scripted", "--agent-config", str(script),
            "--backend", "local", "--dataset-dir", str(dataset), "--log-dir", str(tmp_path / "logs"), "-c", "2",
        ]  # fmt: skip

    def start(self, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "COOPERBENCH_CACHE_DIR": str(self.cache), **variables}
        return subprocess.Popen(
            self.words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(self) -> tuple[int, str]:
        process = self.start()
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def interrupt(self, process: subprocess.Popen[str]) -> str:
        """What it had to say; a failure if it is not gone long before a minute has passed."""
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=15)[0]
        finally:
            process.kill()

    def results(self) -> dict[str, Any]:
        """Whole results by pair; one that is there and not whole is a failure."""
        found = {}
        for path in (self.root / "logs").glob("r/coop/*/*/*/*.json"):
            if path.name.startswith("."):
                continue  # a file that is being written
            content = json.loads(path.read_text())
            if path.name == "result.json":
                found[path.parent.name] = content
        return found

    def survivors(self) -> list[str]:
        """Processes of sandboxes of this run."""
        return [f"{pid} {words}" for pid, words in sandbox_processes(str(self.cache)).items()]

    def wait_for_sandboxes(self, process: subprocess.Popen[Any]) -> None:
        """Wait until the run has begun: the check of the backend before it also has processes."""
        deadline = time.monotonic() + 30
        configuration = self.root / "logs/r/config.json"
        while not (configuration.exists() and self.survivors()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def wait_for_no_survivors(self) -> None:
        deadline = time.monotonic() + 20
        while self.survivors():
            assert time.monotonic() < deadline, self.survivors()
            time.sleep(0.05)
