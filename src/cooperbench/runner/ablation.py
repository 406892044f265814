"""Ablation studies: the same pairs with all parts of cooperation on, and with some of them off.

Each arm is a run in the folder of the study (`logs/study/no-git`); study.json lists the arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import combinations
from typing import Any

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.records import JsonObject
from cooperbench.records.study import StudyArm, StudyRecord
from cooperbench.records.summary import Summary
from cooperbench.report.formatting import Table, print_tables
from cooperbench.report.summary_text import budget_text, rate_cells
from cooperbench.runner.api import config_from_call, run
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display, make_display
from cooperbench.runner.experiment import reserve, run_plans
from cooperbench.runner.options import TEAM_PARTS
from cooperbench.runner.plan import Plan, check_plan, label_pairs, plan_pairs, select_pairs
from cooperbench.storage import ExperimentPaths
from cooperbench.text import dollars_text, names_for_error


@dataclass(frozen=True)
class Arm:
    """One run of a study."""

    name: str
    off: tuple[str, ...]
    """Parts that are switched off."""
    round: int
    """1 for the first; a later round repeats the same arms after the earlier ones."""
    config: RunConfig


@dataclass(frozen=True)
class Study:
    """An ablation study. Its configuration is what all arms have in common."""

    config: RunConfig
    parts: tuple[str, ...]
    """Parts that the study is about, in the order of `TEAM_PARTS`."""
    arms: tuple[Arm, ...]
    """Arms in the order of their rounds; the one with all parts on is the first of its round."""

    @property
    def paths(self) -> ExperimentPaths:
        """The files of the study."""
        return self.config.paths

    def make_plans(self) -> dict[str, Plan]:
        """Return the plan of each arm, by the name of the arm."""
        pairs, notes = select_pairs(self.config)
        plans = {}
        for arm in self.arms:
            plan = plan_pairs(arm.config, label_pairs(pairs, arm.name))
            plans[arm.name] = replace(plan, round=arm.round, notes=notes)
        return plans

    def run(self, display: Display) -> dict[str, Summary]:
        """Run all arms; return their summaries by the names of the arms."""
        with reserve([self.paths, *(arm.config.paths for arm in self.arms)]):
            plans = self.make_plans()
            for plan in plans.values():
                check_plan(plan)
            summaries = run_plans(list(plans.values()), display, on_start=self.save)
        return {arm.name: summaries[arm.config.run_name] for arm in self.arms}

    def save(self) -> None:
        """Write study.json; arms of earlier calls stay in it."""
        saved = records.read(self.paths.study, StudyRecord)
        parts = set(self.parts)
        arms: dict[str, StudyArm] = {}
        if saved is not None:
            parts.update(saved.parts)
            arms.update((arm.name, arm) for arm in saved.arms)
        for arm in self.arms:
            arms[arm.name] = StudyArm(name=arm.name, off=list(arm.off), round=arm.round)
        record = StudyRecord(
            study=self.paths.run_name,
            parts={part: field for part, field in TEAM_PARTS.items() if part in parts},
            arms=list(arms.values()),
        )
        records.write(self.paths.study, record)

    def print_summaries(self, summaries: Mapping[str, Summary]) -> None:
        """Print a table with a row per arm."""
        rows = []
        for name, summary in summaries.items():
            results = summary.settings[self.config.setting]
            rate, interval = rate_cells(results.rates.overall_success)
            cells = [name, str(results.pairs), str(results.evaluated)]
            cells += [f"{rate} ({interval})", str(results.errors)]
            cells.append(dollars_text(summary.cost))
            rows.append(cells)
        headings = ("arm", "pairs", "evaluated", "overall", "errors", "cost")
        notes = []
        budget = next(iter(summaries.values())).budget
        if budget:
            notes.append(budget_text(budget))
        study = self.paths.run_name
        notes.append(f"To see what each part contributes: cooperbench report {study}")
        print_tables([Table(study, headings, rows, notes)])


def ablate(
    run_name: str,
    off: Sequence[str],
    *,
    full_factorial: bool = False,
    repeat: int = 1,
    **options: Any,
) -> None:
    """Run the same pairs with all parts of cooperation on, and with each part in `off` off.

    With `full_factorial` every combination of the parts is an arm. `options` are the keywords of
    `run`. Arms are runs under `logs_dir/run_name`; a table of them is printed.
    """
    call = signature(run).bind(run_name, **options)
    call.apply_defaults()
    config = config_from_call(call.arguments)
    study = make_study(config, off, full_factorial=full_factorial, repeat=repeat)
    study.print_summaries(study.run(make_display()))


def make_study(
    config: RunConfig, off: Sequence[str], *, full_factorial: bool, repeat: int
) -> Study:
    """Return a study of the parts in `off`. The study has the name of `config`."""
    fields = _parts_of_setting(config)
    _check_parts(config, off, fields)
    if config.paths.config.exists():
        raise UserError(
            f"{config.run_name!r} is the name of a run; choose another name (-n) for the study"
        )
    parts = tuple(part for part in fields if part in off)
    max_off = len(parts) if full_factorial else 1
    switched_off: list[tuple[str, ...]] = []
    for size in range(max_off + 1):
        switched_off += combinations(parts, size)
    arms: list[Arm] = []
    for round_number in range(1, repeat + 1):
        arms += [_make_arm(config, parts, off_parts, round_number) for off_parts in switched_off]
    return Study(config, parts, tuple(arms))


def _parts_of_setting(config: RunConfig) -> dict[str, str]:
    """Return the parts that can be switched off, with the field of `RunOptions` of each."""
    if config.setting == "solo":
        raise UserError("in setting solo nobody cooperates: ablate needs coop or team")
    if config.setting == "team":
        return TEAM_PARTS
    return {part: field for part, field in TEAM_PARTS.items() if not field.startswith("team_")}


def _check_parts(config: RunConfig, off: Sequence[str], fields: Mapping[str, str]) -> None:
    """Raise UserError for a part that does not exist or is off anyway."""
    is_on = {**vars(config), "git_enabled": config.shares_git}
    for part in off:
        if part not in fields:
            names = names_for_error(fields, part)
            raise UserError(
                f"no part {part!r} to switch off in setting {config.setting}; available: {names}"
            )
        # In coop git is off by default: the study switches it on.
        is_git_in_coop = config.setting == "coop" and part == "git"
        if not is_on[fields[part]] and not is_git_in_coop:
            raise UserError(f"{part} is off in all arms already; leave it out of --off, or on")


def _make_arm(
    config: RunConfig, parts: Sequence[str], off: tuple[str, ...], round_number: int
) -> Arm:
    name = "no-" + "+".join(off) if off else "all"
    if round_number > 1:
        name += f"@{round_number}"
    switches: JsonObject = {TEAM_PARTS[part]: part not in off for part in parts}
    run_name = f"{config.run_name}/{name}"
    arm_config = replace(config, run_name=run_name, **switches)
    return Arm(name, off, round_number, arm_config)
