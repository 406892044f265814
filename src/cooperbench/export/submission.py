"""What is handed in to a leaderboard: a run's verdicts, and everything that says what they rest on.

One JSON object in canonical form (sorted keys, no spaces, ASCII, a line feed at the end), with the checksum of itself
and of each result.json, eval.json and patch. The same logs give the same bytes. No path, time of export or command line
is in it. `verify` holds such a file against itself and against the logs.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from cooperbench.export import Exported
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
    from collections.abc import Iterable, Mapping, Sequence
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
