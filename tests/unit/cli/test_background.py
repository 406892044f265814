"""`cooperbench status` of runs that no process works on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import main
from tests.support.report.factory import Kind, Style, layout, share, write_run

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = layout(1, 2, 4)


def write(logs: Path, shares: dict[Kind, float]) -> None:
    write_run(logs, "r", PAIRS, share(shares), style=Style(bare=True))


@pytest.mark.parametrize(
    ("shares", "state"),
    [
        ({"passed": 1, "conflict": 1}, "finished"),
        ({"passed": 1, "missing": 1}, "not running; rerun the same command to continue"),
        ({"passed": 1, "unevaluated": 1}, "not running; rerun the same command to continue"),
        ({"error": 1}, "not running; rerun the same command to continue"),
    ],
)
def test_status_says_whether_work_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shares: dict[Kind, float], state: str
) -> None:
    write(tmp_path, shares)
    assert main(["status", "r", "--log-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"r: {state}"


def test_status_counts_pairs_by_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"passed": 1, "missing": 1})
    assert main(["status", "r", "--json", "--log-dir", str(tmp_path)]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["driver"] is None
    assert content["pairs"] == {"coop": {"passed": 3, "missing": 1}}
    assert content["running"] == []


def test_unknown_run_names_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"passed": 1})
    assert main(["status", "rr", "--log-dir", str(tmp_path)]) == 2
    assert "no experiment 'rr' in " in (error := capsys.readouterr().err)
    assert error.endswith("; available: r\n")
