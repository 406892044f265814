"""Forks of a recorded run: an arm with one intervention and a control arm, several times each.

Each arm is a run in the folder of the forks (`logs/forks-RUN/drop-message-3`), and so is each of
its repetitions (`drop-message-3@2`). forks.json lists them, and plan.json says what is tested
(`lab.registration`). Further calls with the same name add arms and pairs; a call that was killed is
continued by the same command.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from cooperbench import records
from cooperbench.agents.registry import get_agent
from cooperbench.dataset import discovery
from cooperbench.errors import UserError
from cooperbench.lab.forks.intervention import Intervention, SwapAgent
from cooperbench.lab.forks.point import ForkPoint, PointName, find_point
from cooperbench.lab.forks.recording import read_recorded_pair
from cooperbench.lab.forks.start import Fork, point_key
from cooperbench.lab.registration import (
    Design,
    Hypothesis,
    count_results,
    pair_names,
    register_plan,
    with_registration,
)
from cooperbench.models import SETTINGS, Pair, agent_slots
from cooperbench.records import JsonObject
from cooperbench.records.config import RunRecord
from cooperbench.records.forks import CONTROL, ForkArm, ForkedPair, ForksRecord
from cooperbench.records.plan import PlannedFactor, PlannedFork, PlanRecord
from cooperbench.records.summary import Summary
from cooperbench.runner.config import RunConfig, make_config
from cooperbench.runner.display import Display
from cooperbench.runner.experiment import reserve, run_plans
from cooperbench.runner.options import REPLAY_MODEL, TEAM_PARTS
from cooperbench.runner.plan import Plan, check_plan, label_pairs, plan_pairs
from cooperbench.runner.workload import recorded_assignment
from cooperbench.storage import ExperimentPaths, read_bytes
from cooperbench.text import names_for_error

_PAIR = re.compile(r"(?:(.+?)[/ ](?:task)?([0-9]+)[/ ])?f?([0-9]+(?:[_,]f?[0-9]+)+)")


@dataclass(frozen=True)
class ForkCall:
    """The arguments of a call."""

    run: str
    pairs: Sequence[str]
    """Pairs as users write them; without any, the only pair of the run."""
    fork_point: PointName | None
    intervention: Intervention
    repeat: int
    name: str | None
    hypothesis: Hypothesis
    options: Mapping[str, object]
    """The keywords of `make_config` that the recorded run does not decide."""


@dataclass(frozen=True)
class ForkArmPlan:
    """One run of forks."""

    record: ForkArm
    config: RunConfig


@dataclass(frozen=True)
class ForkStudy:
    """Forks of some pairs of a run, from one fork point."""

    paths: ExperimentPaths
    run: ExperimentPaths
    fork_point: PointName
    points: Mapping[str, ForkPoint]
    arms: tuple[ForkArmPlan, ...]
    hypothesis: Hypothesis

    def make_plans(self) -> dict[str, Plan]:
        """Return the plan of each arm, by the name of the arm."""
        pairs = [point.recorded.pair for point in self.points.values()]
        plans = {}
        for arm in self.arms:
            name = arm.record.name
            plan = plan_pairs(arm.config, label_pairs(pairs, name))
            plans[name] = replace(plan, round=arm.record.round)
        return plans

    def check(self) -> dict[str, Plan]:
        """Return the plans; UserError for everything that is known to be wrong before they run."""
        self._merged_record()
        plans = self.make_plans()
        for plan in plans.values():
            check_plan(plan)
        return plans

    def run_forks(self, display: Display) -> dict[str, Summary]:
        """Run all arms; return their summaries by the names of the arms."""
        with reserve([self.paths, *(arm.config.paths for arm in self.arms)]):
            plans = list(self.check().values())
            registered = self.register(plans)
            plans = [with_registration(plan, registered) for plan in plans]

            def save() -> None:
                """Write plan.json and forks.json, which keeps the arms of earlier calls."""
                records.write(self.paths.plan, registered)
                records.write(self.paths.forks, self._merged_record())

            summaries = run_plans(plans, display, on_start=save)
        return {arm.record.name: summaries[arm.config.run_name] for arm in self.arms}

    def register(self, plans: Sequence[Plan]) -> PlanRecord:
        """Return plan.json for this call, without writing it."""
        conditions = [arm.record.name for arm in self.arms if arm.record.round == 1]
        factors = [
            PlannedFactor(name=name, levels=[CONTROL, name], is_ordered=False)
            for name in conditions
            if name != CONTROL
        ]
        design = Design(
            kind="fork",
            factors=factors,
            conditions=conditions,
            repeat=max(arm.record.round for arm in self.arms),
            pairs=pair_names(plans),
            fork=PlannedFork(run=self.run.run_name, fork_point=str(self.fork_point)),
        )
        return register_plan(self.paths, design, self.hypothesis, count_results(self.paths))

    def _merged_record(self) -> ForksRecord:
        record = ForksRecord(
            name=self.paths.run_name,
            run=self.run.run_name,
            fork_point=str(self.fork_point),
            pairs=[self._pair_record(point) for point in self.points.values()],
            arms=[arm.record for arm in self.arms],
        )
        saved = records.read(self.paths.forks, ForksRecord)
        if saved is not None:
            return _merge_records(saved, record)
        if self.paths.config.exists() or self.paths.study.exists():
            raise UserError(
                f"{self.paths.run_name!r} is the name of a run or a study; choose another name "
                "(-n) for the forks"
            )
        return record

    def _pair_record(self, point: ForkPoint) -> ForkedPair:
        recorded = point.recorded
        result = self.run.pair(recorded.pair, recorded.setting).result
        return ForkedPair(
            pair=self.run.folder_name(recorded.pair, recorded.setting),
            result_sha256=hashlib.sha256(read_bytes(result) or b"").hexdigest(),
            exchanges=point.exchange_counts,
            steps={agent_id: prefix.steps for agent_id, prefix in point.prefixes.items()},
            messages=len(point.messages),
        )


def _merge_records(saved: ForksRecord, record: ForksRecord) -> ForksRecord:
    """Return forks.json with the pairs and arms of a further call."""
    if (saved.run, saved.fork_point) != (record.run, record.fork_point):
        raise UserError(
            f"{saved.name!r} has forks of run {saved.run!r} at {saved.fork_point}; choose another "
            "name (-n) for another run or fork point"
        )
    pairs = {pair.pair: pair for pair in saved.pairs}
    for pair in record.pairs:
        if pairs.setdefault(pair.pair, pair) != pair:
            raise UserError(
                f"{pair.pair} of run {record.run!r} has changed since it was forked; choose "
                "another name (-n)"
            )
    arms = {arm.name: arm for arm in [*saved.arms, *record.arms]}
    return msgspec.structs.replace(record, pairs=list(pairs.values()), arms=list(arms.values()))


def make_study(call: ForkCall) -> ForkStudy:
    """Return the forks that a call asks for.

    Raises:
        UserError: Something cannot be forked. Nothing has been written or started.
    """
    base_config = _recorded_config(call)
    run = ExperimentPaths(base_config.logs_dir, call.run)
    fork_point = call.fork_point or call.intervention.default_point
    if fork_point is None:
        raise UserError("--at is missing: name the fork point, e.g. agent1:12 or message:3")
    points = {}
    for pair in _select_pairs(base_config, run, call.pairs):
        recorded = read_recorded_pair(base_config, run, pair)
        point = find_point(recorded, fork_point)
        call.intervention.check(point)
        points[point_key(pair)] = point
    name = call.name or f"forks-{call.run}-{str(fork_point).replace(':', '-')}".replace("/", "-")
    paths = ExperimentPaths(base_config.logs_dir, name)
    interventions = [Intervention()]
    if type(call.intervention) is not Intervention:
        interventions.append(call.intervention)
    arms: list[ForkArmPlan] = []
    for round_number in range(1, call.repeat + 1):
        arms += [
            _make_arm(base_config, name, intervention, points, round_number)
            for intervention in interventions
        ]
    return ForkStudy(paths, run, fork_point, points, tuple(arms), call.hypothesis)


def _recorded_config(call: ForkCall) -> RunConfig:
    """Return the configuration of the recorded run, to run live."""
    logs_dir = Path(str(call.options["logs_dir"]))
    saved = records.read(ExperimentPaths(logs_dir, call.run).config, RunRecord)
    options: dict[str, object] = {"setting": "coop"}
    if saved is not None:
        options["setting"] = next((name for name in SETTINGS if name == saved.setting), "coop")
        options |= _recorded_parts(saved)
    options |= call.options
    # With `replay_from`, the agents, models and limits of the recorded run are selected.
    options |= {"run_name": "fork", "agent": REPLAY_MODEL, "replay_from": call.run}
    config = replace(make_config(options), replay_from=None, record=True)
    if saved is not None and saved.prompts_sha256 != config.identity()["prompts_sha256"]:
        raise UserError(
            f"run {call.run!r} was made with other prompts: name their folder with --prompts, or "
            "leave it out if the run had none"
        )
    return config


def _recorded_parts(saved: RunRecord) -> dict[str, object]:
    """Return the network and the parts of setting team of a recorded run."""
    parts: dict[str, object] = {}
    if saved.network in ("none", "public"):
        parts["network"] = saved.network
    for name in TEAM_PARTS.values():
        value = getattr(saved, name)
        if name.startswith("team_") and isinstance(value, bool):
            parts[name] = value
    return parts


def _select_pairs(config: RunConfig, run: ExperimentPaths, texts: Sequence[str]) -> list[Pair]:
    """Return pairs of the recorded run."""
    folders = sorted((run.root / config.setting).glob("*/*/f*"))
    by_name = {}
    for folder in folders:
        repo, task_id, group = folder.parts[-3:]
        by_name[f"{repo}/{task_id}/{group}"] = (repo, task_id, group)
    if not texts:
        if len(by_name) != 1:
            raise UserError(
                f"run {run.run_name!r} has {len(by_name)} pairs; name some: --pair PAIR "
                f"({names_for_error(by_name, limit=3)})"
            )
        texts = list(by_name)
    pairs: dict[str, Pair] = {}
    for text in texts:
        repo, task_id, group = _find_pair(text, by_name, run)
        features = tuple(int(part[1:]) for part in group.split("_"))
        selection = discovery.discover(
            config.dataset_dir,
            repo=repo,
            task_id=int(task_id),
            features=features,
            with_unsolvable=True,
        )
        pair = selection.pairs[0]
        assignment = recorded_assignment(run.pair(pair, config.setting), pair)
        pair = replace(pair, assignment=assignment)
        pairs[point_key(pair)] = pair
    return list(pairs.values())


def _find_pair(
    text: str, by_name: Mapping[str, tuple[str, str, str]], run: ExperimentPaths
) -> tuple[str, str, str]:
    match = _PAIR.fullmatch(text.strip())
    candidates = []
    if match is not None:
        numbers = re.findall(r"[0-9]+", match[3])
        group = "_".join(f"f{number}" for number in numbers)
        for names in by_name.values():
            same_task = match[1] is None or (
                names[0].removesuffix("_task"),
                names[1],
            ) == (match[1].removesuffix("_task"), match[2])
            if same_task and names[2] == group:
                candidates.append(names)
    if len(candidates) == 1:
        return candidates[0]
    problem = "several pairs" if candidates else "no pair"
    raise UserError(
        f"run {run.run_name!r} has {problem} {text!r}; write REPO/TASK/f1_f2 "
        f"({names_for_error(by_name, limit=3)})"
    )


def _make_arm(
    config: RunConfig,
    name: str,
    intervention: Intervention,
    points: Mapping[str, ForkPoint],
    round_number: int,
) -> ForkArmPlan:
    arm_name = intervention.name
    if round_number > 1:
        arm_name += f"@{round_number}"
    record = ForkArm(
        name=arm_name,
        kind=intervention.kind,
        text=intervention.text,
        slot=intervention.slot,
        round=round_number,
    )
    agents = _agents_after(config, intervention, next(iter(points.values())).recorded.pair)
    arm_config = replace(
        config, run_name=f"{name}/{arm_name}", start=Fork(points, intervention), **agents
    )
    return ForkArmPlan(record, arm_config)


def _agents_after(config: RunConfig, intervention: Intervention, pair: Pair) -> JsonObject:
    """Return the options that name the agents and models after the fork point."""
    if intervention.slot is None:
        return {}
    agents, models = [], []
    for slot, spec in zip(agent_slots(pair, config.setting), config.agent_specs(pair), strict=True):
        replacement = intervention.replacement(slot.agent_id)
        agents.append(replacement.agent if replacement else spec.agent)
        models.append(intervention.model(slot.agent_id) or spec.model or "")
        if replacement is not None and isinstance(intervention, SwapAgent):
            _check_programs(spec.agent, replacement.agent)
    return {"agent": ",".join(agents), "model": ",".join(models)}


def _check_programs(first: str, second: str) -> None:
    """Raise UserError if two agents need different programs in one sandbox."""
    folders: list[Path | None] = [get_agent(name).programs() for name in (first, second)]
    if None not in folders and folders[0] != folders[1]:
        raise UserError(
            f"{second} cannot take over from {first}: both need programs of their own in the "
            "sandbox, which has room for one of them"
        )
