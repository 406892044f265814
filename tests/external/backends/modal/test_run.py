"""Whole experiments at Modal: the same verdicts as on the local backend, and nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from cooperbench import run
from tests.external.backends.docker.test_run import verdicts
from tests.support.docker.tasks import write_buildable
from tests.support.runner.helpers import Left, run_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modal.plane import Plane

pytestmark = pytest.mark.timeout(300)


def test_the_oracle_gets_the_same_verdicts_as_locally(plane: Plane, tmp_path: Path) -> None:
    write_buildable(tmp_path / "dataset")
    plane.add_dataset(tmp_path / "dataset")
    for backend in ("modal", "local"):
        run(
            backend, agent="oracle", backend=backend, dataset_dir=tmp_path / "dataset", logs_dir=tmp_path / "logs",
            features=[1, 4],
        )  # fmt: skip
    mine, local = (verdicts(tmp_path / "logs" / backend) for backend in ("modal", "local"))
    assert list(mine) == ["f1_f4"]
    assert mine == local
    assert plane.running() == []


def test_a_pair_whose_sandbox_is_lost_is_run_again(plane: Plane, tmp_path: Path) -> None:
    write_buildable(tmp_path / "dataset")
    plane.add_dataset(tmp_path / "dataset")
    script = tmp_path / "script.yaml"
    steps: list[dict[str, str]] = [{"run": "sleep 1.5; echo done >>app.txt"}]
    script.write_text(yaml.safe_dump({"repos": {"tiny_task": {7: {"coop": {1: steps, 2: steps}}}}}))
    known = set(plane.guests)

    def kill_one() -> None:
        while True:
            for guest in plane.running():
                if (
                    guest.sandbox_id not in known
                    and guest.tags.get("cooperbench-agent") == "agent1"
                    and guest.execs
                ):
                    guest.terminate()
                    return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_one)
    killer.start()
    run(
        "lost", agent="scripted", agent_config=str(script), backend="modal", dataset_dir=tmp_path / "dataset",
        logs_dir=tmp_path / "logs", features=[1, 2], auto_eval=False,
    )  # fmt: skip
    killer.join(60)
    left = Left(tmp_path / "logs/lost/coop/tiny_task/7/f1_f2")
    assert (left.result["status"], left.result["attempt"]) == ("completed", 2)
    assert "+done" in left.patch("agent1")
    assert plane.running() == []


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_told_to_stop_leaves_nothing_running(
    plane: Plane, tmp_path: Path, number: int
) -> None:
    write_buildable(tmp_path / "dataset")
    plane.add_dataset(tmp_path / "dataset")
    script = tmp_path / "script.yaml"
    steps = [{"run": "sleep 600"}]
    script.write_text(yaml.safe_dump({"repos": {"tiny_task": {7: {"coop": {"*": steps}}}}}))
    command = [
        sys.executable, "-m", "cooperbench", "run", "-n", "stopped", "-a", "scripted", "--agent-config", str(script),
        "--backend", "modal", "--dataset-dir", str(tmp_path / "dataset"), "--log-dir", str(tmp_path / "logs"),
        "-f", "1,2", "--no-messaging", "--git", "--json",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while sum(guest.tags.get("cooperbench-purpose") == "agent" for guest in plane.running()) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert plane.running() == []
    assert not list((tmp_path / "logs").rglob("result.json"))


def test_patch_is_collected_with_a_broken_git(plane: Plane, tmp_path: Path) -> None:
    write_buildable(tmp_path / "data")
    plane.add_dataset(tmp_path / "data")
    left = run_tiny(
        tmp_path, "tests.support.attacks.agents:ClosesTheHarness,oracle", backend="modal"
    )
    assert left.result["agents"]["agent1"]["status"] == "submitted"
    assert "+line 6 honest\n" in left.patch()
    assert plane.running() == []
