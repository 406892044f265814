"""What stops a whole run: its budget, and what a user must mend."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import main
from cooperbench.report.summary import spent_on_disk
from cooperbench.storage import ExperimentPaths
from tests.support.runner.helpers import run_tiny
from tests.support.runner.thinkers import COST, REFUSED, SECRET, THINKER
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("thinking")


def words(tmp_path: Path, agent: str) -> list[str]:
    data = tmp_path / "data"
    if not data.exists():
        write_tiny(data, (1, 2, 3))
    common = [
        "run",
        "-n",
        "r",
        "-a",
        agent,
        "-m",
        "m",
        "--backend",
        "local",
        "-c",
        "1",
        "--log-dir",
    ]
    return [*common, str(tmp_path / "logs"), "--dataset-dir", str(data)]


def test_past_the_budget_no_pair_starts_and_a_higher_one_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair costs 2 calls here. What earlier calls of the command spent counts too."""
    run = [*words(tmp_path, THINKER), "--no-auto-eval", "--no-messaging"]
    pair = 2 * COST

    def call(max_cost: float) -> tuple[int, str]:
        code = main([*run, "--max-cost", str(max_cost)])
        return code, capsys.readouterr().out

    code, out = call(pair * 1.5)
    assert code == 3
    assert "Budget: $1.00 of $0.75 spent; 1 pair was not started" in out
    assert "1 not run yet" in out
    summary = json.loads((tmp_path / "logs/r/summary.json").read_text())
    assert summary["budget"] == {"max_cost": 0.75, "spent": 1.0, "pairs_not_started": 1}
    assert summary["settings"]["coop"]["missing"] == 1
    assert call(pair * 2)[0] == 3
    code, out = call(pair * 2.5)
    assert code == 0
    assert "Budget: $1.50 of $1.25 spent\n" in out


def test_replaced_attempts_count_in_the_cost(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, THINKER, auto_eval=False, model_name="m")
    run_tiny(tmp_path, THINKER, auto_eval=False, model_name="m", force=True)
    paths = ExperimentPaths(tmp_path / "logs", "r")
    assert spent_on_disk(paths) == 8 * COST
    (left.folder / "result.json").unlink()
    trajectory = left.trajectory("agent2")
    (left.folder / "agent2/steps.jsonl").write_text(
        "\n".join(map(json.dumps, trajectory["steps"][:-2]))
    )
    (left.folder / "agent2/trajectory.json").unlink()
    assert spent_on_disk(paths) == 8 * COST


def test_the_status_tells_less_than_a_cent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = run_tiny(tmp_path, THINKER, auto_eval=False, model_name="m")
    (left.folder / "result.json").write_text(json.dumps(left.result | {"cost": 0.0021}))
    assert main(["status", "r", "--log-dir", str(tmp_path / "logs")]) == 0
    assert "spent: $0.0021\n" in capsys.readouterr().out


def test_fatal_error_stops_and_keeps_finished_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    code = main(words(tmp_path, REFUSED))
    err = capsys.readouterr().err
    assert (code, err) == (2, "cooperbench: the key [redacted SOME_API_KEY] is refused\n")
    folder = tmp_path / "logs/r/coop/tiny_task/7"
    assert json.loads((folder / "f1_f2/result.json").read_text())["status"] == "completed"
    assert not (folder / "f1_f3/result.json").exists()
    assert not (folder / "f2_f3").exists()
    whole = json.loads((tmp_path / "logs/r/summary.json").read_text())
    assert whole["spent"] - whole["cost"] in (COST, 2 * COST), (
        "what was broken off was paid for, too"
    )
    summary = whole["settings"]["coop"]
    assert (summary["errors"], summary["missing"], summary["cost"]) == (0, 2, 2 * COST)
    for path in (tmp_path / "logs").rglob("*"):
        assert not path.is_file() or SECRET not in path.read_text("utf-8", "replace")


def test_unusable_model_is_rejected_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*words(tmp_path, THINKER), "-m", "m,nobody"])
    assert (code, capsys.readouterr().err) == (2, "cooperbench: model 'nobody' is unknown\n")
    assert not (tmp_path / "logs").exists()


def test_the_limit_of_one_agent_is_an_outcome_with_its_work(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, THINKER, (1, 4), setting="solo", model_name="m", cost_limit=COST)
    solo = left.result["agents"]["solo"]
    assert (solo["status"], solo["cost"]) == ("cost_limit", COST)
    assert "+feature 1\n" in left.patch("solo")
    assert left.evaluation["solo"]["features"]["1"]["success"] is True
