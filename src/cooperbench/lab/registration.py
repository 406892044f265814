"""The plan of a study, or of forks, written to plan.json before the first run starts.

A later call that does no more than the plan leaves it unchanged. What a call adds to it (levels,
interventions, pairs, repetitions, another primary outcome) is recorded as an amendment, with the
number of results that were known by then. An intervention of forks is a factor with two levels:
control and the intervention.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import UNSET, UnsetType

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.errors import UserError
from cooperbench.lab.factors import sort_levels
from cooperbench.records.plan import (
    FISHER,
    HETEROGENEITY,
    MEAN_OVER_PAIRS,
    TREND,
    PlanAmendment,
    PlannedFactor,
    PlannedFork,
    PlannedPower,
    PlannedRepetitions,
    PlannedTest,
    PlanRecord,
)
from cooperbench.records.result import is_finished
from cooperbench.report.pairs import VERDICTS
from cooperbench.report.power import (
    DEFAULT_DISCORDANT,
    DEFAULT_EFFECT,
    PairedDesign,
    RepeatedDesign,
)
from cooperbench.report.statistics import ERROR_RATE
from cooperbench.runner.plan import Plan
from cooperbench.storage import ExperimentPaths, PairPaths, read_bytes, utc_now
from cooperbench.text import plural

DEFAULT_PRIMARY = "overall"


@dataclass(frozen=True)
class Hypothesis:
    """The options of a call about the plan. None is the value in plan.json, or the default."""

    primary: str | None = None
    """The verdict that decides."""
    effect: float | None = None
    discordant: float | None = None
    design_effect: float | None = None

    def __post_init__(self) -> None:
        if self.primary is not None and self.primary not in VERDICTS:
            raise UserError(
                f"--primary is {self.primary!r}; it must be one of {', '.join(VERDICTS)}"
            )


@dataclass(frozen=True)
class Design:
    """The arms and pairs of a call."""

    kind: str
    """`sweep`, also for ablations, or `fork`."""
    factors: Sequence[PlannedFactor]
    conditions: Sequence[str]
    repeat: int
    pairs: Sequence[str]
    fork: PlannedFork | UnsetType = UNSET
    """Only for forks."""


def register_plan(
    paths: ExperimentPaths, design: Design, hypothesis: Hypothesis, results: int
) -> PlanRecord:
    """Return the plan of a study, with what this call adds to it.

    Args:
        paths: The files of the study.
        design: What this call runs.
        hypothesis: What it tests.
        results: Number of pairs that have a result, in all arms.

    Raises:
        UserError: plan.json cannot be read, or is of forks from somewhere else.
    """
    data = read_bytes(paths.plan)
    if data is None:
        plan = _make_plan(paths.run_name, design, hypothesis)
        if not results:
            return plan
        changes = ["The study had started without a plan"]
        amendment = _make_amendment(results, changes, replaced=b"", tests=plan.tests)
        return msgspec.structs.replace(plan, amendments=[amendment])
    saved = records.read(paths.plan, PlanRecord)
    if saved is None or saved.schema != PlanRecord.SCHEMA:
        raise UserError(f"{paths.plan} is not a plan of this version; choose another name (-n)")
    if saved.fork != design.fork:
        raise UserError(
            f"{paths.plan} is a plan {_origin_text(saved.fork)}, not {_origin_text(design.fork)}; "
            "choose another name (-n)"
        )
    merged = _make_plan(paths.run_name, _add_saved(design, saved), _fill(hypothesis, saved))
    changes = _list_changes(saved, merged)
    if not changes:
        return saved
    amendment = _make_amendment(
        results, changes, replaced=data, tests=_affected_tests(saved, merged)
    )
    return msgspec.structs.replace(
        merged,
        kind=saved.kind,
        time=saved.time,
        version=saved.version,
        amendments=[*saved.amendments, amendment],
    )


def pair_names(plans: Iterable[Plan]) -> list[str]:
    """Return the names that plan.json has for the pairs of all arms."""
    names: dict[str, None] = {}
    for plan in plans:
        for pair in plan.pairs:
            names[f"{pair.task.repo}/{pair.task.task_id}/{pair.name}"] = None
    return list(names)


def count_results(paths: ExperimentPaths) -> int:
    """Return how many pairs have a result, in all arms on disk."""
    results = paths.root.glob("*/*/*/*/*/result.json")
    return len([result for result in results if is_finished(PairPaths(result.parent))])


def with_registration(plan: Plan, registered: PlanRecord) -> Plan:
    """Return the plan of an arm whose config.json gets the checksum of plan.json."""
    return replace(plan, config=replace(plan.config, plan_sha256=registered.sha256))


def _origin_text(fork: PlannedFork | UnsetType) -> str:
    if fork is UNSET:
        return "of a sweep"
    return f"of forks of run {fork.run!r} at {fork.fork_point}"


def _make_plan(study: str, design: Design, hypothesis: Hypothesis) -> PlanRecord:
    primary = hypothesis.primary or DEFAULT_PRIMARY
    tests = [
        PlannedTest(
            factor=factor.name,
            measure=primary,
            test=_test_name(design, factor),
        )
        for factor in design.factors
    ]
    return PlanRecord(
        schema=PlanRecord.SCHEMA,
        study=study,
        kind=design.kind,
        time=utc_now(),
        version=__version__,
        factors=list(design.factors),
        conditions=list(design.conditions),
        repeat=design.repeat,
        pairs=list(design.pairs),
        primary=primary,
        tests=tests,
        power=_plan_power(design, hypothesis, tests=len(tests)),
        amendments=[],
        fork=design.fork,
    )


def _test_name(design: Design, factor: PlannedFactor) -> str:
    if design.fork is not UNSET:
        return FISHER if len(design.pairs) == 1 else MEAN_OVER_PAIRS
    return TREND if factor.is_ordered else HETEROGENEITY


def _plan_power(design: Design, hypothesis: Hypothesis, *, tests: int) -> PlannedPower:
    """Return what the planned sample can show."""
    is_fork = design.fork is not UNSET
    assumed = PairedDesign(
        effect=_value_or(hypothesis.effect, DEFAULT_EFFECT),
        discordant=_value_or(hypothesis.discordant, DEFAULT_DISCORDANT),
        design_effect=_value_or(hypothesis.design_effect, 1.0),
        # The p-values of interventions are not corrected for their number.
        tests=1 if is_fork else tests,
    )
    pairs = len(design.pairs)
    power = assumed.power(pairs)
    repetitions: PlannedRepetitions | UnsetType = UNSET
    if is_fork and pairs == 1:
        repeated = RepeatedDesign(assumed.effect, assumed.discordant)
        power = repeated.power(design.repeat)
        repetitions = PlannedRepetitions(
            planned=design.repeat, needed=repeated.repetitions_needed()
        )
    return PlannedPower(
        effect=assumed.effect,
        discordant=assumed.discordant,
        design_effect=assumed.design_effect,
        error_rate=ERROR_RATE,
        pairs=pairs,
        power=round(power, 6),
        pairs_needed=assumed.pairs_needed(),
        repetitions=repetitions,
    )


def _value_or(value: float | None, default: float) -> float:
    return default if value is None else value


def _add_saved(design: Design, saved: PlanRecord) -> Design:
    """Return a design with everything that is planned already."""
    levels = {factor.name: list(factor.levels) for factor in saved.factors}
    ordered = {factor.name: factor.is_ordered for factor in [*saved.factors, *design.factors]}
    for factor in design.factors:
        levels[factor.name] = _union(levels.get(factor.name, []), factor.levels)
    return Design(
        kind=saved.kind,
        factors=[
            PlannedFactor(name=name, levels=sort_levels(name, names), is_ordered=ordered[name])
            for name, names in levels.items()
        ],
        conditions=_union(saved.conditions, design.conditions),
        repeat=max(saved.repeat, design.repeat),
        pairs=_union(saved.pairs, design.pairs),
        fork=saved.fork,
    )


def _union(first: Iterable[str], second: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))


def _fill(hypothesis: Hypothesis, saved: PlanRecord) -> Hypothesis:
    """Return a hypothesis with the saved values where the call has none."""
    return Hypothesis(
        primary=hypothesis.primary or saved.primary,
        effect=_value_or(hypothesis.effect, saved.power.effect),
        discordant=_value_or(hypothesis.discordant, saved.power.discordant),
        design_effect=_value_or(hypothesis.design_effect, saved.power.design_effect),
    )


def _list_changes(saved: PlanRecord, merged: PlanRecord) -> list[str]:
    """Return a line for each difference between two plans."""
    changes = []
    kind_of_factor = "factor" if merged.fork is UNSET else "intervention"
    saved_levels = {factor.name: factor.levels for factor in saved.factors}
    for factor in merged.factors:
        earlier = saved_levels.get(factor.name)
        if earlier is None:
            changes.append(f"{kind_of_factor} {factor.name} added")
        elif earlier != factor.levels:
            added = [level for level in factor.levels if level not in earlier]
            changes.append(f"{factor.name}: {', '.join(added)} added")
    conditions = len(merged.conditions) - len(saved.conditions)
    if conditions:
        changes.append(f"{plural(conditions, 'condition')} added")
    pairs = len(merged.pairs) - len(saved.pairs)
    if pairs:
        changes.append(f"{plural(pairs, 'pair')} added")
    if merged.repeat != saved.repeat:
        changes.append(f"repeat: {saved.repeat} → {merged.repeat}")
    if merged.primary != saved.primary:
        changes.append(f"primary: {saved.primary} → {merged.primary}")
    for name in ("effect", "discordant", "design_effect"):
        before, after = getattr(saved.power, name), getattr(merged.power, name)
        if before != after:
            changes.append(f"{name}: {before:g} → {after:g}")
    return changes


def _affected_tests(saved: PlanRecord, merged: PlanRecord) -> list[PlannedTest]:
    """Return the tests that are not those of the saved plan, or rest on other data."""
    if (saved.pairs, saved.repeat) != (merged.pairs, merged.repeat):
        return merged.tests
    # Combinations of levels are averaged, so that a new one alters all tests. A new intervention
    # of forks alters no other: each is compared only with the control forks.
    if merged.fork is UNSET and saved.conditions != merged.conditions:
        return merged.tests
    return [test for test in merged.tests if test not in saved.tests]


def _make_amendment(
    results: int, changes: list[str], *, replaced: bytes, tests: list[PlannedTest]
) -> PlanAmendment:
    return PlanAmendment(
        time=utc_now(),
        version=__version__,
        results=results,
        changes=changes,
        replaced_sha256=hashlib.sha256(replaced).hexdigest(),
        tests=tests,
    )
