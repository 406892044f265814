"""Rates say what they are of; nothing is dropped silently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cooperbench import records
from cooperbench.models import Pair, Task
from cooperbench.records.summary import Summary
from cooperbench.report.loading import load_run
from cooperbench.report.summary import save_summary
from cooperbench.report.summary_text import deficit_text, sandboxes_text, summary_text
from cooperbench.sandbox.contract import ResourceUse
from cooperbench.storage import ExperimentPaths, write_json

if TYPE_CHECKING:
    from pathlib import Path


def saved(paths: ExperimentPaths) -> Summary:
    summary = records.read(paths.summary, Summary)
    assert summary is not None
    return summary


def result(cost: float = 0.5) -> dict[str, Any]:
    agent = {
        "status": "submitted",
        "cost": cost,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "steps": 3,
    }
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
    part = records.to_object(save_summary(paths, {"coop": task.pairs}))["settings"]["coop"]
    assert (
        part["pairs"],
        part["evaluated"],
        part["errors"],
        part["unevaluated"],
        part["missing"],
    ) == (
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
    text = summary_text(saved(paths), "logs/r")
    assert (
        "6 pairs, 2 evaluated (2 ended in an error, 1 not evaluated yet, 1 not run yet: not part of the rates)"
        in text
    )
    assert "overall     1/2  50 %" in text
    assert "\x1b" not in text


def test_no_reference_is_no_error(
    tmp_path: Path,
) -> None:
    paths = ExperimentPaths(tmp_path, "r")
    task = Task("alpha_task", 0, tmp_path, (1, 2, 3))
    reason = "feature 2: the golden patch does not pass: ImportError in \x1b[2Jtest_x"
    evaluations = [
        {
            "status": "no_reference",
            "error": reason,
            "no_reference": {"2": "ImportError"},
            "eval_network": "auto",
        },
        evaluation(passed=True) | {"unsound": [3], "network": "public"},
        evaluation(passed=False) | {"unsound": [], "network": "none"},
    ]
    for pair, judged in zip(task.pairs, evaluations, strict=True):
        write_json(paths.pair(pair, "coop").result, result())
        write_json(paths.pair(pair, "coop").evaluation, judged)
    summary = records.to_object(save_summary(paths, {"coop": task.pairs}))
    part = summary["settings"]["coop"]
    assert (summary["errors"], part["errors"], part["no_reference"], part["evaluated"]) == (
        0,
        0,
        1,
        2,
    )
    assert part["rates"]["overall_success"] == {"passed": 1, "of": 2, "rate": 0.5}
    assert part["unsound"]["pairs"] == 1
    assert part["unsound"]["rates"]["overall_success"] == {"passed": 0, "of": 1, "rate": 0.0}
    assert [(line["state"], line["unsound"], line["network"]) for line in part["results"]] == [
        ("no_reference", [], None),
        ("passed", [3], "public"),
        ("failed", [], "none"),
    ]
    text = summary_text(saved(paths), "logs/r")
    assert "3 pairs, 2 evaluated (1 no reference: not part of the rates)" in text
    assert (
        "no reference  submitted  feature 2: the golden patch does not pass: ImportError in \\x1b[2Jtest_x\n"
        in text
    )
    assert "unsound (feature 3)" in text
    write_json(paths.pair(task.pairs[1], "coop").evaluation, evaluation(passed=True))
    summary = records.to_object(save_summary(paths, {"coop": task.pairs}))
    assert summary["settings"]["coop"]["unsound"] is None
    assert "unsound" not in summary_text(saved(paths), "logs/r")


def test_old_records_have_the_same_state(
    tmp_path: Path,
) -> None:
    """Such files have no status, and not all of today's verdicts."""
    paths = ExperimentPaths(tmp_path, "r")
    task = Task("alpha_task", 0, tmp_path, (1, 2, 3))
    results = [{"agents": result()["agents"]}, {"status": "completed"}, {}]
    evaluations: list[dict[str, Any]] = [
        {"overall_success": True, "merged": {"success": True}},
        {},
        {"overall_success": False},
    ]
    for pair, ran, judged in zip(task.pairs, results, evaluations, strict=True):
        write_json(paths.pair(pair, "coop").result, ran)
        write_json(paths.pair(pair, "coop").evaluation, judged)
    part = records.to_object(save_summary(paths, {}))["settings"]["coop"]
    states = [line["state"] for line in part["results"]]
    assert states == ["passed", "broken", "failed"]
    assert states == [pair.state for pair in load_run(tmp_path, "r").pairs]
    assert part["rates"]["overall_success"]["of"] == 2
    assert part["rates"]["merged_success"] == {"passed": 1, "of": 1, "rate": 1.0}
    assert "1 could not be read" in summary_text(saved(paths), "logs/r")


def test_summary_keeps_pairs_of_earlier_calls(
    tmp_path: Path,
) -> None:
    paths = ExperimentPaths(tmp_path, "r")
    first = Pair(Task("alpha_task", 2, tmp_path, (1, 2)), (1, 2))
    later = Pair(Task("alpha_task", 10, tmp_path, (2, 10)), (2, 10))
    write_json(paths.pair(first, "coop").result, result())
    for stray in (
        "coop/alpha_task/x/f1_f2",
        "coop/alpha_task/2/f1_fx",
        "coop/alpha_task/2/feature",
    ):
        (paths.root / stray).mkdir(parents=True)
    part = records.to_object(save_summary(paths, {"coop": [later]}))["settings"]["coop"]
    assert [(line["task_id"], line["features"], line["state"]) for line in part["results"]] == [
        (2, [1, 2], "unevaluated"),
        (10, [2, 10], "missing"),
    ]


def test_nothing_evaluated_is_no_rate(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "r")
    paths.root.mkdir()
    part = records.to_object(save_summary(paths, {"solo": []}))["settings"]["solo"]
    assert part["rates"]["overall_success"] == {"passed": 0, "of": 0, "rate": None}
    assert "–" in summary_text(saved(paths), "x")
    assert (
        deficit_text(saved(paths).settings["solo"], saved(paths).settings["solo"])
        == "Coordination deficit: nothing to compare yet"
    )


def test_what_sandboxes_use_adds_up_over_calls(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "r")
    save_summary(paths, {"coop": []}, used=ResourceUse(4, "machine", 3600.0, 28800.0, 115200.0))
    save_summary(paths, {"coop": []})
    save_summary(paths, {"coop": []}, used=ResourceUse(1, "machine", 7200.0, 14400.0, 0.0))
    assert msgspec.to_builtins(saved(paths).sandboxes) == {
        "count": 5,
        "what": "machine",
        "seconds": 10800,
        "vcpu_seconds": 43200,
        "gib_seconds": 115200,
    }
    assert summary_text(saved(paths), "logs").splitlines()[-3] == (
        "5 machines, 3.0 machine hours, 12 vCPU hours, 32 GiB hours"
    )


def test_unknown_resource_sizes_are_left_out(
    tmp_path: Path,
) -> None:
    paths = ExperimentPaths(tmp_path, "r")
    older = {
        "count": 1,
        "what": "sandbox",
        "seconds": 1800.0,
        "dollars": 0.5,
        "unpriced_seconds": 0.0,
    }
    write_json(paths.summary, {"sandboxes": older})
    before = saved(paths).sandboxes
    assert before is not None
    assert sandboxes_text(before) == "1 sandbox, 0.5 sandbox hours"
    save_summary(paths, {"coop": []}, used=ResourceUse(1, "sandbox", 1800.0))
    after = saved(paths).sandboxes
    assert after is not None
    assert sandboxes_text(after) == "2 sandboxes, 1.0 sandbox hours"
