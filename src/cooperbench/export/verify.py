"""Does a submission hold? Against itself, and against the logs where they are at hand.

From the logs the submission is made again and compared part by part; no path in the submission is ever opened. What
this cannot show is that the logs themselves are honest: for that the pairs are evaluated again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.errors import UserError
from cooperbench.export.submission import (
    SCHEMA,
    canonical,
    checksum_of,
    is_complete,
    submission_of,
    totals_of,
)
from cooperbench.report.loading import load_run
from cooperbench.report.records import is_list, is_object, mapping, text_or_none
from cooperbench.report.states import JUDGED, STATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cooperbench.report.loading import Run

_SHORT = 100
_WHOLE = ("checksum", "complete", "pairs", "run", "schema", "totals")
"""Checked in ways of their own; a folder of logs may have another name elsewhere."""


class Verified(NamedTuple):
    mismatches: list[str]
    """A line each; empty: it holds."""
    pairs: int
    run: Run | None
    """The run that it was held against; None: its logs are not here."""


def verify_submission(path: Path, logs_dir: Path, run: Run | None = None) -> Verified:
    """Against `run`, or against the run of its name in the logs folder if there is one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    try:
        document = json.loads(data)
        found = list(_integrity(document, data)) if is_object(document) else ["it holds no JSON object"]
    except (ValueError, RecursionError):
        return Verified(["it is not whole JSON"], 0, None)
    if not is_object(document) or document.get("schema") != SCHEMA:
        return Verified(found, 0, None)
    run = run or _run_at_hand(text_or_none(document, "run"), logs_dir)
    if run is not None:
        found += _against_logs(document, submission_of(run))
    return Verified(found, len(_pairs(document)), run)


def _integrity(document: Mapping[str, Any], data: bytes) -> Iterator[str]:
    if document.get("schema") != SCHEMA:
        yield f"its schema is {_short(document.get('schema'))}, not {SCHEMA}"
        return
    if document.get("checksum") != (checksum := checksum_of(document)):
        yield f"its checksum is {_short(document.get('checksum'))}, of its content it would be {checksum}"
    if canonical(document) + b"\n" != data:
        yield "it is not in canonical form: not the bytes that were written"
    pairs = _pairs(document)
    if not is_list(listed := document.get("pairs")) or len(listed) != len(pairs):
        yield "pairs is no list of pairs"
    seen = set()
    for pair in pairs:
        name = _name(pair)
        if name in seen:
            yield f"{name}: is in it twice"
        seen.add(name)
        yield from (f"{name}: {line}" for line in _pair_integrity(pair))
    if document.get("totals") != totals_of(pairs):
        yield "totals are not those of its pairs"
    if document.get("complete") is not is_complete(pairs):
        yield f"complete is {_short(document.get('complete'))}, of its pairs it would be {is_complete(pairs)}"


def _pair_integrity(pair: Mapping[str, Any]) -> Iterator[str]:
    state, verdicts = pair.get("state"), pair.get("verdicts")
    if state not in STATES:
        yield f"there is no state {_short(state)}"
    elif state not in JUDGED:
        if verdicts is not None:
            yield f"it has verdicts in the state {state}"
    elif mapping(pair, "verdicts").get("overall") is not (state == "passed"):
        yield f"its verdicts do not fit to the state {state}"
    elif not {"result.json", "eval.json"} <= mapping(pair, "files").keys():
        yield "it has a verdict without checksums of result.json and eval.json"


def _run_at_hand(name: str | None, logs_dir: Path) -> Run | None:
    try:
        return load_run(logs_dir, name) if name else None
    except UserError:
        return None


def _against_logs(document: Mapping[str, Any], logs: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*document, *logs} - {*_WHOLE}):
        yield from _differences(name, document.get(name), logs.get(name))
    there = {_name(pair): pair for pair in _pairs(logs)}
    handed_in = {_name(pair): pair for pair in _pairs(document)}
    for name, pair in handed_in.items():
        if name not in there:
            yield f"{name}: is not in the logs"
            continue
        yield from (f"{name}: {line}" for line in _pair_differences(pair, there[name]))
    yield from (f"{name}: is in the logs only" for name in there if name not in handed_in)


def _pair_differences(pair: Mapping[str, Any], logs: Mapping[str, Any]) -> Iterator[str]:
    told, found = mapping(pair, "files"), mapping(logs, "files")
    for name in sorted({*told, *found}):
        if name not in found:
            yield f"{name} is not in the logs"
        elif name not in told:
            yield f"{name} is in the logs only"
        elif told[name] != found[name]:
            yield (
                f"{name} has another checksum: submission {_short(mapping(told, name).get('sha256'))}, "
                f"logs {found[name]['sha256']}"
            )
    for name in sorted({*pair, *logs} - {"files"}):
        yield from _differences(name, pair.get(name), logs.get(name))


def _differences(name: str, told: object, found: object) -> Iterator[str]:
    """Down to the value that differs."""
    if is_object(told) and is_object(found):
        for key in sorted({*told, *found}):
            yield from _differences(f"{name}.{key}", told.get(key), found.get(key))
    elif canonical({"": told}) != canonical({"": found}):
        yield f"{name} is {_short(told)} in the submission, {_short(found)} in the logs"


def _pairs(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    pairs = document.get("pairs")
    return [pair for pair in pairs if is_object(pair)] if is_list(pairs) else []


def _name(pair: Mapping[str, Any]) -> str:
    features = pair.get("features")
    numbers = "_".join(f"f{one}" for one in features) if is_list(features) else _short(features)
    return f"{pair.get('setting')} {pair.get('repo')}/task{pair.get('task_id')} {numbers}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
