"""Replays of forks: `python benchmarks/forks.py [--steps 12] [--seconds 1]`.

Two agents run commands that last some time, at the same time, and are recorded. A fork
after the last of these steps replays all of them. Targets: no model call before the fork point, and
at most 1.3 times the duration of the recorded commands (all agents together) from the first step to
the first live request. A busy machine makes it worse.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.agents.mini_swe import SUBMIT, TOOLS, act, write_config
from tests.support.modelserver import ModelServer
from tests.support.tiny import REPO, TASK_ID, write_tiny

from cooperbench import records, run
from cooperbench.cli import main
from cooperbench.records.trajectory import Trajectory
from cooperbench.storage import parse_time

if TYPE_CHECKING:
    from tests.support.modelserver import Request
    from tests.support.modelserver.replies import Reply


class Model:
    """Answers with commands that last, and notes when it was asked."""

    def __init__(self, steps: int, seconds: float) -> None:
        self.steps, self.seconds = steps, seconds
        self.moments: list[tuple[float, int]] = []
        """Time of each request and the number of steps before it."""
        self._lock = threading.Lock()

    def reply(self, request: Request) -> Reply:
        steps = sum(message.get("role") == "assistant" for message in request.messages)
        with self._lock:
            self.moments.append((time.time(), steps))
        if steps >= self.steps:
            return act(TOOLS, SUBMIT)
        return act(TOOLS, f"echo step {steps}; sleep {self.seconds}")


def measure(steps: int, seconds: float, folder: Path) -> tuple[float, float, int]:
    """Return the seconds of recorded commands and of the replay, and the calls too many."""
    model = Model(steps, seconds)
    with ModelServer() as server:
        server.script("", model.reply)
        config = str(write_config(folder / "agent.yaml", server.openai_url))
        write_tiny(folder / "data")
        common = ["--backend", "local", "--dataset-dir", str(folder / "data")]
        run(
            "r", agent=TOOLS, model_name="openai/x", agent_config=config, backend="local", features=[1, 2],
            dataset_dir=folder / "data", logs_dir=folder / "logs", record=True, auto_eval=False,
        )  # fmt: skip
        pair = f"coop/{REPO}/{TASK_ID}/f1_f2"
        recorded = sum(
            trajectory.sandbox_seconds or 0.0 for trajectory in read(folder / "logs/r" / pair)
        )
        model.moments.clear()
        words = ["fork", "r", "-n", "f", "--at", f"agent1:{steps}", "--agent-config", config]
        status = main([*words, *common, "--log-dir", str(folder / "logs"), "--no-auto-eval"])
        assert status == 0
    begun = min(
        step.timestamp
        for trajectory in read(folder / "logs/f/control" / pair)
        for step in trajectory.steps
    )
    first_step = parse_time(begun)
    assert first_step is not None
    first_request = min(moment for moment, _ in model.moments)
    replayed = sum(count < steps - 1 for _, count in model.moments)
    return recorded, first_request - first_step.timestamp(), replayed


def read(folder: Path) -> list[Trajectory]:
    trajectories = []
    for agent_id in ("agent1", "agent2"):
        trajectory = records.read(folder / agent_id / "trajectory.json", Trajectory)
        assert trajectory is not None
        trajectories.append(trajectory)
    return trajectories


def print_table() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    with TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        commands, replay, calls = measure(args.steps, args.seconds, Path(folder))
    print(f"{'recorded commands':30}{commands:8.1f} s")
    print(f"{'replay to the fork point':30}{replay:8.1f} s")
    print(f"{'ratio (target: 1.3)':30}{replay / commands:8.2f}")
    print(f"{'model calls before it (0)':30}{calls:8}")


if __name__ == "__main__":
    print_table()
