"""What an experiment is: the choices that make its results comparable, and what may change between two calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cooperbench._version import __version__
from cooperbench.agents.base import Limits
from cooperbench.agents.registry import uses_model
from cooperbench.dataset.discovery import resolve_dataset_dir
from cooperbench.errors import UserError
from cooperbench.models import Pair, agent_slots
from cooperbench.runner.options import EXECUTORS, OPTIONS, REPLAY_MODEL, TEAM_PARTS, RunOptions
from cooperbench.storage import ExperimentPaths, read_json, utc_now, write_json
from cooperbench.text import plural

T = TypeVar("T")
SCHEMA = "cooperbench.config/1"
_TYPES = {
    "str": (str,),
    "str | Path": (str, Path),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
}
_CALLED = {"str": "a name", "str | Path": "a path", "int": "a whole number", "float": "a number"}
_FOR_JOBS = ("workers", "pairs_per_job", "slurm", "ray_address", "ray_resources")


class AgentSpec(NamedTuple):
    """What works in one slot."""

    agent: str
    model: str | None
    """None where the agent asks no model."""
    config_path: Path | None
    base_url: str | None = None


@dataclass(frozen=True)
class RunConfig(RunOptions):
    """One call of `run`, or of `evaluate`, checked."""

    evaluate_only: bool = False
    """No agent works: the results are there, and are judged."""

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value, annotation = getattr(self, name), str(self.__dataclass_fields__[name].type)
            chosen = value is not None or not annotation.endswith(" | None")
            if option.choices and chosen and value not in option.choices:
                raise UserError(
                    f"{name} is {value!r}; it must be one of {', '.join(option.choices)}"
                )
            check_type(name, value, annotation)
            if (
                option.words
                and annotation.startswith(("int", "float"))
                and value is not None
                and value <= 0
            ):
                raise UserError(f"{name} is {value}; it must be above 0")
        if self.git_enabled is None:
            object.__setattr__(self, "git_enabled", self.setting == "team")
        for name in _FOR_JOBS:
            owner = name.partition("_")[0]
            wrong = self.executor == "local" or (owner in EXECUTORS and owner != self.executor)
            if wrong and getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} is not for --executor {self.executor}")
        for path in self.agent_config_paths:
            if path and not path.exists():
                raise UserError(f"{path}: no such agent config")
        if self.prompts_dir is not None and not any(self.prompts_dir.glob("*.j2")):
            raise UserError(f"{self.prompts_dir}: no folder with templates (*.j2)")
        if self.setting == "solo":
            self._agent_specs(1, "setting solo")

    @property
    def paths(self) -> ExperimentPaths:
        return ExperimentPaths(self.logs_dir, self.run_name)

    @property
    def limits(self) -> Limits:
        """Of one agent."""
        return Limits(self.step_limit, self.cost_limit, self.time_limit_seconds)

    @property
    def max_jobs(self) -> int:
        """At once, on a cluster."""
        return self.workers or self.concurrency

    @property
    def backend_options(self) -> dict[str, object]:
        """Those that are given, for `get_backend`."""
        given = {
            one.for_backend: getattr(self, name) for name, one in OPTIONS.items() if one.for_backend
        }
        return {keyword: value for keyword, value in given.items() if value}

    @property
    def agents(self) -> tuple[str, ...]:
        """One for all slots, or one for each, the first agent1's; so are the next three."""
        return split_values(self.agent, "agents")

    @property
    def models(self) -> tuple[str | None, ...]:
        return (None,) if self.model is None else split_values(self.model, "models")

    @property
    def base_urls(self) -> tuple[str | None, ...]:
        return tuple(part.strip() or None for part in (self.base_url or "").split(","))

    @property
    def agent_config_paths(self) -> tuple[Path | None, ...]:
        """A path that exists as it stands may have commas in its name. An empty part is a slot without a config."""
        text = self.agent_config
        if text is None:
            return (None,)
        if isinstance(text, Path) or "," not in text or Path(text).exists():
            return (Path(text),)
        return tuple(Path(part.strip()) if part.strip() else None for part in text.split(","))

    @property
    def own_files(self) -> tuple[Path, ...]:
        """Of the user, which agents are given or told."""
        return tuple(filter(None, (*self.agent_config_paths, self.prompts_dir)))

    @property
    def model_name(self) -> str | None:
        """The models that are asked: one for all slots, or those of the slots with an agent that asks one, in order."""
        asking = [uses_model(agent) for agent in self.agents]
        asked = self.models if any(asking) else ()
        if len(asking) == len(asked):
            asked = tuple(model for model, asks in zip(asked, asking, strict=True) if asks)
        return ",".join(model for model in asked if model) or None

    def agent_specs(self, pair: Pair) -> tuple[AgentSpec, ...]:
        """Who works on a pair, slot by slot."""
        return self._agent_specs(len(agent_slots(pair, self.setting)), pair.label)

    def _agent_specs(self, slots: int, whose: str) -> tuple[AgentSpec, ...]:
        agents = _per_slot(self.agents, slots, "agent", whose)
        models = _per_slot(self.models, slots, "model", whose)
        configs = _per_slot(self.agent_config_paths, slots, "agent config", whose)
        urls = _per_slot(self.base_urls, slots, "base URL", whose)
        return tuple(
            AgentSpec(agent, model if uses_model(agent) else None, config, url)
            for agent, model, config, url in zip(agents, models, configs, urls, strict=True)
        )

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
        recorded = ExperimentPaths(self.logs_dir, self.replay_from)
        return recorded.pair(pair, self.setting).agent(agent_id).exchanges

    def identity(self) -> dict[str, Any]:
        """What must stay the same for results to stand in one table."""
        prepared = read_json(self.dataset_dir / ".cooperbench.json") or {}
        digests = ["none" if path is None else _digest(path) for path in self.agent_config_paths]
        return {
            "agent": ",".join(self.agents),
            "model_name": self.model_name,
            "agent_config_sha256": None if digests == ["none"] else ",".join(digests),
            **self._recorded("identity"),
            "prompts_sha256": self._prompts_digest(),
            "dataset": self.dataset_dir.name,
            "dataset_revision": prepared.get("revision"),
        }

    def _prompts_digest(self) -> str | None:
        if self.prompts_dir is None:
            return None
        texts = [
            path.name.encode() + path.read_bytes() for path in sorted(self.prompts_dir.glob("*.j2"))
        ]
        return hashlib.sha256(b"\0".join(texts)).hexdigest()

    def _recorded(self, where: str) -> dict[str, Any]:
        values = {
            name: getattr(self, name)
            for name, option in OPTIONS.items()
            if option.recorded == where and (self.setting == "team" or not name.startswith("team_"))
        }
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in values.items()
        }

    def check_against_disk(self) -> None:
        stored = self._stored()
        different = [
            f"{key}: {stored.get(key)!r} → {value!r}"
            for key, value in self.identity().items()
            # A part of setting team is not recorded for the others, which may be in the same experiment.
            if key in stored and stored[key] != value
        ]
        begun = self.paths.settings_on_disk() or self.paths.jobs_record.exists()
        if different and begun:
            raise UserError(
                f"experiment {self.run_name!r} was started with another configuration ({'; '.join(different)}); "
                "take another name (-n) or the same settings"
            )

    def save(self) -> None:
        call = {"time": utc_now(), "version": __version__, **self._recorded("invocation")}
        write_json(
            self.paths.config,
            {
                "schema": SCHEMA,
                "run_name": self.run_name,
                "setting": self.setting,
                **self.identity(),
                "invocations": [*self._stored().get("invocations", []), call],
            },
        )

    def _stored(self) -> dict[str, Any]:
        """Empty where the experiment is new."""
        if not self.paths.config.exists():
            return {}
        stored = read_json(self.paths.config)
        if stored is None or stored.get("schema") != SCHEMA:
            raise UserError(
                f"{self.paths.config} is no configuration of this version: take another -n"
            )
        return stored


def check_type(name: str, value: object, annotation: str) -> None:
    """UserError for a value that is not what the annotation says, as far as that is a simple type."""
    declared = annotation.removesuffix(" | None")
    kinds, is_no_bool = _TYPES.get(declared, (object,)), declared in _CALLED
    right = isinstance(value, kinds) and not (is_no_bool and isinstance(value, bool))
    if not right and (value is not None or declared == annotation):
        raise UserError(f"{name} is {value!r}; it must be {_CALLED.get(declared, 'True or False')}")


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """Of what the command line, or the caller of `run` or `evaluate`, has given; the rest are defaults."""
    if values.get("replay_from") or values.get("agent") == REPLAY_MODEL:
        values = _as_recorded(values)
    lists = {name: values.get(name) for name in ("features", "group_sizes")}
    for name, value in lists.items():
        is_list = isinstance(value, Iterable) and all(type(one) is int for one in value)
        if value is not None and not is_list:
            raise UserError(f"{name} is {value!r}; it must be a list of whole numbers, e.g. [1, 2]")
    return RunConfig(
        **{
            **values,
            "dataset_dir": resolve_dataset_dir(values["dataset_dir"]),
            "logs_dir": Path(values["logs_dir"]),
            **{name: None if value is None else tuple(value) for name, value in lists.items()},
            "mount": (mount,)
            if isinstance(mount := values.get("mount"), str)
            else tuple(mount or ()),
            "prompts_dir": Path(values["prompts_dir"]) if values.get("prompts_dir") else None,
        }
    )


def _as_recorded(values: Mapping[str, Any]) -> dict[str, Any]:
    """With the agents and models of the run that is repeated, and what agents are told about limits and teammates."""
    name, logs_dir = values.get("replay_from"), Path(values["logs_dir"])
    if not name or values["agent"] != REPLAY_MODEL:
        raise UserError(
            f"-a {REPLAY_MODEL} and --from RUN go together: the run whose agents work again"
        )
    stored = read_json(ExperimentPaths(logs_dir, name).config)
    if stored is None or stored.get("schema") != SCHEMA:
        raise UserError(f"there is no run {name!r} in {logs_dir}")
    names = (
        "agent",
        "messaging_enabled",
        "git_enabled",
        "step_limit",
        "cost_limit",
        "time_limit_seconds",
    )
    same = {key: stored[key] for key in names} | {"model": stored["model_name"]}
    return {**values, **same, "agent_config": stored["invocations"][-1]["agent_config"]}


def split_values(text: str, what: str) -> tuple[str, ...]:
    values = tuple(part.strip() for part in text.split(","))
    if not all(values):
        raise UserError(f"{text!r} is no list of {what}: there is nothing before or after a comma")
    return values


def _per_slot(values: tuple[T, ...], slots: int, noun: str, whose: str) -> tuple[T, ...]:
    """One for each slot; `whose` names them in the error for a wrong number."""
    if len(values) == 1:
        return values * slots
    if len(values) != slots:
        given = ",".join("" if value is None else str(value) for value in values)
        advice = "give one" if slots == 1 else "give one for all or one for each, with commas"
        raise UserError(
            f"{plural(len(values), noun)} ({given}) for {plural(slots, 'agent slot')} in {whose}; {advice}"
        )
    return values


def _digest(config: Path) -> str:
    return (
        f"folder {config.name}"
        if config.is_dir()
        else hashlib.sha256(config.read_bytes()).hexdigest()
    )
