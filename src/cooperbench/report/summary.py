"""summary.json and its table: how an experiment stands, with every denominator said.

Rates are over the pairs that have a verdict. Pairs that ended in an error of ours, or were not run or evaluated yet,
are counted beside them and never dropped silently.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench._version import __version__
from cooperbench.models import SETTINGS, summed_accounts
from cooperbench.storage import read_json, utc_now, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cooperbench.eval.backends.base import Estimate
    from cooperbench.models import Pair, Setting
    from cooperbench.storage import ExperimentPaths

SCHEMA = "cooperbench.summary/1"
_FEATURE = re.compile(r"f[0-9]{1,18}")
RATES = ("individual_success", "merge_success", "merged_success", "overall_success", "overall_success_strict")


class PairKey(NamedTuple):
    """A pair by its place under logs/, in the order of reports."""

    repo: str
    task_id: int
    features: tuple[int, ...]


@dataclass(frozen=True)
class PairRecord:
    """What is on disk of one pair."""

    key: PairKey
    result: dict[str, Any] | None
    evaluation: dict[str, Any] | None

    @property
    def state(self) -> str:
        """`passed`, `failed`, `error` (ours), `unevaluated` or `missing`."""
        if self.result is None:
            return "missing"
        if self.result.get("status") != "completed":
            return "error"
        if self.evaluation is None:
            return "unevaluated"
        if self.evaluation.get("status") != "completed":
            return "error"
        return "passed" if self.evaluation.get("overall_success") else "failed"

    @property
    def error(self) -> str | None:
        for record in (self.result, self.evaluation):
            if record is not None and record.get("status") == "error":
                return str(record.get("error"))
        return None


def pair_keys(paths: ExperimentPaths, setting: Setting) -> set[PairKey]:
    """Every pair that has a folder."""
    keys = set()
    for folder in (paths.root / setting).glob("*/*/f*"):
        features = folder.name.split("_")
        task = folder.parent.name
        if task.isascii() and task.isdigit() and all(_FEATURE.fullmatch(part) for part in features):
            numbers = tuple(int(part[1:]) for part in features)
            keys.add(PairKey(folder.parent.parent.name, int(task), numbers))
    return keys


def read_pairs(paths: ExperimentPaths, setting: Setting, expected: Iterable[Pair] = ()) -> list[PairRecord]:
    """Every pair that has a folder, and those that should have one."""
    keys = {PairKey(pair.task.repo, pair.task.task_id, pair.feature_ids) for pair in expected}
    return [_read_pair(paths, setting, key) for key in sorted(keys | pair_keys(paths, setting))]


def _read_pair(paths: ExperimentPaths, setting: Setting, key: PairKey) -> PairRecord:
    files = paths.pair_named(setting, key.repo, key.task_id, key.features)
    return PairRecord(key, read_json(files.result), read_json(files.evaluation))


def save_summary(
    paths: ExperimentPaths,
    expected: Mapping[Setting, Iterable[Pair]],
    budget: Mapping[str, float | int] | None = None,
    estimate: Estimate | None = None,
) -> dict[str, Any]:
    """The summary of all that is on disk and of what was asked for.

    It also says how a budget stands, if there was one, and what sandboxes have cost, this call's and earlier ones'.
    """
    settings = [setting for setting in SETTINGS if setting in expected or setting in paths.settings_on_disk()]
    by_setting = {
        setting: _summarize(read_pairs(paths, setting, expected.get(setting, ()))) for setting in settings
    }
    summary = {
        "schema": SCHEMA,
        "run_name": paths.run_name,
        "time": utc_now(),
        "version": __version__,
        "settings": by_setting,
        "errors": sum(part["errors"] for part in by_setting.values()),
        **summed_accounts(by_setting.values()),
        "budget": None if budget is None else dict(budget),
        "sandboxes": _sandboxes(paths, estimate),
    }
    write_json(paths.summary, summary)
    return summary


def _sandboxes(paths: ExperimentPaths, estimate: Estimate | None) -> dict[str, Any] | None:
    """Nothing on disk tells what sandboxes cost, so each call adds to what the last summary said."""
    before: dict[str, Any] | None = (read_json(paths.summary) or {}).get("sandboxes")
    if estimate is None or not estimate.count:
        return before
    now = asdict(estimate)
    added = ("count", "seconds", "dollars", "unpriced_seconds")
    return now | {name: round(now[name] + (before or {}).get(name, 0), 6) for name in added}


def _summarize(records: Sequence[PairRecord]) -> dict[str, Any]:
    states = [record.state for record in records]
    judged = [record.evaluation for record in records if record.state in ("passed", "failed")]
    results = [
        record.result for record in records if record.result and record.result.get("status") == "completed"
    ]
    agents = [agent for result in results for agent in result["agents"].values()]
    return {
        "pairs": len(records),
        "evaluated": len(judged),
        "errors": states.count("error"),
        "unevaluated": states.count("unevaluated"),
        "missing": states.count("missing"),
        "rates": {
            name: _rate([_met(name, evaluation) for evaluation in judged if evaluation]) for name in RATES
        },
        "agent_success": _rate(
            [bool(one["success"]) for evaluation in judged if evaluation for one in _agents(evaluation)]
        ),
        "agent_outcomes": _tally(agent["status"] for agent in agents),
        "merge_outcomes": _tally(evaluation["merged"]["merge_status"] for evaluation in judged if evaluation),
        "messages": sum(result.get("messages", 0) for result in results),
        **summed_accounts(agents),
        "steps": sum(agent["steps"] for agent in agents),
        "agent_seconds": round(sum(result["duration_seconds"] for result in results), 3),
        "test_seconds": round(sum(evaluation["duration_seconds"] for evaluation in judged if evaluation), 3),
        "results": [_line(record) for record in records],
    }


def _met(name: str, evaluation: dict[str, Any]) -> bool:
    return bool(evaluation["merged"]["success"] if name == "merged_success" else evaluation[name])


def _agents(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        value
        for key, value in evaluation.items()
        if key == "solo" or (key.startswith("agent") and "success" in value)
    ]


def _rate(outcomes: Sequence[bool]) -> dict[str, Any]:
    passed = sum(outcomes)
    return {"passed": passed, "of": len(outcomes), "rate": passed / len(outcomes) if outcomes else None}


def _tally(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items()))


def _line(record: PairRecord) -> dict[str, Any]:
    evaluation = record.evaluation or {}
    merged = evaluation.get("merged") or {}
    return {
        "repo": record.key.repo,
        "task_id": record.key.task_id,
        "features": list(record.key.features),
        "state": record.state,
        "individual_success": evaluation.get("individual_success"),
        "merge_status": merged.get("merge_status"),
        "strategy": merged.get("strategy"),
        "merged_success": merged.get("success"),
        "overall_success": evaluation.get("overall_success"),
        "overall_success_strict": evaluation.get("overall_success_strict"),
        "messages": (record.result or {}).get("messages"),
        "cost": (record.result or {}).get("cost"),
        "unpriced_calls": (record.result or {}).get("unpriced_calls"),
        "error": record.error or merged.get("error"),
    }
