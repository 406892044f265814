"""An agent whose class raises is scored, gets no other attempt, and does not harm its partner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.runner import agent_code
from tests.support.attacks.outcome import check_outcome
from tests.support.runner.helpers import Left, run_tiny

if TYPE_CHECKING:
    from pathlib import Path

AT_WORK = [
    "RaisesSandboxDead",
    "RaisesSandboxTimeout",
    "RaisesDiskFull",
    "RaisesInterrupted",
    "RaisesUserError",
    "RaisesRunStopped",
    "RaisesSystemExit",
    "RaisesKeyboardInterrupt",
    "RaisesCancelled",
    "RaisesMemoryError",
    "RaisesRecursionError",
    "RaisesUnreadable",
    "RaisesWithoutStatus",
    "RaisesStrangeStatus",
]
BEFORE_WORK = ["RaisesInItsConstructor", "RaisesInPrograms", "RaisesInVersion"]


@pytest.mark.parametrize("attacker", ["RaisesKeyError", "RaisesInfraError"])
def test_a_crash_is_scored_with_the_work_so_far(tmp_path: Path, attacker: str) -> None:
    patch = check_outcome(tmp_path, attacker, {"crashed"}, "local", "crashes")
    assert "honest" in patch
    log = (tmp_path / "logs/attack/errors.log").read_text()
    assert "in crash" in log  # the traceback


@pytest.mark.parametrize("attacker", AT_WORK)
def test_whatever_an_agent_raises_is_its_crash(tmp_path: Path, attacker: str) -> None:
    left = run_alone(tmp_path, attacker)
    assert "honest" in left.patch("solo")


@pytest.mark.parametrize("attacker", BEFORE_WORK)
def test_a_crash_before_the_first_step(tmp_path: Path, attacker: str) -> None:
    run_alone(tmp_path, attacker)


def run_alone(tmp_path: Path, attacker: str) -> Left:
    """Run the agent in solo, without an evaluation, and check that it has crashed."""
    agent = f"tests.support.attacks.crashes:{attacker}"
    left = run_tiny(tmp_path, agent, setting="solo", auto_eval=False)
    assert left.result["status"] == "completed"
    assert left.result["attempt"] == 1
    assert left.result["agents"]["solo"]["status"] == "crashed"
    return left


@pytest.mark.parametrize("attacker", ["TerminatesItsSandbox", "TerminatesItsSandboxQuietly"])
def test_ending_the_own_sandbox_is_an_outcome(tmp_path: Path, attacker: str) -> None:
    check_outcome(tmp_path, attacker, {"sandbox_destroyed"}, "local", "crashes")


@pytest.mark.parametrize("attacker", ["Hangs", "Loops"])
def test_a_thread_that_does_not_end_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attacker: str
) -> None:
    monkeypatch.setattr(agent_code, "GRACE_SECONDS", 0.5)
    started = time.monotonic()
    patch = check_outcome(tmp_path, attacker, {"time_limit"}, "local", "crashes", time_limit=3)
    assert "honest" in patch
    assert time.monotonic() - started < 60
