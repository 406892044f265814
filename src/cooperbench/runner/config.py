"""What an experiment is: the choices that make its results comparable, and what may change between two calls."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.agents.base import Limits
from cooperbench.dataset.discovery import resolve_dataset_dir
from cooperbench.errors import UserError
from cooperbench.eval.batch import Order
from cooperbench.models import SETTINGS, seats_of
from cooperbench.runner.assignment import Assigned, Assignment
from cooperbench.runner.executors import JobOrder, Placement
from cooperbench.runner.options import ONLY_IN_TEAM, REPLAY_MODEL, TEAM_PARTS, RunOptions, options
from cooperbench.settings import checked_eval_network
from cooperbench.storage import ExperimentPaths, checked_run_name, read_json, utc_now, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.models import Pair

SCHEMA = "cooperbench.config/1"
_GIVEN_TYPES = dict.fromkeys(("agent", "model", "backend", "subset", "repo"), str) | {"task_id": int}
_TYPE_NAMES = {str: "a name", int: "a whole number"}


@dataclass(frozen=True)
class RunConfig(RunOptions):
    """One call of `run`, checked."""

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise UserError(f"setting is {self.setting!r}; it is one of {', '.join(SETTINGS)}")
        for name, kind in _GIVEN_TYPES.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise UserError(f"{name} is {value!r}; it is {_TYPE_NAMES[kind]}")
        if self.git_enabled is None:
            object.__setattr__(self, "git_enabled", self.setting == "team")
        for name, option in options().items():
            value = getattr(self, name)
            if option.above_zero is not None and value is not None and value <= 0:
                raise UserError(f"{name} is {value}; it is above 0")
        checked_eval_network(self.eval_network)
        _ = self.placement
        missing = [path for path in self.assignment.config_paths if path and not path.exists()]
        if missing:
            raise UserError(f"{missing[0]}: no such agent config")
        if self.prompts_dir is not None and not any(self.prompts_dir.glob("*.j2")):
            raise UserError(f"{self.prompts_dir}: no folder with templates (*.j2)")
        if self.setting == "solo":
            self.assignment.for_seats(1, "setting solo")

    @property
    def limits(self) -> Limits:
        """Of one agent."""
        return Limits(self.step_limit, self.cost_limit, self.time_limit_seconds)

    @property
    def assignment(self) -> Assignment:
        return Assignment.parse(self.agent, self.model, self.agent_config)

    @property
    def placement(self) -> Placement:
        return Placement(**{one.name: getattr(self, one.name) for one in fields(Placement)})

    @property
    def job_order(self) -> JobOrder:
        """What all jobs have in common: each works on one pair at a time."""
        at_once = max(1, self.eval_concurrency // (self.workers or self.concurrency))
        there = replace(self, force=False, concurrency=1, eval_concurrency=at_once)
        return JobOrder(there, there.order, self.backend, self.backend_options)

    @property
    def order(self) -> Order:
        """How results are judged."""
        return Order(
            self.paths, self.eval_concurrency, self.test_timeout_seconds, self.eval_network, self.canary
        )

    @property
    def backend_options(self) -> dict[str, object]:
        """Those that are given, for `get_backend`."""
        given = {one.for_backend: getattr(self, name) for name, one in options().items() if one.for_backend}
        return {keyword: value for keyword, value in given.items() if value}

    def assigned(self, pair: Pair) -> tuple[Assigned, ...]:
        """Who works on a pair, seat by seat."""
        return self.assignment.for_seats(len(seats_of(pair, self.setting)), pair.label)

    @property
    def paths(self) -> ExperimentPaths:
        return ExperimentPaths(self.logs_dir, self.run_name)

    @property
    def team_features(self) -> dict[str, bool]:
        """The parts of setting team, and which of them are on; empty in other settings."""
        if self.setting != "team":
            return {}
        return {part: bool(getattr(self, field)) for part, field in TEAM_PARTS.items()}

    def recording(self, pair: Pair, agent_id: str) -> Path | None:
        """Where an agent's answers come from, if from no model."""
        if self.replay_from is None:
            return None
        return (
            ExperimentPaths(self.logs_dir, self.replay_from)
            .pair(pair, self.setting)
            .agent(agent_id)
            .exchanges
        )

    def notes(self) -> tuple[str, ...]:
        """What was asked for and has no effect."""
        notes = []
        if self.git_enabled and self.setting == "solo":
            notes.append(
                "git collaboration (--git) is for coop; in solo there is nobody to share with, it is ignored"
            )
        off = [part for part in ONLY_IN_TEAM if not getattr(self, TEAM_PARTS[part])]
        if off and self.setting != "team":
            notes.append(f"{', '.join(off)}: parts of setting team; to switch them off is ignored here")
        return tuple(notes)

    def identity(self) -> dict[str, Any]:
        """What must stay the same for results to stand in one table."""
        return {
            "agent": ",".join(self.assignment.agents),
            "model_name": self.assignment.model_name,
            "agent_config_sha256": _digests(self.assignment.config_paths),
            **self._recorded("identity"),
            "prompts_sha256": _prompts_digest(self.prompts_dir),
            "dataset": self.dataset_dir.name,
            "dataset_revision": dataset_revision(self.dataset_dir),
        }

    def invocation(self) -> dict[str, Any]:
        """What this call asked for beyond that."""
        return {"time": utc_now(), "version": __version__, **self._recorded("invocation")}

    def _recorded(self, where: str) -> dict[str, Any]:
        values = {
            name: getattr(self, name)
            for name, option in options().items()
            if option.recorded == where and (self.setting == "team" or not name.startswith("team_"))
        }
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def differences(self) -> list[str]:
        """How this call differs from the experiment on disk, as lines `key: there → here`."""
        stored = self._stored()
        if stored is None:
            return []
        # Earlier versions recorded a model for agents that ask none, too.
        stored["model_name"] = Assignment.parse(self.agent, stored.get("model_name"), None).model_name
        return [
            f"{key}: {stored.get(key)!r} → {value!r}"
            for key, value in self.identity().items()
            # An experiment of an older version does not tell what there was no choice about.
            if key in stored and stored[key] != value
        ]

    def check_against_disk(self) -> None:
        different = self.differences()
        if different:
            raise UserError(
                f"experiment {self.run_name!r} was started with another configuration ({'; '.join(different)}); "
                "take another name (-n) or the same settings"
            )

    def save(self) -> None:
        stored = self._stored() or {}
        write_json(
            self.paths.config,
            {
                "schema": SCHEMA,
                "run_name": self.run_name,
                "setting": self.setting,
                **self.identity(),
                "invocations": [*stored.get("invocations", []), self.invocation()],
            },
        )

    def _stored(self) -> dict[str, Any] | None:
        if not self.paths.config.exists():
            return None
        stored = read_json(self.paths.config)
        if stored is None or stored.get("schema") != SCHEMA:
            raise UserError(
                f"{self.paths.config} is no configuration of this version; take another name (-n)"
            )
        return stored


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """Of what the command line, or the caller of `cooperbench.run`, has given."""
    if values["replay_from"] or values["agent"] == REPLAY_MODEL:
        values = _as_recorded(values)
    lists = {name: values[name] for name in ("features", "group_sizes")}
    for name, value in lists.items():
        if value is not None and (isinstance(value, str) or not all(type(one) is int for one in value)):
            raise UserError(f"{name} is {value!r}; it is a list of whole numbers, e.g. [1, 2]")
    return RunConfig(
        **{
            **values,
            "run_name": checked_run_name(values["run_name"]),
            "dataset_dir": resolve_dataset_dir(values["dataset_dir"]),
            "logs_dir": Path(values["logs_dir"]),
            **{name: None if value is None else tuple(value) for name, value in lists.items()},
            "mount": tuple(values["mount"] or ()),
            "prompts_dir": Path(values["prompts_dir"]) if values.get("prompts_dir") else None,
        }
    )


def _as_recorded(values: Mapping[str, Any]) -> dict[str, Any]:
    """With the agents and models of the run that is repeated, and what agents are told about limits and colleagues."""
    name, logs_dir = values["replay_from"], Path(values["logs_dir"])
    if not name or values["agent"] != REPLAY_MODEL:
        raise UserError(f"-a {REPLAY_MODEL} and --from RUN go together: the run whose agents work again")
    stored = read_json(ExperimentPaths(logs_dir, name).config)
    if stored is None or stored.get("schema") != SCHEMA:
        raise UserError(f"there is no run {name!r} in {logs_dir}")
    names = ("agent", "messaging_enabled", "git_enabled", "step_limit", "cost_limit", "time_limit_seconds")
    same = {key: stored[key] for key in names} | {"model": stored["model_name"]}
    return {**values, **same, "agent_config": stored["invocations"][-1]["agent_config"]}


def dataset_revision(dataset_dir: Path) -> str | None:
    """What `cooperbench prepare` recorded, if it made this dataset."""
    return (read_json(dataset_dir / ".cooperbench.json") or {}).get("revision")


def _digests(configs: tuple[Path | None, ...]) -> str | None:
    if configs == (None,):
        return None
    return ",".join("none" if config is None else _digest(config) for config in configs)


def _prompts_digest(folder: Path | None) -> str | None:
    texts = [path.name.encode() + path.read_bytes() for path in sorted(folder.glob("*.j2"))] if folder else []
    return hashlib.sha256(b"\0".join(texts)).hexdigest() if folder else None


def _digest(config: Path) -> str:
    if config.is_dir():
        return f"folder {config.name}"
    return hashlib.sha256(config.read_bytes()).hexdigest()
