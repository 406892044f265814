"""The summary as text: what a person reads after a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.report.numbers import NOTHING, hundredths_text
from cooperbench.report.states import JUDGED, STATES
from cooperbench.text import duration_text, plural, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_ROWS = 40
_MEANINGS = {
    "individual_success": ("individual", "every patch passes its own tests alone"),
    "merge_success": ("merge", "the patches merge in plain git"),
    "merged_success": ("merged", "the merge passes all tests"),
    "overall_success": ("overall", "both: alone and merged"),
    "overall_success_strict": ("strict", "overall, and without a textual conflict"),
}


def aligned(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Columns side by side, each as wide as it must be."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return [
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def summary_text(summary: dict[str, Any], logs: str) -> str:
    """All of a summary."""
    lines: list[str] = []
    for setting, part in summary["settings"].items():
        lines += [*_setting_lines(setting, part), ""]
    if summary.get("budget"):
        lines += [budget_text(summary["budget"]), ""]
    if summary.get("sandboxes"):
        lines += [sandboxes_text(summary["sandboxes"]), ""]
    lines.append(f"Logs: {logs}")
    return "\n".join(lines)


def _setting_lines(setting: str, part: dict[str, Any]) -> Iterable[str]:
    yield f"{setting}: {plural(part['pairs'], 'pair')}, {part['evaluated']} evaluated" + _left_out(part)
    if part["no_reference"]:
        reason = next(one["error"] for one in part["results"] if one["state"] == "no_reference")
        count = plural(part["no_reference"], "pair")
        yield f"  no reference: {count} ({printable(reason)}; see eval.json)"
    yield ""
    yield from _pair_lines(part["results"], with_merge=setting != "solo")
    yield ""
    names = [name for name in _MEANINGS if _applies(name, setting)]
    yield from aligned([_rate_row(name, part["rates"][name]) for name in names])
    if part["unsound"]:
        rows = [_rate_row(name, part["unsound"]["rates"][name]) for name in names]
        rates = ", ".join(f"{title} {count} ({share})" for title, count, share, _ in rows)
        yield f"  without {plural(part['unsound']['pairs'], 'unsound pair')}: {rates}"
    yield ""
    yield from _account_lines(part)


def _account_lines(part: dict[str, Any]) -> Iterable[str]:
    tokens = part["prompt_tokens"] + part["completion_tokens"]
    cached = f" ({part['cached_tokens']} cached)" if part["cached_tokens"] else ""
    calls = f", {plural(part['model_calls'], 'model call')}" if part["model_calls"] else ""
    yield (
        f"  cost ${part['cost']:.2f}, {tokens} tokens{cached}{calls}, {plural(part['steps'], 'step')}, "
        f"{plural(part['messages'], 'message')}"
    )
    inside = (
        f" (in models {duration_text(part['model_seconds'])}, in sandboxes {duration_text(part['sandbox_seconds'])})"
        if part["model_calls"]
        else ""
    )
    yield f"  pairs {duration_text(part['agent_seconds'])}{inside}, tests {duration_text(part['test_seconds'])}"
    if part["unpriced_calls"]:
        yield f"  cost without {plural(part['unpriced_calls'], 'call')} of models without a known price"


def budget_text(budget: dict[str, Any]) -> str:
    """How `--max-cost` stands, and what to do where it ended the run."""
    text = f"Budget: ${budget['spent']:.2f} of ${budget['max_cost']:.2f} spent"
    left = budget["pairs_not_started"]
    if not left:
        return text
    were = "was" if left == 1 else "were"
    return f"{text}; {plural(left, 'pair')} {were} not started: the same command with a higher --max-cost runs them"


def sandboxes_text(sandboxes: dict[str, Any]) -> str:
    """What was used of a cloud, beside the models."""
    what = sandboxes["what"]
    count = plural(sandboxes["count"], what, f"{what}es" if what.endswith("x") else f"{what}s")
    hours = {
        what: sandboxes["seconds"] / 3600,
        "vCPU": sandboxes.get("vcpu_seconds", 0) / 3600,
        "GiB": sandboxes.get("gib_seconds", 0) / 3600,
    }
    return ", ".join([count, *(_hours_text(number, of) for of, number in hours.items() if number)])


def _hours_text(hours: float, of: str) -> str:
    return f"{hours:.{1 if hours < 10 else 0}f} {of} hours"


def _applies(name: str, setting: str) -> bool:
    """One agent's patch merges with nothing."""
    return setting != "solo" or name in ("individual_success", "overall_success")


def _left_out(part: dict[str, Any]) -> str:
    counts = {state: part["errors" if state == "error" else state] for state in STATES if state not in JUDGED}
    others = [f"{count} {STATES[state].short}" for state, count in counts.items() if count]
    return f" ({', '.join(others)}: not part of the rates)" if others else ""


def _rate_row(name: str, rate: dict[str, Any]) -> tuple[str, str, str, str]:
    title, meaning = _MEANINGS[name]
    share = NOTHING if rate["rate"] is None else f"{hundredths_text(rate['rate'])} %"
    return title, f"{rate['passed']}/{rate['of']}", share, meaning


def _pair_lines(results: Sequence[dict[str, Any]], *, with_merge: bool) -> list[str]:
    shown = (
        results
        if len(results) <= MOST_ROWS
        else [one for one in results if one["state"] != "passed"][:MOST_ROWS]
    )
    if not shown:
        return []
    rows: list[tuple[str, ...]] = [
        ("repository", "task", "features", "alone", "merge", "together", "overall", "")
    ]
    rows += [_pair_row(one) for one in shown]
    if not with_merge:
        rows = [(*row[:3], *row[6:]) for row in rows]
    lines = aligned(rows)
    if len(shown) < len(results):
        lines.append(f"  … {len(results) - len(shown)} more in summary.json")
    return lines


def _pair_row(one: dict[str, Any]) -> tuple[str, ...]:
    place = (one["repo"], str(one["task_id"]), ",".join(map(str, one["features"])))
    error = printable(one["error"] or "")[:44]
    if one["state"] not in JUDGED:
        return (*place, "", "", "", STATES[one["state"]].short, error)
    merge = (one["merge_status"] or NOTHING) + (" (union)" if one["strategy"] == "union" else "")
    remarks = ["" if one["overall_success"] else error]
    if one["unsound"]:
        remarks.append(f"unsound (feature {', '.join(map(str, one['unsound']))})")
    return (
        *place,
        _mark(one["individual_success"]),
        merge,
        _mark(one["merged_success"]),
        _mark(one["overall_success"]),
        "; ".join(filter(None, remarks)),
    )


def _mark(success: bool | None) -> str:
    return NOTHING if success is None else "✓" if success else "✗"


def deficit_text(solo: dict[str, Any], coop: dict[str, Any]) -> str:
    """The number that the benchmark exists for, from two summaries of the same pairs."""
    alone, together = (part["rates"]["overall_success"] for part in (solo, coop))
    if alone["rate"] is None or together["rate"] is None:
        return "Coordination deficit: nothing to compare yet"
    deficit = hundredths_text(alone["rate"] - together["rate"], 1)
    return (
        f"Coordination deficit: solo {alone['passed']}/{alone['of']} − coop {together['passed']}/{together['of']} "
        f"= {deficit} percentage points"
    )
