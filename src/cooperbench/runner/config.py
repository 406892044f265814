"""What an experiment is: the choices that make its results comparable, and what may change between two calls."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cooperbench._version import __version__
from cooperbench.agents.base import Limits
from cooperbench.agents.registry import uses_model
from cooperbench.errors import UserError
from cooperbench.models import SETTINGS, Setting, seats_of
from cooperbench.settings import checked_eval_network
from cooperbench.storage import ExperimentPaths, read_json, utc_now, write_json
from cooperbench.team.mailbox import DEFAULT_REDIS_URL
from cooperbench.text import plural

if TYPE_CHECKING:
    from cooperbench.models import EvalNetwork, Pair
    from cooperbench.sandbox.contract import NetworkPolicy

SCHEMA = "cooperbench.config/1"


@dataclass(frozen=True)
class RunConfig:
    """One call of `run`, checked."""

    run_name: str
    dataset_dir: Path
    logs_dir: Path
    setting: Setting
    agent: str
    """One for all seats, or one for each, with commas; so are the model and the agent config."""
    model: str | None
    backend: str
    agent_config: str | Path | None = None
    subset: str | None = None
    repo: str | None = None
    task_id: int | None = None
    features: tuple[int, ...] | None = None
    concurrency: int = 20
    eval_concurrency: int = 10
    force: bool = False
    git_enabled: bool = False
    messaging_enabled: bool = True
    auto_eval: bool = True
    redis_url: str = DEFAULT_REDIS_URL
    limits: Limits = field(default_factory=Limits)
    network: NetworkPolicy = "none"
    eval_network: EvalNetwork = "auto"
    test_timeout_seconds: int = 600
    max_cost: float | None = None
    """US dollars for the whole experiment: past it no new pair is started."""
    sound_only: bool = False
    """Without features whose tests pass without them."""

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise UserError(f"setting is {self.setting!r}; it is one of {', '.join(SETTINGS)}")
        for name in ("concurrency", "eval_concurrency", "test_timeout_seconds"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it is at least 1")
        for name in ("steps", "cost", "seconds"):
            value = getattr(self.limits, name)
            if value is not None and value <= 0:
                raise UserError(f"the limit on {name} is {value}; it is above 0")
        checked_eval_network(self.eval_network)
        if self.max_cost is not None and self.max_cost <= 0:
            raise UserError(f"max_cost is {self.max_cost}; it is above 0")
        missing = [path for path in self.lineup.config_paths if path and not path.exists()]
        if missing:
            raise UserError(f"{missing[0]}: no such agent config")
        if self.setting == "solo":
            self.lineup.players(1, "setting solo")

    @property
    def lineup(self) -> Lineup:
        return Lineup.parse(self.agent, self.model, self.agent_config)

    def players(self, pair: Pair) -> tuple[Player, ...]:
        """Who works on a pair, seat by seat."""
        return self.lineup.players(len(seats_of(pair, self.setting)), pair.label)

    @property
    def paths(self) -> ExperimentPaths:
        return ExperimentPaths(self.logs_dir, self.run_name)

    def notes(self) -> tuple[str, ...]:
        """What was asked for and has no effect."""
        if self.git_enabled and self.setting == "solo":
            return (
                "git collaboration (--git) is for coop; in solo there is nobody to share with, it is ignored",
            )
        return ()

    def identity(self) -> dict[str, Any]:
        """What must stay the same for results to stand in one table."""
        return {
            "agent": ",".join(self.lineup.agents),
            "model_name": self.lineup.model_name,
            "agent_config_sha256": _digests(self.lineup.config_paths),
            "backend": self.backend,
            "git_enabled": self.git_enabled,
            "messaging_enabled": self.messaging_enabled,
            "network": self.network,
            "eval_network": self.eval_network,
            "step_limit": self.limits.steps,
            "cost_limit": self.limits.cost,
            "time_limit_seconds": self.limits.seconds,
            "dataset": self.dataset_dir.name,
            "dataset_revision": dataset_revision(self.dataset_dir),
        }

    def invocation(self) -> dict[str, Any]:
        """What this call asked for beyond that."""
        return {
            "time": utc_now(),
            "version": __version__,
            "setting": self.setting,
            "subset": self.subset,
            "repo": self.repo,
            "task_id": self.task_id,
            "features": list(self.features) if self.features else None,
            "agent_config": str(self.agent_config) if self.agent_config else None,
            "concurrency": self.concurrency,
            "eval_concurrency": self.eval_concurrency,
            "auto_eval": self.auto_eval,
            "force": self.force,
            "max_cost": self.max_cost,
            "sound_only": self.sound_only,
        }

    def differences(self) -> list[str]:
        """How this call differs from the experiment on disk, as lines `key: there → here`."""
        stored = self._stored()
        if stored is None:
            return []
        # Earlier versions recorded a model for agents that ask none, too.
        stored["model_name"] = Lineup.parse(self.agent, stored.get("model_name"), None).model_name
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


def dataset_revision(dataset_dir: Path) -> str | None:
    """What `cooperbench prepare` recorded, if it made this dataset."""
    return (read_json(dataset_dir / ".cooperbench.json") or {}).get("revision")


def _digests(configs: tuple[Path | None, ...]) -> str | None:
    if configs == (None,):
        return None
    return ",".join("none" if config is None else _digest(config) for config in configs)


def _digest(config: Path) -> str:
    if config.is_dir():
        return f"folder {config.name}"
    return hashlib.sha256(config.read_bytes()).hexdigest()


T = TypeVar("T")


@dataclass(frozen=True)
class Player:
    """What works in one seat."""

    agent: str
    model: str | None
    """None where the agent asks no model."""
    config_path: Path | None


@dataclass(frozen=True)
class Lineup:
    """Each has one value for all seats, or one for each; the first is agent1's."""

    agents: tuple[str, ...]
    models: tuple[str | None, ...]
    config_paths: tuple[Path | None, ...]

    @classmethod
    def parse(cls, agent: str, model: str | None, agent_config: str | Path | None) -> Lineup:
        models = (None,) if model is None else split_values(model, "models")
        return cls(split_values(agent, "agents"), models, split_paths(agent_config))

    @property
    def model_name(self) -> str | None:
        """The models that are asked: one for all seats, or those of the seats with an agent that asks one, in order."""
        asking = [uses_model(agent) for agent in self.agents]
        asked = self.models if any(asking) else ()
        if len(asking) == len(asked):
            asked = tuple(model for model, asks in zip(asked, asking, strict=True) if asks)
        return ",".join(model for model in asked if model) or None

    def players(self, seats: int, whose: str) -> tuple[Player, ...]:
        """One for each seat; `whose` names them in the error for a wrong number."""
        agents = _dealt(self.agents, seats, "agent", whose)
        models = _dealt(self.models, seats, "model", whose)
        configs = _dealt(self.config_paths, seats, "agent config", whose)
        return tuple(
            Player(agent, model if uses_model(agent) else None, config)
            for agent, model, config in zip(agents, models, configs, strict=True)
        )


def split_values(text: str, what: str) -> tuple[str, ...]:
    values = tuple(part.strip() for part in text.split(","))
    if not all(values):
        raise UserError(f"{text!r} is no list of {what}: there is nothing before or after a comma")
    return values


def split_paths(text: str | Path | None) -> tuple[Path | None, ...]:
    """A path that exists as it stands may have commas in its name. An empty part is a seat without a config."""
    if text is None:
        return (None,)
    if isinstance(text, Path) or "," not in text or Path(text).exists():
        return (Path(text),)
    return tuple(Path(part.strip()) if part.strip() else None for part in text.split(","))


def _dealt(values: tuple[T, ...], seats: int, noun: str, whose: str) -> tuple[T, ...]:
    if len(values) == 1:
        return values * seats
    if len(values) != seats:
        given = ",".join("" if value is None else str(value) for value in values)
        advice = "give one" if seats == 1 else "give one for all or one for each, with commas"
        raise UserError(
            f"{plural(len(values), noun)} ({given}) for {plural(seats, 'seat')} in {whose}; {advice}"
        )
    return values
