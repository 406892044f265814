"""What a judge answered, checked: known words only, and quotes that really occur where it says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.taxonomy import CAUSES, SYMPTOMS
from cooperbench.report.records import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SHORTEST_QUOTE = 8
_LONGEST_TEXT = 1_000
_MOST_SYMPTOMS = len(SYMPTOMS)
_MOST_TRIES = 20


@dataclass(frozen=True)
class Quote:
    """A place in a message (`message:3`), a patch (`patch:agent1`) or a test output (`tests:merged-f2`)."""

    source: str
    text: str
    start: int
    """Where it begins in that text, in characters from 0."""


@dataclass(frozen=True)
class Symptom:
    symptom: str
    why: str
    quotes: tuple[Quote, ...]
    """At least one."""


@dataclass(frozen=True)
class Label:
    cause: str
    summary: str
    symptoms: tuple[Symptom, ...]


@dataclass(frozen=True)
class CheckedAnswer:
    label: Label | None
    """What of the answer holds; None where nothing does."""
    problems: tuple[str, ...]
    """What does not, a line each, in words that a judge can mend it by."""


def check_answer(answer: str, sources: Mapping[str, str]) -> CheckedAnswer:
    content = _json_object(answer)
    if content is None:
        return CheckedAnswer(None, ("the answer holds no JSON object",))
    cause = content.get("cause")
    if not isinstance(cause, str) or cause not in CAUSES:
        return CheckedAnswer(None, (f"cause is {_short(cause)}; it is one of {', '.join(CAUSES)}",))
    listed = content.get("symptoms")
    if not is_list(listed):
        return CheckedAnswer(None, ("symptoms is no list",))
    problems: list[str] = []
    symptoms = [one for item in listed[:_MOST_SYMPTOMS] if (one := _symptom(item, sources, problems))]
    if cause != "none" and not symptoms:
        problems.append(f"the cause is {cause}, but no symptom with a quote that occurs supports it")
        return CheckedAnswer(None, tuple(problems))
    return CheckedAnswer(Label(cause, _text(content.get("summary")), tuple(symptoms)), tuple(problems))


def _symptom(item: object, sources: Mapping[str, str], problems: list[str]) -> Symptom | None:
    if not is_object(item):
        problems.append("a symptom is no object")
        return None
    name = item.get("symptom")
    if not isinstance(name, str) or name not in SYMPTOMS:
        problems.append(f"symptom {_short(name)} is none of {', '.join(SYMPTOMS)}")
        return None
    listed = item.get("quotes")
    quotes = [
        quote
        for given in (listed if is_list(listed) else [])[:20]
        if (quote := _quote(given, sources, problems))
    ]
    if not quotes:
        problems.append(f"symptom {name} has no quote that occurs")
        return None
    return Symptom(name, _text(item.get("why")), tuple(quotes))


def _quote(given: object, sources: Mapping[str, str], problems: list[str]) -> Quote | None:
    source = given.get("source") if is_object(given) else None
    text = given.get("text") if is_object(given) else None
    if not isinstance(source, str) or source not in sources:
        problems.append(f"there is no part {_short(source)} to quote from")
        return None
    if not isinstance(text, str) or not _SHORTEST_QUOTE <= len(text) <= _LONGEST_TEXT:
        problems.append(
            f"a quote from {source} is no text of {_SHORTEST_QUOTE} to {_LONGEST_TEXT} characters"
        )
        return None
    start = sources[source].find(text)
    if start < 0:
        problems.append(f"this does not occur in {source}: {_short(text)}")
        return None
    return Quote(source, text, start)


def _json_object(answer: str) -> dict[str, Any] | None:
    """The first object in it that has a cause, or the first at all; models like to put words around it."""
    found = list(_json_objects(answer))
    return next((one for one in found if "cause" in one), found[0] if found else None)


def _json_objects(answer: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    at = answer.find("{")
    for _ in range(_MOST_TRIES):
        if at < 0:
            return
        try:
            content, end = decoder.raw_decode(answer, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if is_object(content):
                yield content
        at = answer.find("{", end)


def _text(value: object) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""


def _short(value: object) -> str:
    return repr(value)[:120]
