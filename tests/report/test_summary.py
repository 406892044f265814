"""Rates say what they are of; nothing is dropped silently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.eval.backends.base import Estimate
from cooperbench.models import Pair, Task
from cooperbench.report.summary import save_summary
from cooperbench.report.table import deficit_text, summary_text
from cooperbench.storage import ExperimentPaths, write_json

if TYPE_CHECKING:
    from pathlib import Path


def result(cost: float = 0.5) -> dict[str, Any]:
    agent = {"status": "submitted", "cost": cost, "prompt_tokens": 10, "completion_tokens": 5, "steps": 3}
    return {
        "status": "completed",
        "agents": {"agent1": agent, "agent2": agent},
        "messages": 2,
        "duration_seconds": 1.5,
    }


def evaluation(*, passed: bool) -> dict[str, Any]:
    agent = {"success": True}
    merged = {
        "success": passed,
        "merge_status": "clean",
        "strategy": "plain",
        "error": None if passed else "boom",
    }
    return {
        "status": "completed", "agent1": agent, "agent2": agent, "merged": merged, "individual_success": True,
        "merge_success": True, "overall_success": passed, "overall_success_strict": passed, "duration_seconds": 2.0,
    }  # fmt: skip


def test_every_state_is_counted_and_rates_are_over_verdicts(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "r")
    task = Task("alpha_task", 0, tmp_path, (1, 2, 3, 4))
    passed, failed, broken, waiting, _, unjudged = task.pairs
    for pair, ok in ((passed, True), (failed, False)):
        write_json(paths.pair(pair, "coop").result, result())
        write_json(paths.pair(pair, "coop").evaluation, evaluation(passed=ok))
    write_json(paths.pair(broken, "coop").result, {"status": "error", "error": "no\x1b[2J disk"})
    write_json(paths.pair(waiting, "coop").result, result())
    write_json(paths.pair(unjudged, "coop").result, result())
    write_json(paths.pair(unjudged, "coop").evaluation, {"status": "error", "error": "lost"})
    part = save_summary(paths, {"coop": task.pairs})["settings"]["coop"]
    assert (part["pairs"], part["evaluated"], part["errors"], part["unevaluated"], part["missing"]) == (
        6,
        2,
        2,
        1,
        1,
    )
    assert part["rates"]["overall_success"] == {"passed": 1, "of": 2, "rate": 0.5}
    assert part["agent_success"] == {"passed": 4, "of": 4, "rate": 1.0}
    assert part["cost"] == 4 * 2 * 0.5
    assert [line["state"] for line in part["results"]] == [
        "passed",
        "failed",
        "error",
        "unevaluated",
        "missing",
        "error",
    ]
    text = summary_text({"settings": {"coop": part}}, "logs/r")
    assert (
        "6 pairs, 2 evaluated (2 ended in an error, 1 not evaluated yet, 1 not run yet: not part of the rates)"
        in text
    )
    assert "overall     1/2  50 %" in text
    assert "\x1b" not in text


def test_pairs_of_earlier_calls_stay_in_the_summary_and_stray_folders_do_not_matter(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "r")
    first = Pair(Task("alpha_task", 2, tmp_path, (1, 2)), (1, 2))
    later = Pair(Task("alpha_task", 10, tmp_path, (2, 10)), (2, 10))
    write_json(paths.pair(first, "coop").result, result())
    for stray in ("coop/alpha_task/x/f1_f2", "coop/alpha_task/2/f1_fx", "coop/alpha_task/2/feature"):
        (paths.root / stray).mkdir(parents=True)
    part = save_summary(paths, {"coop": [later]})["settings"]["coop"]
    assert [(line["task_id"], line["features"], line["state"]) for line in part["results"]] == [
        (2, [1, 2], "unevaluated"),
        (10, [2, 10], "missing"),
    ]


def test_nothing_evaluated_is_no_rate(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "r")
    paths.root.mkdir()
    part = save_summary(paths, {"solo": []})["settings"]["solo"]
    assert part["rates"]["overall_success"] == {"passed": 0, "of": 0, "rate": None}
    assert "–" in summary_text({"settings": {"solo": part}}, "x")
    assert deficit_text(part, part) == "Coordination deficit: nothing to compare yet"


def test_what_sandboxes_cost_adds_up_over_calls(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "r")
    save_summary(paths, {"coop": []}, estimate=Estimate(4, "sandbox", 3600.0, 1.5, 0.0, "2026-06-27"))
    save_summary(paths, {"coop": []})
    summary = save_summary(
        paths, {"coop": []}, estimate=Estimate(1, "sandbox", 7200.0, 0.25, 360.0, "2026-06-28")
    )
    assert summary_text(summary, "logs").splitlines()[-3] == (
        "5 sandboxes, 3.0 hours: about $1.75 (list prices of 2026-06-28), "
        "without 0.1 hours of resources without a known price"
    )
