"""What the attacks of a check mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.author.check import FeatureMeasurement, check_attacks
from cooperbench.eval.validate import AttackResult
from cooperbench.models import Task

if TYPE_CHECKING:
    from pathlib import Path

GUESS = "pass tests that fail, and guess which of their copies must pass (a.py)"
EXIT = "exit with status 0 (a.py)"


@pytest.mark.parametrize(
    ("scored", "state", "detail"),
    [
        ((), "ok", "none of 2 scored"),
        ((GUESS,), "warning", "feature 1: a guess scored; compare more values in its tests"),
        ((EXIT,), "failed", f"feature 1: scored: {EXIT}"),
        ((EXIT, GUESS), "failed", f"feature 1: scored: {EXIT}"),
    ],
)
def test_a_guess_is_a_warning(
    tmp_path: Path, scored: tuple[str, ...], state: str, detail: str
) -> None:
    measurement = FeatureMeasurement(Task("a_task", 1, tmp_path, (1,)).feature(1))
    measurement.attacks = [AttackResult(name, name in scored) for name in (EXIT, GUESS)]
    check = check_attacks([measurement])
    assert (check.state, check.details[0]) == (state, detail)
