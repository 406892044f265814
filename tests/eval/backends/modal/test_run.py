"""Whole experiments at Modal: the same verdicts as on the local backend, messages and git, and nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cooperbench import run
from cooperbench.dataset.demo_data import demo_dir
from tests.eval.backends.docker.tasks import write_buildable
from tests.eval.backends.docker.test_run import verdicts
from tests.runner.helpers import Left

if TYPE_CHECKING:
    from pathlib import Path

    from tests.eval.backends.modal.plane import Plane

pytestmark = pytest.mark.timeout(300)
COMMIT = "git add -A && git commit -qm done"


def golden(feature_id: int) -> str:
    return str(demo_dir() / f"coinage_task/task3/feature{feature_id}/feature.patch")


def write_demo_script(folder: Path, chapters: dict[Any, list[Any]]) -> str:
    script = folder / "script.yaml"
    script.write_text(yaml.safe_dump({"repos": {"coinage_task": {3: {"coop": chapters}}}}))
    return str(script)


def test_a_pair_of_the_demo_talks_and_shares(plane: Plane, tmp_path: Path) -> None:
    plane.add_dataset(demo_dir())
    chapters: dict[Any, list[Any]] = {
        1: [
            {"apply": golden(1)},
            {"run": f"{COMMIT}; git push -q team HEAD:agent1 2>&1; echo code $?"},
            {"run": "git push team HEAD:agent2 2>&1; tail -n +3 /proc/net/dev | cut -d : -f 1"},
            {"run": "send_message agent2 it is pushed"},
            {"run": "read_messages --wait 120"},
            {"run": "git pull -q --no-edit team agent2 2>&1; git log --format=%an -1"},
        ],
        3: [
            {"apply": golden(3)},
            {"wait": {"for": "pushed", "seconds": 120}},
            {
                "run": f"{COMMIT}; git pull -q --no-edit team agent1 && git push -q team HEAD:agent2; echo code $?"
            },
            {"run": "send_message agent1 merged"},
        ],
    }
    run(
        "r", agent="scripted", agent_config=write_demo_script(tmp_path, chapters), backend="modal", dataset_dir=demo_dir(),
        repo="coinage_task", task_id=3, features=[1, 3], logs_dir=tmp_path / "logs", git_enabled=True,
    )  # fmt: skip
    left = Left(tmp_path / "logs/r/coop/coinage_task/3/f1_f3")
    pushed, refused, sent, read, pulled = left.observations("agent1")[1:]
    assert "code 0" in pushed
    assert "agent2 is your colleague's branch" in refused
    assert refused.split()[-1] == "lo"
    assert "eth" not in refused
    assert sent == "Message sent.\n"
    assert "From agent2:\n" in read
    assert pulled.strip() == "agent2"
    assert [message["message"] for message in left.json("conversation.json")["messages"]] == [
        "it is pushed",
        "merged",
    ]
    assert left.patch("agent1") == left.patch("agent2")
    assert left.evaluation["overall_success"] is True
    assert left.result["git"]["pushes"] == {"agent1": 1, "agent2": 1}
    assert left.result["image_digest"].startswith("im-")
    assert plane.running() == []
    purposes = [
        guest.tags["cooperbench-purpose"]
        for guest in plane.guests.values()
        if guest.tags.get("cooperbench-run") == "r"
    ]
    assert purposes.count("agent") == 2


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_stop_leaves_nothing_running(plane: Plane, tmp_path: Path, number: int) -> None:
    write_buildable(tmp_path / "dataset")
    plane.add_dataset(tmp_path / "dataset")
    script = tmp_path / "script.yaml"
    steps = [{"run": "sleep 600"}]
    script.write_text(yaml.safe_dump({"repos": {"tiny_task": {7: {"coop": {"*": steps}}}}}))
    command = [
        sys.executable, "-m", "cooperbench", "run", "-n", "stopped", "-a", "scripted", "--agent-config", str(script),
        "--backend", "modal", "--dataset-dir", str(tmp_path / "dataset"), "--log-dir", str(tmp_path / "logs"),
        "-f", "1,2", "--no-messaging", "--json",
    ]  # fmt: skip
    process = subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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
