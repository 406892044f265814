"""The plan of a run: which pairs are left to run and to evaluate, read from disk once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cooperbench import records
from cooperbench.agents.base import Agent, retry_timeout_seconds
from cooperbench.agents.llm import has_price
from cooperbench.agents.registry import get_agent, uses_model
from cooperbench.backends.registry import check_options, find_factory, get_backend
from cooperbench.dataset import discovery
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval import backends
from cooperbench.eval.evaluation_files import is_evaluated
from cooperbench.eval.reference_store import sound_pairs
from cooperbench.models import Pair, agent_slots
from cooperbench.records.jobs import JobsRecord
from cooperbench.records.result import is_finished, is_undamaged
from cooperbench.report.loading import read_pairs
from cooperbench.runner.agent_code import AgentCode
from cooperbench.runner.config import AgentSpec, RunConfig, relative_to_cwd
from cooperbench.runner.model_server import check_model_servers
from cooperbench.runner.workload import as_recorded, assign_pairs, check_recorded_assignment
from cooperbench.storage import ExperimentPaths, PairPaths
from cooperbench.team.channel import check_topology
from cooperbench.text import describe_error, names_for_error, plural, printable


@dataclass(frozen=True)
class Plan:
    """The pairs of one configuration, and what is left to do with them.

    A run has one plan, a study one per arm, and an evaluation one per setting.
    """

    config: RunConfig
    pairs: Sequence[Pair]
    """All selected pairs."""
    to_run: tuple[Pair, ...] = ()
    to_evaluate: tuple[Pair, ...] = ()
    """Pairs that have a result and need only its evaluation."""
    round: int = 1
    """Plans of a later round start when those of the earlier rounds are done."""
    notes: tuple[str, ...] = ()
    """Lines for the user about the selection."""


@dataclass(frozen=True)
class LabeledPair(Pair):
    """A pair of one of several plans, which may run at the same time with the same features."""

    plan_name: str = ""

    @property
    def label(self) -> str:
        """The label of the pair, with the name of its plan."""
        return f"{super().label} ({self.plan_name})"


def label_pairs(pairs: Iterable[Pair], plan_name: str) -> tuple[LabeledPair, ...]:
    """Return the pairs with the name of their plan in their labels."""
    return tuple(
        LabeledPair(
            pair.task,
            pair.feature_ids,
            plan_name,
            assignment=pair.assignment,
            workspace=pair.workspace,
        )
        for pair in pairs
    )


def make_plan(config: RunConfig) -> Plan:
    """Select the pairs of a run and read from disk what is left to do with them."""
    pairs, notes = select_pairs(config)
    return replace(plan_pairs(config, pairs), notes=notes)


def select_pairs(config: RunConfig) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """Return the pairs that the configuration selects, and notes about the selection."""
    selection = discovery.select_pairs(config.dataset_dir, config)
    pairs, notes = assign_pairs(config, selection.pairs), list(selection.notes)
    if config.shares_git and config.setting == "solo":
        notes.append("--git is ignored in setting solo: a single agent has no one to share with")
    if config.sound_only:
        pairs = sound_pairs(pairs)
        excluded = len(selection.pairs) - len(pairs)
        notes.append(f"{plural(excluded, 'pair')} left out as unsound")
    notes += _price_notes(config)
    return pairs, tuple(notes)


def plan_pairs(config: RunConfig, pairs: Sequence[Pair]) -> Plan:
    """Read from disk which of these pairs are left to run and to evaluate."""
    steps = [(pair, _next_step(config, pair)) for pair in pairs]
    return Plan(
        config,
        pairs,
        to_run=tuple(pair for pair, step in steps if step == "run"),
        to_evaluate=tuple(pair for pair, step in steps if step == "evaluate"),
    )


def _next_step(config: RunConfig, pair: Pair) -> Literal["run", "evaluate"] | None:
    """Return what is left to do with a pair; None if nothing is."""
    paths = config.paths.pair(pair, config.setting)
    if not config.evaluate_only and (config.force or not _has_result(paths)):
        return "run"
    if not config.auto_eval:
        return None
    if config.force:
        return "evaluate"
    if is_evaluated(paths, pair, config.setting, config.eval_network, config.canary):
        return None
    return "evaluate"


def _has_result(paths: PairPaths) -> bool:
    return is_finished(paths) and is_undamaged(paths)


def check_experiment_exists(paths: ExperimentPaths) -> None:
    """Raise UserError, with the names of other experiments, if this one does not exist."""
    if paths.root.is_dir():
        return
    names = sorted(entry.parent.name for entry in paths.logs_dir.glob("*/config.json"))
    raise UserError(
        f"no experiment {paths.run_name!r} in {relative_to_cwd(paths.logs_dir)}; "
        f"available: {', '.join(names) or 'none'}"
    )


def make_evaluation_plans(config: RunConfig) -> list[Plan]:
    """Return one plan per setting of an existing run; UserError if there is nothing to evaluate."""
    paths = config.paths
    selection = discovery.select_pairs(config.dataset_dir, config)
    pairs_by_setting = {}
    for setting in paths.settings_on_disk():
        pairs = _finished_pairs(replace(config, setting=setting), selection.pairs)
        if pairs:
            pairs_by_setting[setting] = pairs
    if not pairs_by_setting:
        labels = dict.fromkeys(pair.task.label for pair in selection.pairs)
        raise UserError(
            f"experiment {paths.run_name!r} has no results to evaluate for the selected tasks "
            f"({names_for_error(labels, limit=5)})"
        )
    plans = []
    for setting, pairs in pairs_by_setting.items():
        if len(pairs_by_setting) > 1:
            pairs = label_pairs(pairs, setting)
        plans.append(plan_pairs(replace(config, setting=setting), pairs))
    return plans


def _finished_pairs(config: RunConfig, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return the pairs that have a result in the configuration's setting."""
    candidates = [*pairs, *_larger_groups(config, pairs)]
    finished = []
    for pair in candidates:
        paths = config.paths.pair(pair, config.setting)
        if is_finished(paths):
            finished.append(as_recorded(paths, pair))
    return sound_pairs(finished) if config.sound_only else tuple(finished)


def _larger_groups(config: RunConfig, pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yield the groups of more than two features on disk; enumerating pairs does not find them."""
    if config.features is not None or config.subset is not None:
        return
    tasks = {(pair.task.repo, pair.task.task_id): pair.task for pair in pairs}
    for record in read_pairs(config.paths, config.setting):
        task = tasks.get((record.key.repo, record.key.task_id))
        if task is not None and len(record.key.features) > 2:
            yield Pair(task, record.key.features)


def check_plan(plan: Plan) -> None:
    """Raise UserError for everything that can be known to be wrong before the run starts."""
    config = plan.config
    retry_timeout_seconds()
    check_backend(config)
    if config.evaluate_only:
        return
    config.check_against_disk()
    to_run = set(plan.to_run)
    for pair in plan.pairs:
        if pair not in to_run:
            check_recorded_assignment(config, config.paths.pair(pair, config.setting), pair)
        slots = agent_slots(pair, config.setting)
        check_topology(config.topology, len(slots), f"{pair.label} ({config.setting})")
    if config.replay_from:
        _check_recordings(plan)
    specs = _distinct_specs(plan)
    for spec in specs:
        check_agent(plan, spec)
    if config.workspace == "shared":
        _check_shared_programs(specs)
    # Jobs of a cluster check the servers from their own nodes.
    if plan.to_run and config.executor == "local" and not config.replay_from:
        check_model_servers(specs)


def check_backend(config: RunConfig) -> None:
    """Raise UserError for an unknown backend or an option that it does not have."""
    # Users may replace `backends.get_backend` and then have backends of other names.
    if backends.get_backend is get_backend:
        find_factory(config.backend)
        check_options(config.backend, config.backend_options)


def check_earlier_jobs(config: RunConfig) -> None:
    """Raise UserError if jobs of an earlier call may still run with another executor."""
    record = records.read(config.paths.jobs_record, JobsRecord)
    if record is None or record.engine == config.executor:
        return
    raise UserError(
        f"jobs of an earlier call may still run on {record.engine}: continue with "
        f"--executor {record.engine}, or remove {config.paths.jobs_record} if none is left"
    )


def _check_recordings(plan: Plan) -> None:
    config = plan.config
    for pair in plan.pairs:
        for slot in agent_slots(pair, config.setting):
            recording = config.recording(pair, slot.agent_id)
            if recording is None or not recording.is_file():
                raise UserError(
                    f"nothing to replay for {pair.label}: no {recording}; run with --record"
                )


def _distinct_specs(plan: Plan) -> list[AgentSpec]:
    """Return every agent spec of the plan once. They depend only on the number of agents."""
    setting = plan.config.setting
    representatives = {len(agent_slots(pair, setting)): pair for pair in reversed(plan.pairs)}
    specs: dict[AgentSpec, None] = {}
    for pair in representatives.values():
        specs.update(dict.fromkeys(plan.config.agent_specs(pair)))
    return list(specs)


def check_agent(plan: Plan, spec: AgentSpec) -> None:
    """Let an agent check its configuration and, if it will be asked, its model.

    Raises:
        UserError: The configuration or the model cannot work, or the agent's check fails itself.
    """
    try:
        agent = get_agent(spec.agent)()
    except CooperBenchError:
        raise
    except Exception:  # the outcome of each pair is then `crashed`
        return
    try:
        _check_with_agent(agent, plan, spec)
    except CooperBenchError:
        raise
    except Exception as error:
        problem = describe_error(error)
        raise UserError(f"agent {spec.agent!r} cannot check its settings: {problem}") from error


def _check_with_agent(agent: Agent, plan: Plan, spec: AgentSpec) -> None:
    agent.check(spec.config_path, plan.pairs, plan.config.setting)
    if spec.model is not None and plan.to_run and not plan.config.replay_from:
        # Agents of other packages may not have the argument base_url.
        base_url = {"base_url": spec.base_url} if spec.base_url else {}
        agent.check_model(spec.model, spec.config_path, **base_url)


def _check_shared_programs(specs: Sequence[AgentSpec]) -> None:
    """Raise UserError if the agents of one sandbox need the programs of several frameworks."""
    agents_by_programs: dict[Path, str] = {}
    for spec in specs:
        programs = AgentCode(spec.agent).programs()
        if programs is not None:
            agents_by_programs.setdefault(programs, spec.agent)
    if len(agents_by_programs) > 1:
        raise UserError(
            f"--workspace shared: {' and '.join(agents_by_programs.values())} cannot share a "
            "sandbox, which has the programs of one command-line agent"
        )


def _price_notes(config: RunConfig) -> list[str]:
    """Return a note for each model whose cost `--max-cost` cannot count."""
    if config.max_cost is None or not any(uses_model(agent) for agent in config.agents):
        return []
    notes: list[str] = []
    with suppress(UserError):  # LiteLLM may be missing: agents that are programs do not need it
        unpriced = [model for model in config.models if model and not has_price(model)]
        notes = [
            f"the price of {printable(model)} is not known: --max-cost does not count its calls"
            for model in unpriced
        ]
    return notes
