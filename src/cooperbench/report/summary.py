"""summary.json and its text: rates over the pairs that have a verdict, all others counted beside them by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cooperbench._version import __version__
from cooperbench.agents.recorder import read_trajectory
from cooperbench.models import SETTINGS, Pair, Setting, sum_usage
from cooperbench.report.fields import flag, mapping, number
from cooperbench.report.formatting import NOTHING, aligned, hundredths_text
from cooperbench.report.loading import read_pairs
from cooperbench.report.pairs import (
    EVALUATED,
    NOT_EVALUATED,
    STATES,
    VERDICTS,
    PairData,
    PairKey,
    applicable_verdicts,
    is_completed,
)
from cooperbench.sandbox.contract import ResourceUse
from cooperbench.storage import AgentPaths, ExperimentPaths, read_json, utc_now, write_json
from cooperbench.text import dollars_text, duration_text, plural, printable

SCHEMA = "cooperbench.summary/1"
MAX_ROWS = 40
_COUNTS = {state: "errors" if state == "error" else state for state in NOT_EVALUATED}
"""What the numbers of pairs in these states are called."""
_VERDICTS = {
    "individual_success": "individual",
    "merge_success": "merge",
    "merged_success": "merged",
    "overall_success": "overall",
    "overall_success_strict": "strict",
}
"""What the verdicts are called in eval.json and summary.json."""


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
    result = read_json(folder / "result.json")
    if result and is_completed(result):
        return number(result, "cost")
    return sum(
        number(read_trajectory(AgentPaths(folder, log.stem)), "cost")
        for log in folder.glob("*.log")
    )


def _summarize(pairs: Sequence[PairData]) -> dict[str, Any]:
    states = [pair.state for pair in pairs]
    judged = [pair for pair in pairs if pair.state in EVALUATED]
    results = [pair for pair in pairs if is_completed(pair.result)]
    agents = [agent for pair in results for agent in pair.agents]
    lines = [_line(pair) for pair in pairs]
    verdicts = [line for line in lines if line["state"] in EVALUATED]
    sound = [line for line in verdicts if not line["unsound"]]
    unsound = {"pairs": len(verdicts) - len(sound), "rates": _rates(sound)}
    return {
        "pairs": len(pairs),
        "evaluated": len(judged),
        **{name: states.count(state) for state, name in _COUNTS.items()},
        "rates": _rates(verdicts),
        "unsound": unsound if unsound["pairs"] else None,
        "suspicious": sum(line["suspicious"] for line in verdicts),
        "agent_success": _rate(agent.success for pair in judged for agent in pair.agents),
        "agent_outcomes": _tally(agent.status for agent in agents),
        "merge_outcomes": _tally(pair.merge_status for pair in judged),
        "messages": sum(pair.messages for pair in results),
        **sum_usage(agent.record for agent in agents),
        "steps": sum(agent.steps for agent in agents),
        "agent_seconds": round(sum(pair.duration_seconds for pair in results), 3),
        "test_seconds": round(
            sum(number(pair.evaluation, "duration_seconds") for pair in judged), 3
        ),
        "results": lines,
    }


def _rates(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: _rate(line[name] for line in lines) for name in _VERDICTS}


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
    evaluation, result = pair.evaluation or {}, pair.result or {}
    merged = mapping(evaluation, "merged")
    return {
        **asdict(pair.key),
        "features": list(pair.key.features),
        "state": pair.state,
        **{name: flag(evaluation, name) for name in _VERDICTS},
        "merged_success": flag(merged, "success"),
        "merge_status": merged.get("merge_status"),
        "strategy": merged.get("strategy"),
        "unsound": list(pair.unsound),
        "suspicious": bool(pair.suspicious),
        "network": pair.network,
        **{name: result.get(name) for name in ("messages", "cost", "unpriced_calls")},
        "error": pair.error or merged.get("error"),
    }


def summary_text(summary: dict[str, Any], logs: str) -> str:
    parts = ["\n".join(_setting_lines(*part)) for part in summary["settings"].items()]
    others = number(summary, "spent") - number(summary, "cost")
    if others > 1e-9:
        parts.append(
            f"Besides {dollars_text(others)} for attempts that were broken off or replaced"
        )
    texts = {"budget": budget_text, "sandboxes": sandboxes_text}
    parts += [text(summary[name]) for name, text in texts.items() if summary.get(name)]
    return "\n\n".join([*parts, f"Logs: {logs}"])


def _setting_lines(setting: Setting, part: dict[str, Any]) -> Iterator[str]:
    suspicious = f", {part['suspicious']} suspicious" if part["suspicious"] else ""
    counts = {state: part[name] for state, name in _COUNTS.items()}
    others = ", ".join(f"{count} {STATES[state].short}" for state, count in counts.items() if count)
    left_out = f" ({others}: not part of the rates)" if others else ""
    yield f"{setting}: {plural(part['pairs'], 'pair')}, {part['evaluated']} evaluated{suspicious}{left_out}"
    yield ""
    yield from _pair_lines(part["results"], with_merge=setting != "solo")
    yield ""
    names = {
        name: verdict
        for name, verdict in _VERDICTS.items()
        if verdict in applicable_verdicts(setting)
    }
    yield from aligned(
        [(one, *rate_cells(part["rates"][key]), VERDICTS[one]) for key, one in names.items()]
    )
    yield ""
    tokens = part["prompt_tokens"] + part["completion_tokens"]
    cached = f" ({part['cached_tokens']} cached)" if part["cached_tokens"] else ""
    calls = inside = ""
    if part["model_calls"]:
        calls = f", {plural(part['model_calls'], 'model call')}"
        in_models, in_sandboxes = (
            duration_text(part[f"{name}_seconds"]) for name in ("model", "sandbox")
        )
        inside = f" (in models {in_models}, in sandboxes {in_sandboxes})"
    steps, messages = plural(part["steps"], "step"), plural(part["messages"], "message")
    yield f"  cost {dollars_text(part['cost'])}, {tokens} tokens{cached}{calls}, {steps}, {messages}"
    yield f"  pairs {duration_text(part['agent_seconds'])}{inside}, tests {duration_text(part['test_seconds'])}"
    if part["unpriced_calls"]:
        yield f"  cost without {plural(part['unpriced_calls'], 'call')} of models without a known price"


def rate_cells(rate: dict[str, Any]) -> tuple[str, str]:
    share = NOTHING if rate["rate"] is None else f"{hundredths_text(rate['rate'])} %"
    return f"{rate['passed']}/{rate['of']}", share


def budget_text(budget: dict[str, Any]) -> str:
    """How `--max-cost` stands, and what to do where it ended the run."""
    text = f"Budget: {dollars_text(budget['spent'])} of {dollars_text(budget['max_cost'])} spent"
    left = budget["pairs_not_started"]
    if not left:
        return text
    were = "was" if left == 1 else "were"
    return f"{text}; {plural(left, 'pair')} {were} not started: the same command with a higher --max-cost runs them"


def sandboxes_text(sandboxes: dict[str, Any]) -> str:
    what = sandboxes["what"]
    count = plural(sandboxes["count"], what, f"{what}es" if what.endswith("x") else f"{what}s")
    names = {"seconds": what, "vcpu_seconds": "vCPU", "gib_seconds": "GiB"}
    used = {of: sandboxes.get(name, 0) / 3600 for name, of in names.items()}
    parts = [
        f"{hours:.{1 if hours < 10 else 0}f} {of} hours" for of, hours in used.items() if hours
    ]
    return ", ".join([count, *parts])


def _pair_lines(results: Sequence[dict[str, Any]], *, with_merge: bool) -> list[str]:
    """Of many pairs only those that did not pass."""
    many = len(results) > MAX_ROWS
    shown = [one for one in results if not many or one["state"] != "passed"][:MAX_ROWS]
    if not shown:
        return []
    heading = ("repository", "task", "features", "alone", "merge", "together", "overall", "")
    rows = [heading, *map(_pair_row, shown)]
    lines = aligned(rows if with_merge else [(*row[:3], *row[6:]) for row in rows])
    if len(shown) < len(results):
        lines.append(f"  … {len(results) - len(shown)} more in summary.json")
    return lines


def _pair_row(one: dict[str, Any]) -> tuple[str, ...]:
    place = (one["repo"], str(one["task_id"]), ",".join(map(str, one["features"])))
    error = printable(one["error"] or "")
    if one["state"] not in EVALUATED:
        return (*place, "", "", "", STATES[one["state"]].short, error[:100])
    merge = (one["merge_status"] or NOTHING) + (" (union)" if one["strategy"] == "union" else "")
    alone, together, overall = (
        {None: NOTHING, True: "✓", False: "✗"}[one[f"{name}_success"]]
        for name in ("individual", "merged", "overall")
    )
    remarks = [
        "" if one["overall_success"] else error[:44],
        f"unsound (feature {', '.join(map(str, one['unsound']))})" if one["unsound"] else "",
        "suspicious" if one["suspicious"] else "",
    ]
    return (*place, alone, merge, together, overall, "; ".join(filter(None, remarks)))


def deficit_text(solo: dict[str, Any], coop: dict[str, Any]) -> str:
    alone, together = (part["rates"]["overall_success"] for part in (solo, coop))
    if alone["rate"] is None or together["rate"] is None:
        return "Coordination deficit: nothing to compare yet"
    deficit = hundredths_text(alone["rate"] - together["rate"], 1)
    return (
        f"Coordination deficit: solo {alone['passed']}/{alone['of']} − coop {together['passed']}/{together['of']} "
        f"= {deficit} percentage points"
    )
