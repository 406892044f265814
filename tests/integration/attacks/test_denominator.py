"""Whatever an agent destroys is its outcome: the pair has a result, is judged and counted, and is not run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.attacks.outcome import check_outcome

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_an_agent_stays_in_the_denominator(tmp_path: Path, attacker: str) -> None:
    check_outcome(tmp_path, attacker, ATTACKERS[attacker], "local")
