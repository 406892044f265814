"""study.json: the factors of a study, and its arms."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from cooperbench.records.files import JsonObject, Record

ON, OFF = "on", "off"
"""The levels of a part of cooperation, such as messages or git."""
_FIRST_SCHEMA = "cooperbench.study/1"


class StudyFactor(msgspec.Struct, kw_only=True, frozen=True):
    """A factor of a study, such as the number of messages."""

    name: str
    levels: list[str]
    """In their order, if they have one; else in the order of the call."""
    is_ordered: bool
    """Whether a level is more than the one before. `off` comes before `on`."""
    options: list[str]
    """The entries of config.json that depend on the level."""


class StudyArm(msgspec.Struct, kw_only=True, frozen=True):
    """One arm: a run with one level of each factor."""

    name: str
    """Folder of the run, beside study.json."""
    levels: dict[str, str]
    """The level of each factor."""
    options: JsonObject
    """The entries of config.json that depend on the levels; None for one that is not there."""
    round: int
    """1 for the first; later ones repeat the same levels."""


class StudyRecord(Record, kw_only=True, frozen=True):
    """A study: runs of the same pairs that differ in the levels of its factors."""

    SCHEMA: ClassVar[str] = "cooperbench.study/2"

    study: str
    factors: list[StudyFactor]
    arms: list[StudyArm]

    @classmethod
    def from_file(cls, content: JsonObject) -> JsonObject:
        """Return the content of a file; older ones have parts that arms switch off."""
        if content.get("schema") != _FIRST_SCHEMA:
            return content
        parts, arms = content.get("parts"), content.get("arms")
        option_by_part = parts if isinstance(parts, dict) else {}
        if not isinstance(arms, list):
            arms = []
        factors = [
            {"name": part, "levels": [OFF, ON], "is_ordered": True, "options": [option]}
            for part, option in option_by_part.items()
        ]
        return {
            "schema": content["schema"],
            "study": content.get("study"),
            "factors": factors,
            "arms": [_translate_arm(arm, option_by_part) for arm in arms if isinstance(arm, dict)],
        }


def _translate_arm(arm: JsonObject, option_by_part: JsonObject) -> JsonObject:
    """Return an arm of the first format, which lists the parts that are off."""
    switched_off = arm.get("off")
    if not isinstance(switched_off, list):
        switched_off = []
    levels = {}
    options = {}
    for part, option in option_by_part.items():
        is_on = part not in switched_off
        levels[part] = ON if is_on else OFF
        options[option] = is_on
    return {
        "name": arm.get("name"),
        "levels": levels,
        "options": options,
        "round": arm.get("round"),
    }
