"""What is handed in to a leaderboard: a run's verdicts, and everything that says what they rest on.

One JSON object in canonical form, with the checksum of itself and of each result.json, eval.json and patch: the same
logs give the same bytes. It is verified against itself, and against the logs where they are present, from which it is
made again. That the logs themselves are honest it cannot show: for that the pairs are evaluated again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from cooperbench.errors import UserError
from cooperbench.report.fields import listed, mapping, number, text_or_none
from cooperbench.report.loading import Run, load_run
from cooperbench.report.pairs import EVALUATED, STATES, VERDICTS, PairData
from cooperbench.storage import read_bytes

SCHEMA = "cooperbench.submission/1"
Document = dict[str, Any]
_CONFIGURATION = (
    "agent", "model_name", "agent_config_sha256", "backend", "git_enabled", "messaging_enabled", "network",
    "step_limit", "cost_limit", "time_limit_seconds",
)  # fmt: skip
_ASKED_FOR = (
    "setting",
    "subset",
    "repo",
    "task_id",
    "features",
    "group_sizes",
    "groups_per_task",
    "seed",
)
_OF_AGENTS = (
    "agent", "model", "status", "success", "steps", "cost", "prompt_tokens", "completion_tokens",
)  # fmt: skip
_SHORT = 100


def submission_bytes(run: Run) -> bytes:
    return canonical(submission_of(run)) + b"\n"


def submission_of(run: Run) -> Document:
    """The whole document: the same files give the same document."""
    pairs = [_pair(pair) for pair in run.pairs]
    calls = listed(run.config, "invocations", dict)
    asked = [{name: call.get(name) for name in _ASKED_FOR} for call in calls]
    content = {
        "schema": SCHEMA,
        "run": run.name,
        "dataset": {"name": run.dataset[0], "revision": run.dataset[1]},
        "configuration": {name: run.config.get(name) for name in _CONFIGURATION}
        | {name: value for name, value in run.config.items() if name.startswith("team_")},
        # Which pairs the calls were about, each once: the same command again changes nothing.
        "asked_for": [one for place, one in enumerate(asked) if one not in asked[:place]],
        **summed_up(pairs),
        "pairs": pairs,
    }
    return {**content, "checksum": checksum_of(content)}


def canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def checksum_of(content: Mapping[str, Any]) -> str:
    """Of everything but the checksum itself."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return f"sha256:{hashlib.sha256(canonical(rest)).hexdigest()}"


def summed_up(pairs: Sequence[Mapping[str, Any]]) -> Document:
    """What follows from the pairs: versions; by setting how many are in each state, and of those with a verdict how
    many meet each one; whether every pair that was asked for has a verdict."""
    versions = {
        str(version) for pair in pairs for version in mapping(pair, "versions").values() if version
    }
    totals: dict[str, Any] = {}
    for pair in pairs:
        setting, state = str(pair.get("setting")), str(pair.get("state"))
        counts = {
            "states": dict.fromkeys(STATES, 0),
            "verdicts": {name: [0, 0] for name in VERDICTS},
        }
        part = totals.setdefault(setting, counts)
        part["states"][state] = part["states"].get(state, 0) + 1
        for name, met_of in part["verdicts"].items():
            met = mapping(pair, "verdicts").get(name)
            if isinstance(met, bool):
                met_of[0] += met
                met_of[1] += 1
    return {
        "versions": sorted(versions),
        "totals": totals,
        "complete": bool(pairs) and all(pair.get("state") in EVALUATED for pair in pairs),
    }


def _pair(pair: PairData) -> Document:
    result, evaluation = pair.result or {}, pair.evaluation or {}
    names = [
        "result.json",
        "eval.json",
        *(f"{one}.patch" for one in pair.agent_ids),
        "merged.patch",
    ]
    data = {name: read_bytes(pair.paths.folder / name) for name in names}
    of_both = {"run": result, "evaluation": evaluation}
    return {
        "setting": pair.setting,
        **asdict(pair.key),
        "features": list(pair.key.features),
        "state": pair.state,
        "verdicts": pair.verdicts or None,
        "merge_status": pair.merge_status,
        "unsound": list(pair.unsound) if pair.verdicts else None,
        "suspicious": len(pair.suspicious) if pair.verdicts else None,
        "network": pair.network,
        "agents": {
            agent.agent_id: {
                "agent_version": text_or_none(agent.record, "agent_version"),
                **{name: getattr(agent, name) for name in _OF_AGENTS},
            }
            for agent in pair.agents
        },
        "cost": pair.cost,
        "unpriced_calls": int(number(result, "unpriced_calls")),
        "duration_seconds": pair.duration_seconds,
        "messages": pair.messages,
        "base_commit": text_or_none(result, "base_commit"),
        "image_digests": {name: text_or_none(one, "image_digest") for name, one in of_both.items()},
        "versions": {name: text_or_none(one, "version") for name, one in of_both.items()},
        "files": {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for name, content in data.items()
            if content is not None
        },
    }


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
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            return Verified([f"it is no JSON object of the schema {SCHEMA}"], 0, None)
        found = list(_integrity(document, data))
    except (ValueError, RecursionError):
        return Verified(["it is not whole JSON"], 0, None)
    name = text_or_none(document, "run")
    if run is None and name:
        with suppress(UserError):
            run = load_run(logs_dir, name)
    if run is not None:
        found += _differences("", _comparable(document), _comparable(submission_of(run)))
    return Verified(found, len(listed(document, "pairs", dict)), run)


def _integrity(document: Mapping[str, Any], data: bytes) -> Iterator[str]:
    if document.get("checksum") != checksum_of(document):
        yield f"its checksum is {_short(document.get('checksum'))}, not that of its content"
    if canonical(document) + b"\n" != data:
        yield "it is not in canonical form: not the bytes that were written"
    pairs = listed(document, "pairs", dict)
    if len({_name(pair) for pair in pairs}) != len(pairs) or document.get("pairs") != pairs:
        yield "pairs is no list of different pairs"
    for pair in pairs:
        state, overall = pair.get("state"), mapping(pair, "verdicts").get("overall")
        if (state in EVALUATED) is not isinstance(overall, bool) or (overall is True) is not (
            state == "passed"
        ):
            yield f"{_name(pair)}: its verdicts do not fit to the state {_short(state)}"
    for name, value in summed_up(pairs).items():
        if canonical(document.get(name)) != canonical(value):
            yield f"{name} is {_short(document.get(name))}, which its pairs do not say"


def _comparable(document: Mapping[str, Any]) -> Document:
    """With pairs by name. The run may have another name elsewhere."""
    pairs = {_name(pair): pair for pair in listed(document, "pairs", dict)}
    return {**document, "pairs": pairs, "run": None, "checksum": None}


def _differences(name: str, told: object, found: object) -> Iterator[str]:
    """Down to the value that differs."""
    if isinstance(told, dict) and isinstance(found, dict):
        for key in sorted({*told, *found}):
            yield from _differences(f"{name}.{key}" if name else key, told.get(key), found.get(key))
    elif canonical(told) != canonical(found):
        yield f"{name} is {_short(told)} in the submission, {_short(found)} in the logs"


def _name(pair: Mapping[str, Any]) -> str:
    features = "_".join(f"f{one}" for one in listed(pair, "features", object))
    return f"{pair.get('setting')} {pair.get('repo')}/task{pair.get('task_id')} {features}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
