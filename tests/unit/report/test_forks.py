"""Effects of interventions, checked against scipy and statsmodels."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import records
from cooperbench.lab.registration import Design, Hypothesis, register_plan
from cooperbench.records.forks import ForkArm, ForkedPair, ForksRecord
from cooperbench.records.plan import PlannedFactor, PlannedFork
from cooperbench.report.contingency import fisher_exact
from cooperbench.report.fork_tree import fork_trees
from cooperbench.report.forks import analyse_forks, effect_of_one_pair, forks_table
from cooperbench.report.loading import arm_folders, load_folder
from cooperbench.storage import ExperimentPaths
from tests.support.report.factory import Style, keys_of, layout, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.report.pairs import PairKey
    from tests.support.report.factory import Kind


def zeros_and_ones(successes: int, n: int) -> list[float]:
    return [1.0] * successes + [0.0] * (n - successes)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("m", [1, 5, 7])
def test_one_pair_is_estimated_over_its_repetitions(n: int, m: int) -> None:
    for successes in range(n + 1):
        for others in range(m + 1):
            control, treated = zeros_and_ones(successes, n), zeros_and_ones(others, m)
            estimate = effect_of_one_pair(control, treated, is_share=True)
            low, high = proportion.confint_proportions_2indep(
                others, m, successes, n, method="newcomb", compare="diff"
            )
            assert estimate.low == pytest.approx(low, abs=1e-9)
            assert estimate.high == pytest.approx(high, abs=1e-9)
            expected = stats.fisher_exact([[successes, n - successes], [others, m - others]])
            assert fisher_exact(successes, n, others, m) == pytest.approx(expected.pvalue)


def test_cost_of_one_pair_has_an_interval_that_is_not_narrower_than_welchs() -> None:
    control, treated = [1.0, 2.5, 3.0, 2.0], [4.0, 7.5, 5.0]
    estimate = effect_of_one_pair(control, treated, is_share=False)
    compared = weightstats.CompareMeans(
        weightstats.DescrStatsW(treated), weightstats.DescrStatsW(control)
    )
    low, high = compared.tconfint_diff(usevar="unequal")
    assert estimate.value == pytest.approx(5.5 - 2.125)
    assert estimate.low is not None
    assert estimate.high is not None
    assert low - 2 < estimate.low <= low
    assert high <= estimate.high < high + 2
    alone = effect_of_one_pair([1.0], [3.0], is_share=False)
    assert (alone.value, alone.low, alone.note) == (2.0, None, "one repetition: no interval")


pytestmark = pytest.mark.xdist_group("scipy")
stats: Any = import_module("scipy.stats")
proportion: Any = import_module("statsmodels.stats.proportion")
weightstats: Any = import_module("statsmodels.stats.weightstats")
PAIRS = layout(1, 3, 6)
STYLE = Style(bare=True)


def write_forks(logs: Path, arms: dict[str, set[int]]) -> Path:
    """Arms in which the pairs at some positions pass."""
    keys = keys_of(PAIRS)
    listed = []
    for name, passing in arms.items():

        def kind_of(key: PairKey, passing: set[int] = passing) -> Kind:
            return "passed" if keys.index(key) in passing else "capability"

        write_run(logs, f"f/{name}", PAIRS, kind_of, style=STYLE)
        kind = name.partition("@")[0]
        listed.append(ForkArm(name=name, kind=kind, text=f"text of {kind}", round=1))
    forked = [
        ForkedPair(
            pair=f"coop/{key.repo}/{key.task_id}/{key.group}",
            result_sha256="",
            exchanges={"agent1": 2, "agent2": 1},
            steps={"agent1": 2, "agent2": 1},
            messages=1,
        )
        for key in keys
    ]
    record = ForksRecord(name="f", run="r", fork_point="message:1", pairs=forked, arms=listed)
    records.write(logs / "f/forks.json", record)
    return logs / "f"


def test_pairs_are_the_clusters_and_repetitions_are_averaged(tmp_path: Path) -> None:
    everything = set(range(6))
    folder = write_forks(
        tmp_path,
        {
            "control": everything,
            "control@2": {0, 1, 2},
            "drop-message": {0},
            "drop-message@2": set(),
        },
    )
    runs = [load_folder(arm) for arm in arm_folders(folder)]
    (analysis,) = analyse_forks(runs)
    (overall,) = [effect for effect in analysis.effects if effect.measure == "overall"]
    # By pair: control 1, 1, 1, ½, ½, ½; with the intervention ½, 0, 0, 0, 0, 0.
    changes = [-0.5, -1.0, -1.0, -0.5, -0.5, -0.5]
    expected = weightstats.DescrStatsW(changes)
    assert (overall.pairs, overall.control_forks, overall.forks) == (6, 12, 12)
    assert overall.effect.value == pytest.approx(sum(changes) / 6)
    assert (overall.effect.low, overall.effect.high) == pytest.approx(expected.tconfint_mean())
    assert overall.p == pytest.approx(expected.ttest_mean()[1])
    assert overall.effect.clusters == 6
    assert "−66.7" in forks_table(analysis).texts[1 + 3][-2]


def register(folder: Path, pairs: int, repeat: int, fork_point: str = "message:1") -> None:
    """Write a plan, with its checksum in all arms."""
    names = ["control", "drop-message"]
    factor = PlannedFactor(name="drop-message", levels=names, is_ordered=False)
    fork = PlannedFork(run="r", fork_point=fork_point)
    design = Design("fork", [factor], names, repeat, list(map(str, range(pairs))), fork)
    paths = ExperimentPaths(folder.parent, folder.name)
    plan = register_plan(paths, design, Hypothesis(), results=0)
    records.write(paths.plan, plan)
    for path in folder.glob("*/config.json"):
        config = json.loads(path.read_text())
        config["invocations"][0]["plan_sha256"] = plan.sha256
        path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("pairs", "repeat", "fork_point", "status", "note"),
    [
        (6, 1, "message:1", "planned", "pairs would have 80 % (rough: fewer than 30 pairs)"),
        (6, 3, "message:1", "planned", "drop-message, overall: 6 of 18 planned forks in each arm"),
        # One pair alone has another test.
        (1, 1, "message:1", "exploratory", "Fisher's exact test of drop-message"),
        (6, 1, "agent1:2", "exploratory", "No plan: plan.json is not that of the run and the fork"),
    ],
)  # fmt: skip
def test_which_effects_were_planned(
    tmp_path: Path, pairs: int, repeat: int, fork_point: str, status: str, note: str
) -> None:
    folder = write_forks(tmp_path, {"control": set(range(6)), "drop-message": {0}})
    register(folder, pairs, repeat, fork_point)
    (analysis,) = analyse_forks([load_folder(arm) for arm in arm_folders(folder)])
    marks = {effect.measure: effect.status for effect in analysis.effects}
    assert marks["overall"] == status
    assert marks["strict"] == marks["cost"] == "exploratory"
    table = forks_table(analysis)
    assert any(note in line for line in table.notes)
    assert any(line.startswith(f"{status}: ") for line in table.notes)


def test_without_control_forks_there_is_no_effect(tmp_path: Path) -> None:
    folder = write_forks(tmp_path, {"drop-message": {0}})
    (analysis,) = analyse_forks([load_folder(arm) for arm in arm_folders(folder)])
    assert analysis.effects == ()


def test_the_tree_names_the_first_step_that_differs(tmp_path: Path) -> None:
    key = keys_of(PAIRS)[0]
    for run in ("r", "f/control", "f/drop-message"):
        write_run(tmp_path, run, {key.repo: {key.task_id: [key.features]}}, lambda _: "passed")
    write_forks_record = write_forks(tmp_path / "other", {"control": {0}, "drop-message": set()})
    (tmp_path / "f/forks.json").write_bytes((write_forks_record / "forks.json").read_bytes())
    pair = f"coop/{key.repo}/{key.task_id}/{key.group}"
    path = tmp_path / "f/drop-message" / pair / "agent2/trajectory.json"
    trajectory = json.loads(path.read_text())
    changed = [step for step in trajectory["steps"] if step.get("step", 0) > 1]
    changed[0]["args"] = {"command": "echo other\necho more", "timeout_seconds": 9}
    changed[0]["action"] = "run"
    path.write_text(json.dumps(trajectory))
    runs = [load_folder(arm) for arm in arm_folders(tmp_path / "f")]
    (tree,) = fork_trees(runs)
    assert (tree.run, tree.fork_point) == ("r", "message:1")
    assert tree.replayed == "agent1: 2 model calls, 2 steps; agent2: 1 model call, 1 step"
    control, dropped = tree.branches
    assert (control.arm, control.divergence) == ("control", "")
    assert dropped.divergence.startswith("agent2 at step 2: ")
    assert dropped.divergence.endswith("→ run echo other")
