"""What is handed in to a leaderboard: a run's verdicts, and everything that says what they rest on.

One JSON object in canonical form (sorted keys, no spaces, ASCII, a line feed at the end), with the checksum of itself
and of each result.json, eval.json and patch. The same logs give the same bytes. No path, time of export or command line
is in it.

Such a file is verified against itself, and against the logs where they are present: from them the submission is made
again and compared part by part; no path in the submission is ever opened. What this cannot show is that the logs
themselves are honest: for that the pairs are evaluated again.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.errors import UserError
from cooperbench.export import Exported
from cooperbench.report.loading import load_run
from cooperbench.report.records import (
    is_list,
    is_object,
    mapping,
    number,
    read_bytes,
    text_or_none,
)
from cooperbench.report.states import JUDGED, STATES, VERDICTS
from cooperbench.storage import write_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData

SCHEMA = "cooperbench.submission/1"
Document = dict[str, Any]
_CONFIGURATION = (
    "agent", "model_name", "agent_config_sha256", "backend", "git_enabled", "messaging_enabled", "network",
    "step_limit", "cost_limit", "time_limit_seconds",
)  # fmt: skip
_ALWAYS_COUNTED = tuple(state for state in STATES if state != "no_reference")
"""Earlier versions did not know `no_reference`: it is in totals only where there is one, so their files still hold."""
_ASKED_FOR = ("setting", "subset", "repo", "task_id", "features")
_SHORT = 100
_CHECKED_APART = ("checksum", "complete", "pairs", "run", "schema", "totals")
"""Not compared part by part with the logs; a run may have another name elsewhere."""


def write(run: Run, target: Path) -> Exported:
    write_bytes(target, canonical(submission_of(run)) + b"\n")
    return Exported([target], [])


def submission_of(run: Run) -> Document:
    """The whole document; made anew of the same files it is the same."""
    pairs = [_pair(pair) for pair in run.pairs]
    content = {
        "schema": SCHEMA,
        "run": run.name,
        "dataset": {"name": run.dataset[0], "revision": run.dataset[1]},
        "configuration": {name: _scalar(run.config.get(name)) for name in _CONFIGURATION},
        "asked_for": _asked_for(run.config),
        "versions": sorted({version for pair in pairs for version in pair["versions"].values() if version}),
        "totals": totals_of(pairs),
        "complete": is_complete(pairs),
        "pairs": pairs,
    }
    return {**content, "checksum": checksum_of(content)}


def canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def checksum_of(content: Mapping[str, Any]) -> str:
    """Of everything but the checksum itself."""
    return sha256(canonical({name: value for name, value in content.items() if name != "checksum"}))


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_complete(pairs: Sequence[Mapping[str, Any]]) -> bool:
    """Every pair that was asked for has a verdict."""
    return bool(pairs) and all(pair.get("state") in JUDGED for pair in pairs)


def totals_of(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """By setting: pairs by state, and how many of those with a verdict meet each one."""
    totals: dict[str, Any] = {}
    for pair in pairs:
        setting, state = str(pair.get("setting")), str(pair.get("state"))
        part = totals.setdefault(
            setting,
            {"states": dict.fromkeys(_ALWAYS_COUNTED, 0), "verdicts": {name: [0, 0] for name in VERDICTS}},
        )
        part["states"][state] = part["states"].get(state, 0) + 1
        for name, counts in part["verdicts"].items():
            met = mapping(pair, "verdicts").get(name)
            if isinstance(met, bool):
                counts[0] += met
                counts[1] += 1
    return totals


def _pair(pair: PairData) -> Document:
    verdicts = pair.verdicts
    result, evaluation = pair.result or {}, pair.evaluation or {}
    names = ["result.json", "eval.json", *(f"{one}.patch" for one in pair.agent_ids), "merged.patch"]
    data = {name: read_bytes(pair.paths.folder / name) for name in names}
    return {
        "setting": pair.setting,
        "repo": pair.key.repo,
        "task_id": pair.key.task_id,
        "features": list(pair.key.features),
        "state": pair.state,
        "verdicts": verdicts._asdict() if verdicts else None,
        "merge_status": pair.merge_status,
        "unsound": list(pair.unsound) if "unsound" in evaluation else None,
        "network": pair.network,
        "agents": {
            agent.agent_id: {
                "agent": agent.agent,
                "agent_version": text_or_none(agent.record, "agent_version"),
                "model": agent.model,
                "status": agent.status,
                "success": agent.success,
                "steps": agent.steps,
                "cost": agent.cost,
                "prompt_tokens": agent.prompt_tokens,
                "completion_tokens": agent.completion_tokens,
            }
            for agent in pair.agents
        },
        "cost": pair.cost,
        "unpriced_calls": int(number(result, "unpriced_calls")),
        "duration_seconds": pair.duration_seconds,
        "messages": pair.messages,
        "base_commit": text_or_none(result, "base_commit"),
        "image_digests": {
            "run": text_or_none(result, "image_digest"),
            "evaluation": text_or_none(evaluation, "image_digest"),
        },
        "versions": {
            "run": text_or_none(result, "version"),
            "evaluation": text_or_none(evaluation, "version"),
        },
        "files": {
            name: {"sha256": sha256(content).removeprefix("sha256:"), "bytes": len(content)}
            for name, content in data.items()
            if content is not None
        },
    }


def _asked_for(config: Mapping[str, Any]) -> list[Document]:
    """Which pairs the calls of the run were about, each once: the same command again changes nothing."""
    calls = config.get("invocations")
    asked = [
        {
            name: [_scalar(one) for one in value] if is_list(value := call.get(name)) else _scalar(value)
            for name in _ASKED_FOR
        }
        for call in (calls if is_list(calls) else [])
        if is_object(call)
    ]
    return [one for place, one in enumerate(asked) if one not in asked[:place]]


def _scalar(value: object) -> object:
    """Nothing but what JSON has: config.json may hold anything."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    return value if isinstance(value, str | int) else None


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
    for name in sorted({*document, *logs} - {*_CHECKED_APART}):
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
