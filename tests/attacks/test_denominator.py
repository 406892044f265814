"""Whatever an agent destroys is its outcome: the pair has a result, is judged and counted, and is not run again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.backends.docker.tasks import write_buildable
from tests.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.backends.docker import DockerBackend

ATTACKERS = {
    "KillsEverything": {"sandbox_destroyed", "submitted"},
    "KillsEverythingLater": {"sandbox_destroyed", "submitted"},
    "StopsEverything": {"sandbox_destroyed", "submitted", "time_limit"},
    "HandsInTooMuch": {"patch_lost"},
    "HandsInABomb": {"submitted", "patch_lost"},
    "RemovesTheRepository": {"submitted"},
    "LeavesStrangeFiles": {"submitted"},
    "HidesItsPatch": {"submitted"},
    "ReplacesItsPatch": {"submitted", "patch_lost"},
    "MovesTheHarness": {"sandbox_destroyed"},
    "ClosesItsShells": {"sandbox_destroyed"},
}
"""Statuses that are right."""


IN_CONTAINERS = {
    "KillsEverything": {"sandbox_destroyed", "submitted"},
    "KillsEverythingLater": {"sandbox_destroyed", "submitted"},
    "StopsEverything": {"sandbox_destroyed", "submitted", "time_limit"},
    "HandsInTooMuch": {"patch_lost"},
    "BreaksGit": {"submitted"},
    "ReplacesGit": {"submitted"},
    "RemovesBash": {"sandbox_destroyed", "submitted"},
    "HidesItsPatch": {"submitted"},
    "ReplacesItsPatch": {"submitted", "patch_lost"},
}
"""There agents are root and can replace what they like."""


def check_outcome(folder: Path, attacker: str, statuses: set[str], backend: str) -> str:
    """Returns the patch of the attacker."""
    left = run_tiny(
        folder, f"tests.attacks.agents:{attacker},oracle", backend=backend, run_name="attack"
    )
    assert left.result["status"] == "completed"
    assert left.result["attempt"] == 1
    assert left.result["agents"]["agent1"]["status"] in statuses
    assert left.result["agents"]["agent2"]["status"] == "submitted"
    evaluation = left.evaluation
    assert evaluation["status"] == "completed"
    assert not evaluation["overall_success"]
    assert not evaluation["agent1"]["success"]
    assert evaluation["agent2"]["success"]
    summary = json.loads((folder / "logs/attack/summary.json").read_text())["settings"]["coop"]
    assert (summary["evaluated"], summary["errors"]) == (1, 0)
    assert (
        sum(path.stat().st_size for path in left.folder.rglob("*") if path.is_file()) < 20_000_000
    )
    return left.patch()


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_an_agent_stays_in_the_denominator(tmp_path: Path, attacker: str) -> None:
    check_outcome(tmp_path, attacker, ATTACKERS[attacker], "local")


@pytest.mark.parametrize("attacker", IN_CONTAINERS)
def test_an_agent_in_a_container_stays_in_the_denominator(
    docker: DockerBackend,
    base_image: str,
    engine_kind: str,
    tmp_path: Path,
    attacker: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if engine_kind != "docker":
        pytest.skip("once is enough: to agents both engines are the same sandbox")
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={base_image}")
    monkeypatch.setattr("cooperbench.runner.pair.SNAPSHOT_SECONDS", 5)
    write_buildable(tmp_path / "data")
    patch = check_outcome(tmp_path, attacker, IN_CONTAINERS[attacker], "docker")
    if attacker in ("BreaksGit", "ReplacesGit"):
        assert "+line 6 honest\n" in patch, "its work is taken by the tools of another container"
