"""What is a part of cooperation worth? The same pairs with all parts on and with some off, as one experiment.

An arm is a run of its own in the folder of the study: `logs/study/all`, `logs/study/no-git`. study.json beside them
says which there are. All arms share one budget, one session of sandboxes and one queue, in which they are interleaved.
A killed study continues with the same command.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError
from cooperbench.runner.api import check, price_notes, select, warm_up
from cooperbench.runner.display import for_arm, header_lines
from cooperbench.runner.experiment import Arm, carry_out, open_backend
from cooperbench.runner.options import TEAM_PARTS, options
from cooperbench.runner.plan import make_plan
from cooperbench.storage import ExperimentPaths, read_json, write_json
from cooperbench.team.mailbox import open_mailboxes
from cooperbench.text import names_for_error, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.runner.config import RunConfig
    from cooperbench.runner.display import Display
    from cooperbench.runner.plan import Plan

SCHEMA = "cooperbench.study/1"


@dataclass(frozen=True)
class StudyArm:
    """One arm, once."""

    name: str
    off: tuple[str, ...]
    round: int
    """From 1: which repetition it is."""
    config: RunConfig


@dataclass(frozen=True)
class Study:
    paths: ExperimentPaths
    parts: tuple[str, ...]
    """In the order of `TEAM_PARTS`."""
    arms: tuple[StudyArm, ...]
    """Of each round, the one with all parts on first."""

    def save(self) -> None:
        """Arms of earlier calls stay."""
        stored = read_json(self.paths.study) or {}
        parts = {*stored.get("parts", {}), *self.parts}
        arms = {arm["name"]: arm for arm in stored.get("arms", [])}
        arms |= {arm.name: {"name": arm.name, "off": list(arm.off), "round": arm.round} for arm in self.arms}
        write_json(
            self.paths.study,
            {
                "schema": SCHEMA,
                "study": self.paths.run_name,
                "parts": {part: field for part, field in TEAM_PARTS.items() if part in parts},
                "arms": list(arms.values()),
            },
        )


def make_study(
    config: RunConfig, off: Sequence[str], *, full_factorial: bool = False, repeat: int = 1
) -> Study:
    """All on, each part off, or every combination; `config` is what all arms have in common, named like the study."""
    if config.setting == "solo":
        raise UserError("in setting solo nobody cooperates: ablate takes coop or team")
    if not config.placement.is_local:
        raise UserError(f"ablate works on this machine only, not by --executor {config.executor}")
    known = {
        part: field
        for part, field in TEAM_PARTS.items()
        if field in options() and (config.setting != "coop" or not field.startswith("team_"))
    }
    for part in off:
        if part not in known:
            there = names_for_error(known, part)
            raise UserError(f"no part {part!r} to switch off in setting {config.setting}; there are: {there}")
        if getattr(config, known[part]) is False and _is_on_by_default(config, known[part]):
            raise UserError(f"{part} is off in all arms already; leave it out of --off, or on")
    parts = tuple(part for part in known if part in off)
    paths = config.paths
    if paths.config.exists():
        raise UserError(f"{paths.run_name!r} is the name of a run; take another name (-n) for the study")
    most = len(parts) if full_factorial else 1
    combined = [combination for size in range(most + 1) for combination in combinations(parts, size)]
    arms = []
    for number in range(1, repeat + 1):
        for one in combined:
            name = ("no-" + "+".join(one) if one else "all") + (f"@{number}" if number > 1 else "")
            switches: dict[str, Any] = {known[part]: part not in one for part in parts}
            arms.append(
                StudyArm(name, one, number, replace(config, run_name=f"{paths.run_name}/{name}", **switches))
            )
    return Study(paths, parts, tuple(arms))


def _is_on_by_default(config: RunConfig, field: str) -> bool:
    """Git is on where it is asked for."""
    return field != "git_enabled" or config.setting != "coop"


def plan_study(study: Study) -> tuple[list[Plan], tuple[str, ...]]:
    """What is left of each arm, all checked, nothing written; and notes."""
    pairs, notes = select(study.arms[0].config)
    for arm in study.arms:
        check(arm.config, pairs)
    return [make_plan(arm.config, pairs) for arm in study.arms], notes


def run_study(study: Study, display: Display) -> dict[str, dict[str, Any]]:
    """The summary of each arm, by its name."""
    _, notes = plan_study(study)
    first = study.arms[0].config
    backend = open_backend(first.backend, first.backend_options)
    with ExitStack() as stack:
        for paths in (study.paths, *(arm.config.paths for arm in study.arms)):
            stack.enter_context(paths.lock())
        plans, _ = plan_study(study)
        arms = [
            Arm(arm.config, plan, for_arm(display, arm.name), arm.round)
            for arm, plan in zip(study.arms, plans, strict=True)
        ]
        to_run = sum(len(plan.to_run) for plan in plans)
        mailboxes = None
        if to_run:
            warm_up(first)
            if any(arm.config.messaging_enabled for arm in study.arms):
                mailboxes = stack.enter_context(open_mailboxes(first.redis_url, study.paths.run_name))
        study.save()
        for arm in study.arms:
            arm.config.save()
        display.begin(
            _header(study, plans),
            to_run=to_run,
            to_judge=(to_run if first.auto_eval else 0) + sum(len(plan.to_evaluate) for plan in plans),
        )
        stack.callback(display.end)
        for note in (*notes, *price_notes(first)):
            display.note(note)
        if mailboxes is not None:
            display.note(f"Messages: {mailboxes.description}")
        summaries = carry_out(arms, backend, mailboxes)
    return {arm.name: summary for arm, summary in zip(study.arms, summaries, strict=True)}


def _header(study: Study, plans: Sequence[Plan]) -> list[str]:
    lines = header_lines(study.arms[0].config, replace(plans[0], to_run=plans[0].pairs))
    names = ", ".join(arm.name for arm in study.arms)
    finished = sum(plan.finished for plan in plans)
    return [
        f"Starting experiment: {study.paths.run_name}",
        *lines[1:],
        f"{plural(len(study.arms), 'arm')}: {names}",
        *([f"{plural(finished, 'pair')} in them finished already"] if finished else []),
    ]
