"""plan.json: what a call adds to it, and what leaves it unchanged."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.lab.registration import Design, Hypothesis, register_plan
from cooperbench.records.plan import PlannedFactor, PlanRecord
from cooperbench.storage import ExperimentPaths

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = ("r_task/1/f1_f2", "r_task/2/f1_f2")


def design(
    levels: tuple[str, ...] = ("0", "3"), pairs: tuple[str, ...] = PAIRS, repeat: int = 1
) -> Design:
    factor = PlannedFactor(name="messages", levels=list(levels), is_ordered=True)
    return Design("sweep", [factor], [f"messages={level}" for level in levels], repeat, pairs)


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    return ExperimentPaths(tmp_path, "s")


def save(paths: ExperimentPaths, made: Design, hypothesis: Hypothesis, results: int) -> PlanRecord:
    plan = register_plan(paths, made, hypothesis, results)
    records.write(paths.plan, plan)
    assert hashlib.sha256(paths.plan.read_bytes()).hexdigest() == plan.sha256
    return plan


def test_first_plan(paths: ExperimentPaths) -> None:
    plan = save(paths, design(), Hypothesis(primary="strict", effect=0.3), 0)
    assert [(test.factor, test.measure, test.test) for test in plan.tests] == [
        ("messages", "strict", "trend")
    ]
    assert (plan.power.effect, plan.power.discordant, plan.power.pairs) == (0.3, 0.5, 2)
    assert plan.amendments == []
    assert records.read(paths.plan, PlanRecord) == plan


def test_calls_that_do_no_more_leave_the_plan(paths: ExperimentPaths) -> None:
    plan = save(paths, design(), Hypothesis(primary="strict"), 0)
    for made in (design(), design(("3",)), design(pairs=PAIRS[:1])):
        assert register_plan(paths, made, Hypothesis(), 3) == plan
    assert register_plan(paths, design(), Hypothesis(primary="strict"), 3) == plan


@pytest.mark.parametrize(
    ("made", "hypothesis", "changes", "tests"),
    [
        (design(("0", "1", "unlimited")), Hypothesis(), ["messages: 1, unlimited added", "2 conditions added"], 1),
        (design(pairs=(*PAIRS, "r_task/3/f1_f2")), Hypothesis(), ["1 pair added"], 1),
        (design(repeat=2), Hypothesis(), ["repeat: 1 → 2"], 1),
        (design(), Hypothesis(primary="merge"), ["primary: overall → merge"], 1),
        (design(), Hypothesis(effect=0.2), ["effect: 0.15 → 0.2"], 0),
    ],
)  # fmt: skip
def test_what_a_call_adds_is_an_amendment(
    paths: ExperimentPaths, made: Design, hypothesis: Hypothesis, changes: list[str], tests: int
) -> None:
    first = save(paths, design(), Hypothesis(), 0)
    second = save(paths, made, hypothesis, 5)
    (amendment,) = second.amendments
    assert (amendment.results, amendment.changes) == (5, changes)
    assert amendment.replaced_sha256 == first.sha256
    assert len(amendment.tests) == tests
    assert second.time == first.time
    assert "0" in second.factors[0].levels
    # It is part of the plan from now on.
    assert register_plan(paths, made, hypothesis, 9) == second


def test_levels_stay_in_their_order(paths: ExperimentPaths) -> None:
    save(paths, design(("unlimited", "3")), Hypothesis(), 0)
    plan = save(paths, design(("10", "0")), Hypothesis(), 0)
    assert plan.factors[0].levels == ["0", "3", "10", "unlimited"]


def test_plan_after_the_start(paths: ExperimentPaths) -> None:
    """A study of an older version, which had no plan."""
    plan = register_plan(paths, design(), Hypothesis(), 4)
    (amendment,) = plan.amendments
    assert amendment.tests == plan.tests
    assert amendment.results == 4


def test_bad_plans(paths: ExperimentPaths) -> None:
    paths.root.mkdir()
    paths.plan.write_text('{"schema": "other/1"}')
    with pytest.raises(UserError, match="is not a plan of this version; choose another name"):
        register_plan(paths, design(), Hypothesis(), 0)
    with pytest.raises(UserError, match="--primary is 'best'; it must be one of individual"):
        Hypothesis(primary="best")
