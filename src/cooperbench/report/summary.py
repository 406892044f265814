"""summary.json and its table: how an experiment stands, with every denominator said.

Rates are over the pairs that have a verdict. Pairs in any other state (see `states`) are counted beside them and never
dropped silently.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench._version import __version__
from cooperbench.models import SETTINGS, summed_accounts
from cooperbench.report.records import load_pair, mapping, number
from cooperbench.report.states import JUDGED, is_completed
from cooperbench.storage import read_json, utc_now, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cooperbench.models import Pair, Setting
    from cooperbench.report.records import PairData
    from cooperbench.sandbox.contract import ResourceUse
    from cooperbench.storage import ExperimentPaths

SCHEMA = "cooperbench.summary/1"
_FEATURE = re.compile(r"f[0-9]{1,18}")
RATES = ("individual_success", "merge_success", "merged_success", "overall_success", "overall_success_strict")


class PairKey(NamedTuple):
    """A pair by its place under logs/, in the order of reports."""

    repo: str
    task_id: int
    features: tuple[int, ...]


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


def read_pairs(paths: ExperimentPaths, setting: Setting, expected: Iterable[Pair] = ()) -> list[PairData]:
    """Every pair that has a folder, and those that should have one."""
    keys = {PairKey(pair.task.repo, pair.task.task_id, pair.feature_ids) for pair in expected}
    return [
        load_pair(paths.pair_named(setting, key.repo, key.task_id, key.features), setting, key)
        for key in sorted(keys | pair_keys(paths, setting))
    ]


def save_summary(
    paths: ExperimentPaths,
    expected: Mapping[Setting, Iterable[Pair]],
    budget: Mapping[str, float | int] | None = None,
    used: ResourceUse | None = None,
) -> dict[str, Any]:
    """The summary of all that is on disk and of what was asked for.

    It also says how a budget stands, if there was one, and what sandboxes have used, in this call and earlier ones.
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
        "sandboxes": _sandboxes(paths, used),
    }
    write_json(paths.summary, summary)
    return summary


def _sandboxes(paths: ExperimentPaths, used: ResourceUse | None) -> dict[str, Any] | None:
    """Nothing else on disk tells what sandboxes used, so each call adds to what the last summary said."""
    before: dict[str, Any] | None = (read_json(paths.summary) or {}).get("sandboxes")
    if used is None or not used.count:
        return before
    now = asdict(used)
    added = ("count", "seconds", "vcpu_seconds", "gib_seconds")
    return now | {name: round(now[name] + (before or {}).get(name, 0), 3) for name in added}


def _summarize(pairs: Sequence[PairData]) -> dict[str, Any]:
    states = [pair.state for pair in pairs]
    judged = [pair for pair in pairs if pair.state in JUDGED]
    results = [pair for pair in pairs if is_completed(pair.result)]
    agents = [agent for pair in results for agent in pair.agents]
    unsound = [pair for pair in judged if pair.unsound]
    return {
        "pairs": len(pairs),
        "evaluated": len(judged),
        "errors": states.count("error"),
        "no_reference": states.count("no_reference"),
        "unevaluated": states.count("unevaluated"),
        "missing": states.count("missing"),
        "broken": states.count("broken"),
        "rates": _rates(judged),
        "unsound": {
            "pairs": len(unsound),
            "rates": _rates([pair for pair in judged if not pair.unsound]),
        }
        if unsound
        else None,
        "agent_success": _rate(agent.success for pair in judged for agent in pair.agents),
        "agent_outcomes": _tally(agent.status for agent in agents),
        "merge_outcomes": _tally(pair.merge_status for pair in judged),
        "messages": sum(pair.messages for pair in results),
        **summed_accounts(agent.record for agent in agents),
        "steps": sum(agent.steps for agent in agents),
        "agent_seconds": round(sum(pair.duration_seconds for pair in results), 3),
        "test_seconds": round(sum(number(pair.evaluation, "duration_seconds") for pair in judged), 3),
        "results": [_line(pair) for pair in pairs],
    }


def _rates(judged: Sequence[PairData]) -> dict[str, Any]:
    return {name: _rate(_met(name, pair.evaluation or {}) for pair in judged) for name in RATES}


def _met(name: str, evaluation: Mapping[str, Any]) -> bool | None:
    """None where an older record does not tell."""
    met = mapping(evaluation, "merged").get("success") if name == "merged_success" else evaluation.get(name)
    return None if met is None else bool(met)


def _rate(outcomes: Iterable[bool | None]) -> dict[str, Any]:
    known = [outcome for outcome in outcomes if outcome is not None]
    return {"passed": sum(known), "of": len(known), "rate": sum(known) / len(known) if known else None}


def _tally(values: Iterable[str | None]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        if value is not None:
            counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items()))


def _line(pair: PairData) -> dict[str, Any]:
    evaluation, result = pair.evaluation or {}, pair.result or {}
    merged = mapping(evaluation, "merged")
    return {
        "repo": pair.key.repo,
        "task_id": pair.key.task_id,
        "features": list(pair.key.features),
        "state": pair.state,
        "individual_success": evaluation.get("individual_success"),
        "merge_status": merged.get("merge_status"),
        "strategy": merged.get("strategy"),
        "merged_success": merged.get("success"),
        "overall_success": evaluation.get("overall_success"),
        "overall_success_strict": evaluation.get("overall_success_strict"),
        "unsound": list(pair.unsound),
        "network": pair.network,
        "messages": result.get("messages"),
        "cost": result.get("cost"),
        "unpriced_calls": result.get("unpriced_calls"),
        "error": pair.error or merged.get("error"),
    }
