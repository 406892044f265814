"""Factors of a study, and their levels: which options of a run may vary, and how."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cooperbench.errors import UserError
from cooperbench.models import MAX_AGENTS
from cooperbench.records import JsonObject
from cooperbench.records.study import OFF, ON, StudyFactor
from cooperbench.runner.config import RunConfig
from cooperbench.runner.options import OPTIONS, TEAM_PARTS
from cooperbench.team.channel import KNOWLEDGE
from cooperbench.text import names_for_error, printable

UNLIMITED = "unlimited"
_MAX_LEVEL_CHARACTERS = 40
_UNUSUAL_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class FactorKind:
    """An option of a run whose values may be the levels of a factor."""

    field: str
    """The field of `RunOptions`."""
    options: tuple[str, ...]
    """The entries of config.json that depend on it."""
    number: Callable[[str], float] | None = None
    """Parser of levels that are numbers."""
    order: Sequence[str] = ()
    """All levels in their order, if they have names and an order."""
    needs_messages: bool = False
    """Whether it is about messages, which a single agent does not have."""

    @property
    def is_ordered(self) -> bool:
        """Whether a level can be more than another one."""
        return self.number is not None or bool(self.order)


FACTOR_KINDS = {
    "agents": FactorKind("agent_count", ("agent_count", "setting"), number=int),
    "messages": FactorKind("message_budget", ("message_budget",), number=int, needs_messages=True),
    "characters": FactorKind(
        "character_budget", ("character_budget",), number=int, needs_messages=True
    ),
    "delay": FactorKind("message_delay", ("message_delay",), number=int, needs_messages=True),
    "loss": FactorKind("message_loss", ("message_loss",), number=float, needs_messages=True),
    "topology": FactorKind("topology", ("topology",), needs_messages=True),
    "knows": FactorKind("knows", ("knows",), order=KNOWLEDGE, needs_messages=True),
    "model": FactorKind("model", ("model_name",)),
    "agent": FactorKind("agent", ("agent", "model_name")),
}
"""Factors by the name of their flag. The parts of cooperation (`TEAM_PARTS`) are factors too, with
the levels on and off."""


@dataclass(frozen=True)
class Level:
    """One level of a factor."""

    name: str
    changes: JsonObject
    """The fields of `RunOptions` that have other values at this level."""


@dataclass(frozen=True)
class Factor:
    """A part of the configuration that a study varies."""

    name: str
    levels: tuple[Level, ...]
    """In the order of the call; the first is the one to compare with."""
    options: tuple[str, ...]
    is_switch: bool = False
    """Whether it is a part of cooperation, with the levels on and off."""

    @property
    def record(self) -> StudyFactor:
        """The factor as study.json has it."""
        return StudyFactor(
            name=self.name,
            levels=sort_levels(self.name, [level.name for level in self.levels]),
            is_ordered=self.is_switch or FACTOR_KINDS[self.name].is_ordered,
            options=list(self.options),
        )


def is_switch(levels: Iterable[str]) -> bool:
    """Return whether these are the levels of a part of cooperation."""
    return set(levels) <= {OFF, ON}


def sort_levels(factor: str, levels: Sequence[str]) -> list[str]:
    """Return levels in their order: numbers, unlimited last; off before on."""
    if is_switch(levels):
        return sorted(levels, key=(OFF, ON).index)
    kind = FACTOR_KINDS.get(factor)
    if kind is None:
        return list(levels)
    if kind.number is not None:
        number = kind.number
        return sorted(
            levels, key=lambda level: float("inf") if level == UNLIMITED else number(level)
        )
    if kind.order:
        return sorted(levels, key=kind.order.index)
    return list(levels)


def make_factors(
    config: RunConfig, levels: Mapping[str, Sequence[Any]], off: Sequence[str]
) -> tuple[Factor, ...]:
    """Return the factors of a study.

    Args:
        config: What all arms have in common.
        levels: The levels of each factor of `FACTOR_KINDS`, as values or as texts.
        off: Parts of cooperation that are factors with the levels on and off.

    Raises:
        UserError: A factor or level does not exist, the setting does not have it, or it is there
            twice.
    """
    factors = [_make_factor(config, name, values) for name, values in levels.items()]
    if "messages" in levels and "messages" in off:
        raise UserError("--messages is a factor already: leave out --off messages, and add level 0")
    factors += _make_switches(config, off)
    if not factors:
        names = ", ".join(f"--{name}" for name in FACTOR_KINDS)
        raise UserError(f"a sweep needs several levels of an option ({names}), or --off PART")
    if _has_single_agent(factors):
        _check_single_agent(factors)
    return tuple(factors)


def _has_single_agent(factors: Iterable[Factor]) -> bool:
    for factor in factors:
        if factor.name == "agents":
            return "1" in [level.name for level in factor.levels]
    return False


def _check_single_agent(factors: Iterable[Factor]) -> None:
    """Raise UserError for a factor that a single agent does not have."""
    for factor in factors:
        if factor.is_switch or FACTOR_KINDS[factor.name].needs_messages:
            raise UserError(
                f"--agents 1 has nobody to cooperate with, so {factor.name} cannot vary: "
                "leave out one of the two"
            )


def _make_factor(config: RunConfig, name: str, values: Sequence[Any]) -> Factor:
    kind = FACTOR_KINDS.get(name)
    if kind is None:
        raise UserError(f"no factor {name!r}; available: {names_for_error(FACTOR_KINDS, name)}")
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(f"the levels of {name} are {values!r}; they must be a list")
    _check_varies(config, name, kind)
    levels = [_make_level(name, kind, value) for value in values]
    _check_levels(name, levels)
    return Factor(name, tuple(levels), kind.options)


def _check_varies(config: RunConfig, name: str, kind: FactorKind) -> None:
    """Raise UserError for a factor that cannot vary in this setting, or with these features."""
    if config.setting == "solo" and (kind.needs_messages or name == "agents"):
        raise UserError(f"setting solo has one agent, so {name} cannot vary: use coop or team")
    if name == "agents" and config.features is None and config.group_sizes is None:
        raise UserError(
            "--agents as a factor needs the features that they share: -f 1,2,3,4 or --group-size 4"
        )


def _check_levels(name: str, levels: Sequence[Level]) -> None:
    """Raise UserError unless there are at least two levels, all different."""
    for index, level in enumerate(levels):
        if level.changes in [earlier.changes for earlier in levels[:index]]:
            raise UserError(f"--{name} has the level {printable(level.name)} twice")
    if len(levels) < 2:
        raise UserError(f"--{name} has {len(levels)} level; a factor needs at least two")


def _make_level(name: str, kind: FactorKind, value: Any) -> Level:
    option = OPTIONS[kind.field]
    if isinstance(value, str) and kind.number is not None:
        value = _read_number(name, kind, value)
    if value is None and not (option.optional and kind.number is not None and name != "agents"):
        raise UserError(f"--{name} does not have the level None")
    option.check(f"--{name}", value)
    if value is None:
        return Level(UNLIMITED, {kind.field: None})
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return Level(text, {kind.field: value})


def _read_number(name: str, kind: FactorKind, text: str) -> float | None:
    """Parse a level that is a number or, for budgets, `unlimited`, which is None."""
    assert kind.number is not None
    if text == UNLIMITED and name in ("messages", "characters"):
        return None
    try:
        return kind.number(text)
    except ValueError:
        description = OPTIONS[kind.field].type.description
        if name == "agents":
            description = f"a whole number from 1 to {MAX_AGENTS}"
        raise UserError(f"--{name}: {printable(text)!r} is not {description}") from None


def _make_switches(config: RunConfig, off: Sequence[str]) -> list[Factor]:
    """Return a factor for each part of cooperation, in the order of `TEAM_PARTS`."""
    if not off:
        return []
    fields = _parts_of_setting(config)
    _check_parts(config, off, fields)
    return [
        Factor(
            part,
            (Level(ON, {field: True}), Level(OFF, {field: False})),
            (field,),
            is_switch=True,
        )
        for part, field in fields.items()
        if part in off
    ]


def _parts_of_setting(config: RunConfig) -> dict[str, str]:
    """Return the parts that can be switched off, with the field of `RunOptions` of each."""
    if config.setting == "solo":
        raise UserError("in setting solo nobody cooperates: --off needs coop or team")
    if config.setting == "team":
        return TEAM_PARTS
    return {part: field for part, field in TEAM_PARTS.items() if not field.startswith("team_")}


def _check_parts(config: RunConfig, off: Sequence[str], fields: Mapping[str, str]) -> None:
    """Raise UserError for a part that does not exist, is there twice, or is off anyway."""
    is_on = {**vars(config), "git_enabled": config.shares_git}
    for index, part in enumerate(off):
        if part in off[:index]:
            raise UserError(f"--off names {part} twice")
        if part not in fields:
            names = names_for_error(fields, part)
            raise UserError(
                f"no part {part!r} to switch off in setting {config.setting}; available: {names}"
            )
        # In coop git is off by default: the study switches it on.
        is_git_in_coop = config.setting == "coop" and part == "git"
        if not is_on[fields[part]] and not is_git_in_coop:
            raise UserError(f"{part} is off in all arms already; leave it out of --off, or on")


def level_slugs(factor: Factor) -> dict[str, str]:
    """Return the text of each level in the names of folders.

    Levels that differ only in characters that names cannot have get a checksum.
    """
    slugs = {}
    for level in factor.levels:
        slug = _UNUSUAL_CHARACTERS.sub("_", level.name)[:_MAX_LEVEL_CHARACTERS]
        slugs[level.name] = slug
    texts = list(slugs.values())
    for name, slug in slugs.items():
        if texts.count(slug) > 1:
            slugs[name] = f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    return slugs
