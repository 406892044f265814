"""A judge's labels for the page of a pair: what a model thinks, kept apart from everything that is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.llm_judge_prompt import CAUSES, SYMPTOMS
from cooperbench.report.records import is_list, is_object, read_object, text_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.report.loading import PairData

_MOST = 20
"""Symptoms, and quotes of each."""
_MOST_CHARACTERS = 1_000


def opinion_of(pair: PairData) -> dict[str, Any] | None:
    """What judge.json says; None where there is none. It may have been written by anybody: only text is taken."""
    record, problem = read_object(pair.paths.judgement)
    if record is None and problem is None:
        return None
    label = (record or {}).get("label")
    opinion: dict[str, Any] = {
        "model": text_or_none(record or {}, "model"),
        "judged_at": text_or_none(record or {}, "judged_at"),
        "problem": problem,
        "cause": None,
        "meaning": None,
        "summary": "",
        "symptoms": [],
    }
    if is_object(label):
        cause = _text(label, "cause")
        opinion |= {
            "cause": cause,
            "meaning": CAUSES.get(cause),
            "summary": _text(label, "summary"),
            "symptoms": [_symptom(one) for one in _objects(label, "symptoms")],
        }
    return opinion


def _symptom(record: Mapping[str, Any]) -> dict[str, Any]:
    name = _text(record, "symptom")
    return {
        "name": name.replace("_", " "),
        "meaning": SYMPTOMS.get(name),
        "why": _text(record, "why"),
        "quotes": [_quote(one) for one in _objects(record, "quotes")],
    }


def _quote(record: Mapping[str, Any]) -> dict[str, Any]:
    source = _text(record, "source")
    kind, _, number = source.partition(":")
    message = int(number) if kind == "message" and number.isascii() and number.isdigit() else None
    return {"source": source.replace(":", " "), "message": message, "text": _text(record, "text")}


def _objects(record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    listed = record.get(key)
    return [one for one in listed[:_MOST] if is_object(one)] if is_list(listed) else []


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else ""
