"""A study: its arms, and how they are run as one experiment.

Each arm is a run in the folder of the study (`logs/STUDY/messages=3`). study.json lists the arms,
and plan.json says what is tested (`lab.registration`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.lab.factors import Factor, Level, is_switch, level_slugs, sort_levels
from cooperbench.lab.registration import (
    Design,
    Hypothesis,
    count_results,
    pair_names,
    register_plan,
    with_registration,
)
from cooperbench.models import Pair
from cooperbench.records import JsonObject
from cooperbench.records.plan import PlannedFactor, PlanRecord
from cooperbench.records.study import OFF, ON, StudyArm, StudyFactor, StudyRecord
from cooperbench.records.summary import Summary
from cooperbench.report.formatting import Table, print_tables
from cooperbench.report.registration import power_line
from cooperbench.report.summary_text import budget_text, rate_cells
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.experiment import reserve, run_plans
from cooperbench.runner.options import CHANNEL_OPTIONS, DEFAULTS, TEAM_PARTS
from cooperbench.runner.plan import Plan, check_plan, label_pairs, plan_pairs, select_pairs
from cooperbench.runner.workload import divide_work
from cooperbench.storage import ExperimentPaths
from cooperbench.text import dollars_text

_ALL_ON = "all"
"""Name of the arm that has all parts of cooperation, if nothing else varies."""


@dataclass(frozen=True)
class Arm:
    """One run of a study."""

    name: str
    levels: Mapping[str, str]
    """The level of each factor."""
    round: int
    """1 for the first; a later round repeats the same arms after the earlier ones."""
    config: RunConfig


@dataclass(frozen=True)
class StudyOptions:
    """How the levels of the factors are combined, and what is tested."""

    hypothesis: Hypothesis
    is_crossed: bool = True
    """Whether each combination of levels is an arm. Otherwise one factor at a time differs from the
    first level."""
    repeat: int = 1


@dataclass(frozen=True)
class Study:
    """Runs of the same pairs. The configuration is what all arms have in common."""

    config: RunConfig
    factors: tuple[Factor, ...]
    arms: tuple[Arm, ...]
    """Arms in the order of their rounds."""
    options: StudyOptions

    @property
    def paths(self) -> ExperimentPaths:
        """The files of the study."""
        return self.config.paths

    def make_plans(self) -> dict[str, Plan]:
        """Return the plan of each arm, by the name of the arm."""
        selections: dict[tuple[str, ...], tuple[tuple[Pair, ...], tuple[str, ...]]] = {}
        plans = {}
        for arm in self.arms:
            levels = tuple(arm.levels.values())
            if levels not in selections:
                selections[levels] = select_pairs(arm.config)
            pairs, notes = selections[levels]
            plan = plan_pairs(arm.config, label_pairs(pairs, arm.name))
            plans[arm.name] = replace(plan, round=arm.round, notes=notes)
        return plans

    def run(self, display: Display) -> dict[str, Summary]:
        """Run all arms; return their summaries by the names of the arms."""
        with reserve([self.paths, *(arm.config.paths for arm in self.arms)]):
            plans = list(self.make_plans().values())
            for plan in plans:
                check_plan(plan)
            study = self._make_record()
            registered = self.register(plans)
            plans = [with_registration(plan, registered) for plan in plans]

            def save() -> None:
                records.write(self.paths.plan, registered)
                records.write(self.paths.study, study)

            summaries = run_plans(plans, display, on_start=save)
        return {arm.name: summaries[arm.config.run_name] for arm in self.arms}

    def register(self, plans: Sequence[Plan]) -> PlanRecord:
        """Return plan.json for this call, without writing it."""
        first_round = [arm for arm in self.arms if arm.round == 1]
        factors = [factor.record for factor in self.factors]
        design = Design(
            kind="sweep",
            factors=[
                PlannedFactor(name=factor.name, levels=factor.levels, is_ordered=factor.is_ordered)
                for factor in factors
            ],
            conditions=[arm.name for arm in first_round],
            repeat=self.options.repeat,
            pairs=pair_names(plans),
        )
        results = count_results(self.paths)
        return register_plan(self.paths, design, self.options.hypothesis, results)

    def _make_record(self) -> StudyRecord:
        """Return study.json; factors, levels and arms of earlier calls stay in it.

        Raises:
            UserError: Earlier calls had other factors than parts of cooperation.
        """
        saved = records.read(self.paths.study, StudyRecord)
        factors = {factor.name: factor.record for factor in self.factors}
        arms: dict[str, StudyArm] = {}
        if saved is not None:
            self._check_factors(saved)
            for factor in saved.factors:
                factors[factor.name] = _merge_factors(factor, factors.get(factor.name))
            arms.update((arm.name, arm) for arm in saved.arms)
        for arm in self.arms:
            arms[arm.name] = _arm_record(arm, list(factors.values()))
        return StudyRecord(
            study=self.paths.run_name,
            factors=sorted(factors.values(), key=_factor_order),
            arms=[_with_all_parts(arm, list(factors.values())) for arm in arms.values()],
        )

    def _check_factors(self, saved: StudyRecord) -> None:
        before = [factor.name for factor in saved.factors if not is_switch(factor.levels)]
        now = [factor.name for factor in self.factors if not factor.is_switch]
        if sorted(before) != sorted(now):
            names = ", ".join(before) or "only parts that are on or off"
            raise UserError(
                f"study {self.paths.run_name!r} has other factors ({names}); choose another name "
                "(-n)"
            )

    def print_summaries(self, summaries: Mapping[str, Summary]) -> None:
        """Print a table with a row per arm."""
        rows = []
        for arm in self.arms:
            summary = summaries[arm.name]
            results = summary.settings[arm.config.setting]
            rate, interval = rate_cells(results.rates.overall_success)
            cells = [arm.name, str(results.pairs), str(results.evaluated)]
            cells += [f"{rate} ({interval})", str(results.errors)]
            cells.append(dollars_text(summary.cost))
            rows.append(cells)
        headings = ("arm", "pairs", "evaluated", "overall", "errors", "cost")
        notes = []
        budget = next(iter(summaries.values())).budget
        if budget:
            notes.append(budget_text(budget))
        plan = records.read(self.paths.plan, PlanRecord)
        if plan is not None:
            notes.append(power_line(plan))
        study = self.paths.run_name
        notes.append(f"To see the effect of each factor: cooperbench report {study}")
        print_tables([Table(study, headings, rows, notes)])


def make_study(config: RunConfig, factors: Sequence[Factor], options: StudyOptions) -> Study:
    """Return a study of factors. It has the name of `config`.

    Raises:
        UserError: The name is that of a run, or an arm cannot have its options.
    """
    if config.paths.config.exists():
        raise UserError(
            f"{config.run_name!r} is the name of a run; choose another name (-n) for the study"
        )
    combinations = _cross(factors) if options.is_crossed else _vary_one(factors)
    arms: list[Arm] = []
    for round_number in range(1, options.repeat + 1):
        arms += [_make_arm(config, factors, levels, round_number) for levels in combinations]
    return Study(config, tuple(factors), tuple(arms), options)


def _cross(factors: Sequence[Factor]) -> list[tuple[Level, ...]]:
    """Return all combinations of levels; of parts alone, those with fewer switched off first."""
    combinations = list(product(*(factor.levels for factor in factors)))
    if all(factor.is_switch for factor in factors):
        combinations.sort(key=_switched_off)
    return combinations


def _switched_off(levels: Sequence[Level]) -> tuple[int, list[int]]:
    """Return how many parts are off, and which ones."""
    indexes = [index for index, level in enumerate(levels) if level.name == OFF]
    return len(indexes), indexes


def _vary_one(factors: Sequence[Factor]) -> list[tuple[Level, ...]]:
    """Return the first levels of all factors, and then each other level with the first ones."""
    first_levels = [factor.levels[0] for factor in factors]
    combinations = [tuple(first_levels)]
    for index, factor in enumerate(factors):
        before, after = first_levels[:index], first_levels[index + 1 :]
        combinations += [(*before, level, *after) for level in factor.levels[1:]]
    return combinations


def _make_arm(
    config: RunConfig, factors: Sequence[Factor], levels: Sequence[Level], round_number: int
) -> Arm:
    name = _arm_name(factors, levels)
    if round_number > 1:
        name += f"@{round_number}"
    changes: JsonObject = {"run_name": f"{config.run_name}/{name}"}
    for level in levels:
        changes |= level.changes
    if "agent_count" in changes:
        changes |= divide_work(vars(config) | changes)
        if changes["setting"] == "solo":
            changes |= _options_of_solo()
    level_names = {factor.name: level.name for factor, level in zip(factors, levels, strict=True)}
    return Arm(name, level_names, round_number, replace(config, **changes))


def _options_of_solo() -> JsonObject:
    """Return the options that a single agent does not have, with their defaults."""
    fields = [*CHANNEL_OPTIONS, *TEAM_PARTS.values()]
    return {field: DEFAULTS[field] for field in fields}


def _arm_name(factors: Sequence[Factor], levels: Sequence[Level]) -> str:
    """Return the name of an arm: `messages=3`, `no-git`, `messages=3+no-git`, or `all`."""
    parts = []
    off = []
    for factor, level in zip(factors, levels, strict=True):
        if not factor.is_switch:
            parts.append(f"{factor.name}={level_slugs(factor)[level.name]}")
        elif level.name == OFF:
            off.append(factor.name)
    if off:
        parts.append("no-" + "+".join(off))
    return "+".join(parts) or _ALL_ON


def _factor_order(factor: StudyFactor) -> int:
    """Return the place of a factor among all: parts come last, in their order."""
    return list(TEAM_PARTS).index(factor.name) if is_switch(factor.levels) else -1


def _arm_record(arm: Arm, factors: Sequence[StudyFactor]) -> StudyArm:
    recorded = arm.config.identity() | {"setting": arm.config.setting}
    options: JsonObject = {}
    for factor in factors:
        options |= {option: recorded.get(option) for option in factor.options}
    return StudyArm(name=arm.name, levels=dict(arm.levels), options=options, round=arm.round)


def _merge_factors(saved: StudyFactor, current: StudyFactor | None) -> StudyFactor:
    """Return a factor with the levels of earlier calls and of this one."""
    if current is None:
        return saved
    levels = sort_levels(saved.name, list(dict.fromkeys([*saved.levels, *current.levels])))
    return StudyFactor(
        name=saved.name, levels=levels, is_ordered=saved.is_ordered, options=current.options
    )


def _with_all_parts(arm: StudyArm, factors: Sequence[StudyFactor]) -> StudyArm:
    """Return an arm with a level of each factor: a part that it does not switch off is on."""
    levels = {factor.name: arm.levels.get(factor.name, ON) for factor in factors}
    return StudyArm(name=arm.name, levels=levels, options=arm.options, round=arm.round)
