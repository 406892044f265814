"""plan.json: what a call adds to it, and what leaves it unchanged."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import UNSET

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.lab.registration import Design, Hypothesis, register_plan
from cooperbench.records.plan import PlannedFactor, PlannedFork, PlannedRepetitions, PlanRecord
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


FORK = PlannedFork(run="r", fork_point="message:3")


def fork_design(*interventions: str, pairs: tuple[str, ...] = PAIRS[:1], repeat: int = 5) -> Design:
    factors = [
        PlannedFactor(name=name, levels=["control", name], is_ordered=False)
        for name in interventions
    ]
    return Design("fork", factors, ["control", *interventions], repeat, pairs, FORK)


def test_plan_of_forks(paths: ExperimentPaths) -> None:
    hypothesis = Hypothesis(effect=0.9, discordant=0.9)
    plan = save(paths, fork_design("drop-message-3"), hypothesis, 0)
    assert (plan.kind, plan.fork, plan.repeat) == ("fork", FORK, 5)
    assert plan.conditions == ["control", "drop-message-3"]
    assert [(test.factor, test.measure, test.test) for test in plan.tests] == [
        ("drop-message-3", "overall", "fisher")
    ]
    # Five forks show it unless two of the five with the intervention fail: 0.9⁵ + 5 · 0.1 · 0.9⁴.
    assert plan.power.power == pytest.approx(0.91854)
    assert plan.power.repetitions == PlannedRepetitions(planned=5, needed=5)
    assert records.read(paths.plan, PlanRecord) == plan
    for design in (fork_design("drop-message-3", repeat=2), fork_design()):
        assert register_plan(paths, design, Hypothesis(), 4) == plan


@pytest.mark.parametrize(
    ("more", "changes", "tests"),
    [
        (fork_design("oracle-agent2"), ["intervention oracle-agent2 added", "1 condition added"], ["oracle-agent2"]),
        (fork_design("drop-message-3", repeat=8), ["repeat: 5 → 8"], ["drop-message-3"]),
        (fork_design("drop-message-3", pairs=PAIRS), ["1 pair added"], ["drop-message-3"]),
    ],
)  # fmt: skip
def test_what_a_call_adds_to_forks(
    paths: ExperimentPaths, more: Design, changes: list[str], tests: list[str]
) -> None:
    first = save(paths, fork_design("drop-message-3"), Hypothesis(), 0)
    second = save(paths, more, Hypothesis(), 10)
    (amendment,) = second.amendments
    assert (amendment.results, amendment.changes) == (10, changes)
    assert amendment.replaced_sha256 == first.sha256
    # A new intervention leaves the tests of the others as they were.
    assert [test.factor for test in amendment.tests] == tests
    assert {test.test for test in amendment.tests} == {
        "fisher" if len(second.pairs) == 1 else "mean-over-pairs"
    }


def test_several_pairs_are_the_sample(paths: ExperimentPaths) -> None:
    power = save(paths, fork_design("oracle-agent2", pairs=PAIRS), Hypothesis(), 0).power
    assert (power.pairs, power.repetitions) == (2, UNSET)
    swept = register_plan(ExperimentPaths(paths.logs_dir, "t"), design(), Hypothesis(), 0).power
    assert (power.power, power.pairs_needed) == (swept.power, swept.pairs_needed)


def test_control_forks_alone_have_no_test(paths: ExperimentPaths) -> None:
    assert save(paths, fork_design(), Hypothesis(), 0).tests == []
    plan = save(paths, fork_design("oracle-agent2"), Hypothesis(), 5)
    assert plan.amendments[0].tests == plan.tests


def test_plan_of_something_else(paths: ExperimentPaths) -> None:
    save(paths, fork_design(), Hypothesis(), 0)
    elsewhere = replace(fork_design(), fork=PlannedFork(run="r", fork_point="agent1:2"))
    with pytest.raises(UserError, match="is a plan of forks of run 'r' at message:3, not of forks"):
        register_plan(paths, elsewhere, Hypothesis(), 0)
    with pytest.raises(UserError, match=r"not of a sweep; choose another name \(-n\)"):
        register_plan(paths, design(), Hypothesis(), 0)


def test_bad_plans(paths: ExperimentPaths) -> None:
    paths.root.mkdir()
    paths.plan.write_text('{"schema": "other/1"}')
    with pytest.raises(UserError, match="is not a plan of this version; choose another name"):
        register_plan(paths, design(), Hypothesis(), 0)
    with pytest.raises(UserError, match="--primary is 'best'; it must be one of individual"):
        Hypothesis(primary="best")
