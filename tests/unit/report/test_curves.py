"""The curve over the number of agents: which groups count, with which weight, and what stands beside it."""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import main
from cooperbench.report.analysis import analyse
from cooperbench.report.loading import load_run
from cooperbench.report.statistics import Observation, mean
from tests.support.report.factory import Kind, Style, keys_of, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.models import Setting
    from cooperbench.report.pairs import PairKey

BARE = Style(("a",) * 4, ("m",) * 4, bare=True, talk=(), dataset="data")


def groups(features: int, *sizes: int) -> list[tuple[int, ...]]:
    return [one for size in sizes for one in combinations(range(1, features + 1), size)]


LAYOUT = {
    "a_task": {task: groups(4, 2, 3, 4) for task in (1, 2, 3)},
    "b_task": {9: groups(3, 2, 3)},
}


def kind_of(key: PairKey) -> Kind:
    """Groups with feature 4 conflict in odd tasks, those of four fail everywhere else."""
    if key.task_id % 2 and 4 in key.features:
        return "conflict"
    return "integration" if len(key.features) == 4 else "passed"


@pytest.mark.parametrize("setting", ["coop", "team"])
def test_points_rest_on_the_same_features(tmp_path: Path, setting: Setting) -> None:
    write_run(tmp_path, "r", LAYOUT, kind_of, setting=setting, style=BARE)
    (curve,) = analyse([load_run(tmp_path, "r")]).agent_curves
    assert (curve.setting, [point.agents for point in curve.points]) == (setting, [2, 3, 4])
    # The task with three features has no group of four: its groups are in no point.
    assert (curve.left_out, [point.groups for point in curve.points]) == (4, [18, 12, 3])
    # Of six pairs three have feature 4, of four groups of three, three.
    for point, share in zip(curve.points, (3 / 6, 1 / 4, 0.0), strict=True):
        shares = [share, 1.0 if point.agents < 4 else 0.0, share]
        keys = [key for key in keys_of(LAYOUT) if len(key.features) == 4]
        expected = mean(
            [Observation(key, value) for key, value in zip(keys, shares, strict=True)], (0.0, 1.0)
        )
        overall = point.rates["overall"]
        assert (overall.value, overall.low, overall.high) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )
        assert (overall.n, overall.clusters) == (3, 3)
        merged = (share + 1.0 + share) / 3
        assert point.rates["merge"].value == pytest.approx(merged)
        assert point.golden is None
    assert curve.points[0].change.value == 0.0
    assert curve.points[1].change.value == pytest.approx(-2 * 0.25 / 3)
    assert curve.points[2].change.value == pytest.approx(-2 / 3)


def test_runs_of_one_configuration_make_one_curve(tmp_path: Path) -> None:
    for size in (2, 3):
        pairs = {"a_task": {task: groups(3, size) for task in (1, 2)}}
        write_run(tmp_path, f"n{size}", pairs, kind_of, style=BARE)
        write_run(tmp_path, f"n{size}", pairs, "passed", setting="solo", style=BARE)
    curves = analyse([load_run(tmp_path, "n2"), load_run(tmp_path, "n3")]).agent_curves
    assert [(curve.runs, curve.setting) for curve in curves] == [
        (("n2", "n3"), "coop"), (("n2", "n3"), "solo"),
    ]  # fmt: skip
    assert [*curves[1].points[0].rates] == ["overall"]
    assert analyse([load_run(tmp_path, "n2")]).agent_curves == ()


def test_golden_patches_are_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "logs", "r", LAYOUT, kind_of, style=BARE)
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("COOPERBENCH_DATASET_DIR", str(data))
    words = ["report", "r", "--log-dir", str(tmp_path / "logs")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "By number of agents: r (coop)" in out
    assert (
        "golden patches: not known for all; cooperbench validate --conflicts-only --agents 2,3,4"
        in out
    )
    known = [
        {
            "repo": key.repo,
            "task_id": key.task_id,
            "features": key.features,
            "status": "clean",
            "files": [],
            "union": False,
            "conflict": {1, 2} <= {*key.features},
        }
        for key in keys_of(LAYOUT)
    ]
    report = {"schema": "cooperbench.gold_conflicts/1", "pairs": known}
    (data / "gold_conflict_report.json").write_text(json.dumps(report))
    assert main([*words, "--json"]) == 0
    (curve,) = json.loads(capsys.readouterr().out)["agent_curves"]
    assert [point["golden"]["value"] for point in curve["points"]] == pytest.approx(
        [5 / 6, 1 / 2, 0.0]
    )
    monkeypatch.setenv("COOPERBENCH_DATASET_DIR", str(tmp_path))
    assert main([*words, "--json"]) == 0
    (curve,) = json.loads(capsys.readouterr().out)["agent_curves"]
    assert [point["golden"] for point in curve["points"]] == [None] * 3
