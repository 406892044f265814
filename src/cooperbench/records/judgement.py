"""judge.json: an LLM judge's opinion of why a pair failed."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from cooperbench.records.files import Record


class Quote(msgspec.Struct, kw_only=True, frozen=True):
    """A passage that supports a symptom; it occurs literally in its source."""

    source: str
    """`message:3`, `patch:agent1` or `tests:merged-f2`."""
    text: str
    start: int
    """Position of the passage in its source."""


class Symptom(msgspec.Struct, kw_only=True, frozen=True):
    """Something that went wrong between the agents."""

    symptom: str
    why: str
    quotes: list[Quote]


class FailureLabel(msgspec.Struct, kw_only=True, frozen=True):
    """The usable part of a judge's answer."""

    cause: str
    summary: str
    symptoms: list[Symptom]


class Judgement(Record, kw_only=True, frozen=True):
    """The judge's opinion of one pair."""

    SCHEMA: ClassVar[str] = "cooperbench.judge/1"

    model: str
    prompt_version: str
    key: str
    """Checksum of the prompt and of what the judge was shown."""
    repo: str
    task_id: int
    features: list[int]
    judged_at: str
    answers: int
    """Number of answers until one was usable."""
    problems: list[str]
    cost: float
    model_calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    model_seconds: float
    unpriced_calls: int
    version: str
    label: FailureLabel | None
    """None if no answer was usable."""
