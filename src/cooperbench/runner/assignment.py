"""Who works on a pair: agent, model and agent config of each seat."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cooperbench.agents.registry import uses_model
from cooperbench.errors import UserError
from cooperbench.text import plural

T = TypeVar("T")


@dataclass(frozen=True)
class Assigned:
    """What works in one seat."""

    agent: str
    model: str | None
    """None where the agent asks no model."""
    config_path: Path | None


@dataclass(frozen=True)
class Assignment:
    """Each has one value for all seats, or one for each; the first is agent1's."""

    agents: tuple[str, ...]
    models: tuple[str | None, ...]
    config_paths: tuple[Path | None, ...]

    @classmethod
    def parse(cls, agent: str, model: str | None, agent_config: str | Path | None) -> Assignment:
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

    def for_seats(self, seats: int, whose: str) -> tuple[Assigned, ...]:
        """One for each seat; `whose` names them in the error for a wrong number."""
        agents = _dealt(self.agents, seats, "agent", whose)
        models = _dealt(self.models, seats, "model", whose)
        configs = _dealt(self.config_paths, seats, "agent config", whose)
        return tuple(
            Assigned(agent, model if uses_model(agent) else None, config)
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
