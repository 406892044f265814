"""The same features with one, two and four agents: the effect is known, and has to be found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from cooperbench.report.analysis import analyse
from cooperbench.report.loading import load_run
from cooperbench.report.page.overview import make_overview
from cooperbench.report.statistics import Observation, mean
from cooperbench.report.workload import WorkloadCurve, workload_curves
from tests.support.report.factory import Kind, Style, keys_of, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.models import Setting
    from cooperbench.report.pairs import PairKey

BARE = Style(("a",) * 4, ("m",) * 4, bare=True, talk=(), dataset="data")
LAYOUT = {"a_task": {task: [(1, 2, 3, 4)] for task in range(1, 7)}}


def odd_tasks_conflict(key: PairKey) -> Kind:
    return "conflict" if key.task_id % 2 else "passed"


def write_scaling(logs: Path, setting: Setting = "coop", **style: Any) -> None:
    """Write solo runs that pass, two agents that pass in half of the tasks, four that never do."""
    look = replace(BARE, **style)
    write_run(logs, "n1", LAYOUT, "passed", setting="solo", style=replace(BARE, steps=8))
    two = replace(look, agent_count=2, steps=5)
    write_run(logs, "n2", LAYOUT, odd_tasks_conflict, setting=setting, style=two)
    four = replace(BARE, steps=4)
    write_run(logs, "n4", LAYOUT, "conflict", setting=setting, style=four)


def load_curves(logs: Path, *names: str) -> list[WorkloadCurve]:
    return workload_curves([load_run(logs, name) for name in names], "clustered")


@pytest.mark.parametrize("setting", ["coop", "team"])
def test_effect_of_the_number_of_agents(tmp_path: Path, setting: Setting) -> None:
    write_scaling(tmp_path, setting)
    (curve,) = load_curves(tmp_path, "n1", "n2", "n4")
    assert (curve.runs, curve.setting, curve.split) == (("n1", "n2", "n4"), setting, "even")
    assert (curve.features, curve.groups, curve.left_out) == (4, 6, 0)
    assert [point.agents for point in curve.points] == [1, 2, 4]
    one, two, four = curve.points
    assert [point.means["overall"].value for point in curve.points] == [1.0, 0.5, 0.0]
    assert "merge" not in one.means
    assert (two.means["merge"].value, four.means["merge"].value) == (0.5, 0.0)
    assert four.changes["merge"].value == -0.5
    assert [point.means["wall_seconds"].value for point in curve.points] == [90.0, 60.0, 50.0]
    assert four.changes["wall_seconds"].value == -40.0
    assert [point.means["cost"].value for point in curve.points] == [0.25, 0.5, 1.0]
    keys = keys_of(LAYOUT)
    changes = [Observation(key, -1.0 if key.task_id % 2 else 0.0) for key in keys]
    expected = mean(changes, (-1.0, 1.0))
    change = two.changes["overall"]
    assert (change.value, change.low, change.high) == (-0.5, expected.low, expected.high)
    assert change.n == change.clusters == 6


def test_only_groups_with_every_number_of_agents(tmp_path: Path) -> None:
    write_scaling(tmp_path)
    more = {"a_task": {task: [(1, 2, 3, 4)] for task in (7, 8)}}
    write_run(tmp_path, "n2b", more, "passed", style=replace(BARE, agent_count=2))
    (curve,) = load_curves(tmp_path, "n1", "n2", "n2b", "n4")
    assert (curve.groups, curve.left_out) == (6, 2)
    assert curve.points[1].means["overall"].value == 0.5


def test_each_split_and_number_of_features_has_a_curve(tmp_path: Path) -> None:
    write_scaling(tmp_path)
    style = replace(BARE, agent_count=2, split="together")
    write_run(tmp_path, "together", LAYOUT, "passed", style=style)
    threes = {"a_task": {1: [(1, 2, 3)]}}
    write_run(tmp_path, "threes", threes, "passed", style=replace(BARE, agent_count=2))
    write_run(tmp_path, "threes", threes, "passed", setting="solo", style=BARE)
    curves = load_curves(tmp_path, "n1", "n2", "n4", "together", "threes")
    shapes = [(curve.split, curve.features, len(curve.points)) for curve in curves]
    assert shapes == [("even", 4, 3), ("together", 4, 3), ("even", 3, 2)]


@pytest.mark.parametrize("other", [{"models": ("x",) * 4}, {"dataset": "other"}])
def test_other_configurations_are_not_mixed(tmp_path: Path, other: dict[str, Any]) -> None:
    write_run(tmp_path, "n1", LAYOUT, "passed", setting="solo", style=replace(BARE, **other))
    write_run(tmp_path, "n2", LAYOUT, "passed", style=replace(BARE, agent_count=2))
    assert load_curves(tmp_path, "n1", "n2") == []


def test_pairs_of_two_features_have_no_curve(tmp_path: Path) -> None:
    layout = {"a_task": {1: [(1, 2)], 2: [(1, 2)]}}
    write_run(tmp_path, "r", layout, "passed", style=BARE)
    write_run(tmp_path, "r", layout, "passed", setting="solo", style=BARE)
    analysis = analyse([load_run(tmp_path, "r")])
    assert analysis.workload_curves == ()
    assert analysis.coordination_deficits


def test_report_and_page_show_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scaling(tmp_path)
    assert main(["report", "n1", "n2", "n4", "--log-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("4 features by number of agents: n1, n2, n4 (coop)")
    table = "\n".join(lines[start : start + 14])
    assert "  overall    100 %" in table
    assert "  wall time  90.0 s" in table
    assert "−40.0 s" in table
    assert "Mismatches" not in "\n".join(lines)
    overview = make_overview([load_run(tmp_path, name) for name in ("n1", "n2", "n4")])
    (figure,) = overview.workload
    assert figure.table.title == "4 features by number of agents: n1, n2, n4 (coop)"


def test_groups_of_given_agents_are_a_curve_over_features(tmp_path: Path) -> None:
    layout = {"a_task": {1: [(1, 2, 3), (1, 2, 3, 4)]}}
    write_run(tmp_path, "r", layout, "passed", style=replace(BARE, agent_count=2))
    (curve,) = analyse([load_run(tmp_path, "r")]).agent_curves
    assert curve.unit == "features"
