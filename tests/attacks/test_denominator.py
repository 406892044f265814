"""Whatever an agent destroys is its outcome: the pair has a result, is judged and counted, and is not run again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path

ATTACKERS = {
    "KillsEverything": {"sandbox_destroyed"},
    "KillsEverythingLater": {"sandbox_destroyed"},
    "HandsInTooMuch": {"patch_lost"},
    "HandsInABomb": {"submitted", "patch_lost"},
    "RemovesTheRepository": {"submitted"},
    "LeavesStrangeFiles": {"submitted"},
}
"""Statuses that are right."""


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_an_agent_stays_in_the_denominator(tmp_path: Path, attacker: str) -> None:
    left = run_tiny(tmp_path, f"tests.attacks.agents:{attacker},oracle")
    assert left.result["status"] == "completed"
    assert left.result["attempt"] == 1
    assert left.result["agents"]["agent1"]["status"] in ATTACKERS[attacker]
    assert left.result["agents"]["agent2"]["status"] == "submitted"
    evaluation = left.evaluation
    assert evaluation["status"] == "completed"
    assert not evaluation["overall_success"]
    assert not evaluation["agent1"]["success"]
    assert evaluation["agent2"]["success"]
    summary = json.loads((tmp_path / "logs/r/summary.json").read_text())["settings"]["coop"]
    assert (summary["evaluated"], summary["errors"]) == (1, 0)
    assert sum(path.stat().st_size for path in left.folder.rglob("*") if path.is_file()) < 20_000_000
