"""study.json: the arms of an ablation study."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from cooperbench.records.files import Record


class StudyArm(msgspec.Struct, kw_only=True, frozen=True):
    """One arm: a run in which some parts are switched off."""

    name: str
    """Folder of the run, beside study.json."""
    off: list[str]
    """Parts that are switched off."""
    round: int
    """1 for the first; later ones repeat the same arms."""


class StudyRecord(Record, kw_only=True, frozen=True):
    """An ablation study."""

    SCHEMA: ClassVar[str] = "cooperbench.study/1"

    study: str
    parts: dict[str, str]
    """Parts that the study is about, and the option of each."""
    arms: list[StudyArm]
