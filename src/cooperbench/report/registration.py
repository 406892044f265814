"""Planned tests of a study or of forks: plan.json, and whether the runs recorded its checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import UNSET, UnsetType

from cooperbench import records
from cooperbench.records.config import RunRecord
from cooperbench.records.plan import (
    FISHER,
    MEAN_OVER_PAIRS,
    PlanAmendment,
    PlannedFork,
    PlannedPower,
    PlannedTest,
    PlanRecord,
)
from cooperbench.storage import read_bytes
from cooperbench.text import plural

Status = Literal["planned", "amended", "exploratory"]
STATUSES: dict[Status, str] = {
    "planned": "in plan.json before the first result",
    "amended": "planned or changed after some results were known",
    "exploratory": "not in plan.json, or without some of the planned levels",
}
_TEST_TEXTS = {FISHER: "Fisher's exact test of", MEAN_OVER_PAIRS: "mean over pairs of"}
"""Beginnings of the texts of tests; of others, it is the name of the test."""
_MIN_PAIRS = 30
"""Number of forked pairs below which the power is rough: its formula is for many pairs."""


@dataclass(frozen=True)
class Registration:
    """The plan of a study."""

    plan: PlanRecord | None
    """None if there is none, or if the runs were started with another one."""
    problem: str = ""
    """Why there is no plan; empty if there is one."""

    def status(self, factor: str, measure: str, test: str, levels: Sequence[str]) -> Status:
        """Return whether a test of these levels was planned."""
        planned = PlannedTest(factor=factor, measure=measure, test=test)
        if self.plan is None or planned not in self.plan.tests:
            return "exploratory"
        planned_levels = {entry.name: set(entry.levels) for entry in self.plan.factors}
        if planned_levels.get(factor) != set(levels):
            return "exploratory"
        late = [amendment for amendment in self.plan.amendments if amendment.results]
        if any(planned in amendment.tests for amendment in late):
            return "amended"
        return "planned"

    def lines(self) -> Iterator[str]:
        """Yield what was planned, for people."""
        plan = self.plan
        if plan is None:
            yield f"No plan: {self.problem}. All figures are exploratory"
            return
        tests = ", ".join(_test_text(test) for test in plan.tests) or "no test"
        power = plan.power
        runs = "" if plan.repeat == 1 else f", {plan.repeat} runs each"
        yield (
            f"Plan of {plan.time} (plan.json): {plan.primary}, {tests}; "
            f"{plural(power.pairs, 'pair')} in {plural(len(plan.conditions), 'condition')}{runs}"
        )
        if plan.tests:
            yield (
                f"Planned power: {round(100 * power.power)} % for an effect of "
                f"{100 * power.effect:g} points; {_sample_texts(power).needed} would have 80 %"
                f"{_caveat(plan)}"
            )
        for amendment in plan.amendments:
            yield _amendment_line(amendment)


def power_line(plan: PlanRecord) -> str:
    """Return what the planned sample can show."""
    power = plan.power
    sample = _sample_texts(power)
    effect = f"an effect of {100 * power.effect:g} points on {plan.primary}"
    return (
        f"Power: {round(100 * power.power)} % for {effect} with {sample.planned}; "
        f"80 % needs {sample.needed}{_caveat(plan)}"
    )


def _caveat(plan: PlanRecord) -> str:
    """Return a warning if the power of forks of a few pairs is a rough figure."""
    is_over_pairs = plan.fork is not UNSET and plan.power.repetitions is UNSET
    if is_over_pairs and plan.power.pairs < _MIN_PAIRS:
        return f" (rough: fewer than {_MIN_PAIRS} pairs)"
    return ""


def status_lines(statuses: Iterable[str]) -> Iterator[str]:
    """Yield what the marks in a table mean."""
    used = set(statuses)
    for status, meaning in STATUSES.items():
        if status in used:
            yield f"{status}: {meaning}"


class _SampleTexts(NamedTuple):
    """The planned size of a sample, and the one that has enough power."""

    planned: str
    needed: str


def _sample_texts(power: PlannedPower) -> _SampleTexts:
    repetitions = power.repetitions
    if repetitions is UNSET:
        return _SampleTexts(plural(power.pairs, "pair"), f"{power.pairs_needed:,} pairs")
    planned = f"{plural(repetitions.planned, 'fork')} in each arm"
    return _SampleTexts(planned, f"{repetitions.needed:,} forks in each arm")


def _test_text(test: PlannedTest) -> str:
    beginning = _TEST_TEXTS.get(test.test, f"{test.test} over")
    return f"{beginning} {test.factor}"


def _amendment_line(amendment: PlanAmendment) -> str:
    when = f"after {plural(amendment.results, 'result')}" if amendment.results else "before results"
    return f"Amended {amendment.time}, {when}: {'; '.join(amendment.changes)}"


def read_registration(folder: Path, fork: PlannedFork | UnsetType = UNSET) -> Registration:
    """Return the plan in the folder of a study or of forks, if its runs were started with it.

    Each call records the checksum of plan.json, and each amendment that of the plan before. So all
    checksums of the runs have to be among these, and one of them has to be that of the file.
    """
    data = read_bytes(folder / "plan.json")
    plan = records.read(folder / "plan.json", PlanRecord)
    if data is None or plan is None:
        return Registration(None, "there is no plan.json")
    current = hashlib.sha256(data).hexdigest()
    registered = {current, *(amendment.replaced_sha256 for amendment in plan.amendments)}
    used: set[str] = set()
    for config in sorted(folder.glob("*/config.json")):
        used |= _recorded_checksums(config)
    if current not in used or not used <= registered:
        return Registration(None, "plan.json is not the one that the runs were started with")
    if plan.fork != fork:
        return Registration(None, "plan.json is not that of the run and the fork point")
    return Registration(plan)


def _recorded_checksums(config: Path) -> set[str]:
    """Return the checksums of plan.json in the calls of a run."""
    record = records.read(config, RunRecord)
    calls = record.invocations if record is not None else []
    return {call.plan_sha256 for call in calls if isinstance(call.plan_sha256, str)}
