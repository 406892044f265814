"""The demo with its JavaScript pairs: it must run whole, and say what it always says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import main
from cooperbench.dataset.discovery import demo_dir
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def _node() -> None:
    require_program("node", package="nodejs")


@pytest.mark.usefixtures("_node")
def test_the_demo_shows_what_talking_saves_and_what_it_does_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["demo", "--log-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Coordination deficit: solo 7/8 − coop 6/8 = 12.5 percentage points" in out
    assert "No model is used" in out
    assert f"`cooperbench view demo-coop demo-solo --log-dir {tmp_path}`" in out
    assert out.splitlines()[-1].startswith("or let a model work: `cooperbench run ")
    summary = json.loads((tmp_path / "demo-coop/summary.json").read_text())["settings"]["coop"]
    assert {name: rate["passed"] for name, rate in summary["rates"].items()} == {
        "individual_success": 8,
        "merge_success": 6,
        "merged_success": 6,
        "overall_success": 6,
        "overall_success_strict": 5,
    }
    assert summary["messages"] > 20
    broken = json.loads((tmp_path / "demo-coop/coop/stencil_task/0/f3_f4/eval.json").read_text())[
        "merged"
    ]
    assert broken["error"] == "union merge of stencil/nodes.py: ImportError in test_filters"


@pytest.mark.usefixtures("_node")
def test_the_conflicts_in_the_package_are_those_that_git_finds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "validate",
                "--dataset-dir",
                "demo",
                "--backend",
                "local",
                "--conflicts-only",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((demo_dir() / "gold_conflict_report.json").read_text())
