"""Check that an attack of an agent is an outcome: scored, counted, and not run again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path


def check_outcome(
    folder: Path,
    attacker: str,
    statuses: set[str],
    backend: str,
    module: str = "agents",
    **options: Any,
) -> str:
    """Returns the patch of the attacker."""
    left = run_tiny(
        folder,
        f"tests.support.attacks.{module}:{attacker},oracle",
        backend=backend,
        run_name="attack",
        **options,
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
