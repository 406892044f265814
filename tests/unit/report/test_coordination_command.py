"""`cooperbench report --coordination`: tables for people, everything with its evidence for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cooperbench.cli import main
from tests.support.report.factory import Style, Talk, write_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TALK = (
    Talk(1, 1, "I won't touch src/app.py, I promise.\x1b[2J You change part_17 there."),
    Talk(2, 1, "I will change part_3 in src/app.py."),
)


def test_the_terminal_shows_numbers_and_conflicts_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(
        tmp_path,
        "r",
        {"alpha_task": {3: [(1, 2)], 4: [(1, 2)]}},
        "conflict",
        style=Style(talk=TALK),
    )
    assert main(["report", "r", "--coordination", "--log-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "messages in a pair 2.0 2 pairs" in lines
    assert any(line.startswith("named and touched by nobody 25 %") for line in lines)
    assert "alpha_task/task4 src/app.py: 1 pair" in lines
    assert "\x1b" not in shown


def test_json_has_the_evidence_of_every_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "r", {"alpha_task": {3: [(1, 2)]}}, "conflict", style=Style(talk=TALK))
    assert main(["report", "r", "--coordination", "--json", "--log-dir", str(tmp_path)]) == 0
    (run,) = json.loads(capsys.readouterr().out)["coordination"]
    (pair,) = run["pairs"]
    named = next(one for one in pair["mentions"] if one["sender"] == "agent1")
    assert (named["messages"], named["name"], named["touched_by_other"]) == (
        [1],
        "src/app.py",
        True,
    )
    assert [(touch["agent_id"], touch["path"]) for touch in named["touches"]] == [
        ("agent1", "src/app.py"),
        ("agent2", "src/app.py"),
    ]
    assert (run["run"], run["loss"]["conflict"], pair["features"]) == ("r", 1, [1, 2])
