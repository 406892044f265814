"""summary.json: rates over the pairs that have a verdict, all others counted beside them by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.models import SETTINGS, Pair, Setting, sum_usage
from cooperbench.records.result import PairResult
from cooperbench.records.trajectory import read_trajectory
from cooperbench.records.usage import total_usage
from cooperbench.report.loading import read_pairs
from cooperbench.report.pairs import (
    EVALUATED,
    NOT_EVALUATED,
    PairData,
    PairKey,
)
from cooperbench.sandbox.contract import ResourceUse
from cooperbench.storage import AgentPaths, ExperimentPaths, read_json, utc_now, write_json

SCHEMA = "cooperbench.summary/1"
STATE_COUNTS = {state: "errors" if state == "error" else state for state in NOT_EVALUATED}
"""Names of the counts of pairs without a verdict, by state."""
VERDICT_NAMES = {
    "individual_success": "individual",
    "merge_success": "merge",
    "merged_success": "merged",
    "overall_success": "overall",
    "overall_success_strict": "strict",
}
"""Names of the verdicts in eval.json and summary.json, and in reports."""


def save_summary(
    paths: ExperimentPaths,
    expected: Mapping[Setting, Iterable[Pair]],
    budget: Mapping[str, float | int] | None = None,
    used: ResourceUse | None = None,
) -> dict[str, Any]:
    """Of all that is on disk and of what was asked for; `used`: by the sandboxes of this call."""
    settings = [
        setting
        for setting in SETTINGS
        if setting in expected or setting in paths.settings_on_disk()
    ]
    by_setting = {}
    for setting in settings:
        pairs = expected.get(setting, ())
        asked = (PairKey(one.task.repo, one.task.task_id, one.feature_ids) for one in pairs)
        by_setting[setting] = _summarize(read_pairs(paths, setting, asked))
    summary = {
        "schema": SCHEMA,
        "run_name": paths.run_name,
        "time": utc_now(),
        "version": __version__,
        "settings": by_setting,
        "errors": sum(part["errors"] for part in by_setting.values()),
        **sum_usage(by_setting.values()),
        "spent": spent_on_disk(paths),
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


def spent_on_disk(paths: ExperimentPaths) -> float:
    """All that the experiment has cost, attempts that were broken off or replaced included."""
    patterns = [f"{setting}/*/*/f*" for setting in SETTINGS]
    patterns += [f"attempts/{setting}/*/*/f*/*" for setting in SETTINGS]
    return sum(_cost_of(folder) for pattern in patterns for folder in paths.root.glob(pattern))


def _cost_of(folder: Path) -> float:
    """Return what an attempt has cost. One that was interrupted has only trajectories or journals."""
    result = records.read(folder / "result.json", PairResult)
    if result is not None and result.is_completed:
        return result.cost
    trajectories = [read_trajectory(AgentPaths(folder, log.stem)) for log in folder.glob("*.log")]
    return sum(trajectory.cost for trajectory in trajectories if trajectory)


def _summarize(pairs: Sequence[PairData]) -> dict[str, Any]:
    states = [pair.state for pair in pairs]
    judged = [pair for pair in pairs if pair.state in EVALUATED]
    results = [pair for pair in pairs if pair.result and pair.result.is_completed]
    agents = [agent for pair in results for agent in pair.agents]
    lines = [_line(pair) for pair in pairs]
    verdicts = [line for line in lines if line["state"] in EVALUATED]
    sound = [line for line in verdicts if not line["unsound"]]
    unsound = {"pairs": len(verdicts) - len(sound), "rates": _rates(sound)}
    return {
        "pairs": len(pairs),
        "evaluated": len(judged),
        **{name: states.count(state) for state, name in STATE_COUNTS.items()},
        "rates": _rates(verdicts),
        "unsound": unsound if unsound["pairs"] else None,
        "suspicious": sum(line["suspicious"] for line in verdicts),
        "agent_success": _rate(agent.success for pair in judged for agent in pair.agents),
        "agent_outcomes": _tally(agent.status for agent in agents),
        "merge_outcomes": _tally(pair.merge_status for pair in judged),
        "messages": sum(pair.messages for pair in results),
        **msgspec.structs.asdict(total_usage(agent.record for agent in agents)),
        "steps": sum(agent.steps for agent in agents),
        "agent_seconds": round(sum(pair.duration_seconds for pair in results), 3),
        "test_seconds": round(sum(pair.test_seconds for pair in judged), 3),
        "results": lines,
    }


def _rates(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: _rate(line[name] for line in lines) for name in VERDICT_NAMES}


def _rate(outcomes: Iterable[bool | None]) -> dict[str, Any]:
    known = [outcome for outcome in outcomes if outcome is not None]
    return {
        "passed": sum(known),
        "of": len(known),
        "rate": sum(known) / len(known) if known else None,
    }


def _tally(values: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(filter(None, values)).items()))


def _line(pair: PairData) -> dict[str, Any]:
    evaluation = pair.evaluation
    merged = evaluation.merged if evaluation else None
    result = pair.result if pair.result and pair.result.is_completed else None
    return {
        **asdict(pair.key),
        "features": list(pair.key.features),
        "state": pair.state,
        "individual_success": evaluation.individual_success if evaluation else None,
        "merge_success": evaluation.merge_success if evaluation else None,
        "merged_success": merged.success if merged else None,
        "overall_success": evaluation.overall_success if evaluation else None,
        "overall_success_strict": evaluation.overall_success_strict if evaluation else None,
        "merge_status": merged.merge_status if merged else None,
        "strategy": merged.strategy if merged else None,
        "unsound": list(pair.unsound),
        "suspicious": bool(pair.suspicious),
        "network": pair.network,
        "agent_statuses": {agent.agent_id: agent.status for agent in pair.agents if agent.status},
        "messages": result.messages if result else None,
        "cost": result.cost if result else None,
        "unpriced_calls": result.unpriced_calls if result else None,
        "error": pair.error or (merged.error if merged else None),
    }
