"""`cooperbench report --coordination`: tables for people, everything with its evidence for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cooperbench.cli import main
from tests.report.factory import Style, Talk, write_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TALK = (
    Talk(1, 1, "I won't touch src/app.py, I promise.\x1b[2J"),
    Talk(2, 1, "I will change part_3 in src/app.py."),
)


def test_the_terminal_shows_numbers_and_broken_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "r", {"alpha_task": {3: [(1, 2)], 4: [(1, 2)]}}, "conflict", style=Style(talk=TALK))
    assert main(["report", "r", "--coordination", "--log-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "messages in a pair 2.0 2.0 2 pairs" in lines
    assert any(
        line.startswith("claims kept 4 67 %") and line.endswith("6 verifiable claims") for line in lines
    )
    assert (
        "alpha_task/task3 f1_f2 agent1 1 I won't touch src/app.py, I promise.\\x1b[2J the patch touches it"
        in lines
    )
    assert "alpha_task/task4 src/app.py 1" in lines
    assert "\x1b" not in shown


def test_json_has_the_evidence_of_every_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "r", {"alpha_task": {3: [(1, 2)]}}, "conflict", style=Style(talk=TALK))
    assert main(["report", "r", "--coordination", "--json", "--log-dir", str(tmp_path)]) == 0
    (run,) = json.loads(capsys.readouterr().out)["coordination"]
    (pair,) = run["pairs"]
    broken = [one for one in pair["claims"] if one["verdict"] == "broken"]
    assert [(one["claim"]["message"], one["claim"]["start"], one["patch_path"]) for one in broken] == [
        (1, 0, "src/app.py")
    ]
    assert (run["run"], run["loss"]["conflict"], pair["features"]) == ("r", 1, [1, 2])
