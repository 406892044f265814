"""The summary of a run as text: one row per pair, rates, cost and time.

`summary` builds the content, which is also summary.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import cast

from cooperbench.models import SETTINGS, Setting
from cooperbench.records.summary import (
    BudgetSummary,
    PairSummary,
    Rate,
    SandboxUse,
    SettingSummary,
    Summary,
)
from cooperbench.report.formatting import NOTHING, aligned, hundredths_text
from cooperbench.report.pairs import (
    EVALUATED,
    STATES,
    State,
    applicable_verdicts,
    merge_text,
    verdict_meaning,
)
from cooperbench.text import (
    dollars_text,
    duration_text,
    plural,
    printable,
    shorten,
    terminal_width,
    wrap,
)

MAX_ROWS = 40
_MAX_REMARK_CHARACTERS = 300
"""Length of a remark in a file or a pipe, which have no width."""
_MIN_REMARK_WIDTH = 40
"""Where fewer columns are left beside a row, its remark goes below it."""
_REMARK_INDENT = "      "
_COOP_HEADINGS = ("repository", "task", "features", "alone", "merge", "together", "overall")
_SOLO_HEADINGS = ("repository", "task", "features", "overall")
_MARKS = {None: NOTHING, True: "✓", False: "✗"}
_SECONDS_PER_HOUR = 3600


def summary_text(summary: Summary, logs: str, width: int | None = None) -> str:
    """Return the whole summary of a run as text.

    Args:
        summary: The record in summary.json.
        logs: The folder of the run, for the last line.
        width: The columns to fill; by default those of the terminal, if stdout is one.
    """
    width = width or terminal_width(sys.stdout)
    parts = [
        "\n".join(_setting_lines(setting, summary.settings[setting], width))
        for setting in SETTINGS
        if setting in summary.settings
    ]
    if summary.imported is not None:
        text = f"Imported from {summary.imported}: sums are over the values that it has."
        parts.append(wrap(printable(text), width))
    other_attempts = summary.spent - summary.cost
    if other_attempts > 1e-9:
        parts.append(f"plus {dollars_text(other_attempts)} for interrupted or replaced attempts")
    if summary.budget:
        parts.append(wrap(budget_text(summary.budget), width))
    if summary.sandboxes:
        parts.append(sandboxes_text(summary.sandboxes))
    return "\n\n".join([*parts, f"Logs: {logs}"])


def _setting_lines(setting: Setting, part: SettingSummary, width: int | None) -> Iterator[str]:
    yield _headline(setting, part)
    yield ""
    yield from _pair_lines(part.results, setting, width)
    yield ""
    yield from _rate_lines(setting, part)
    yield ""
    yield from _usage_lines(part)


def _headline(setting: Setting, part: SettingSummary) -> str:
    text = f"{setting}: {plural(part.pairs, 'pair')}, {part.evaluated:,} evaluated"
    if part.suspicious:
        text += f", {part.suspicious:,} suspicious"
    if part.unconfirmed:
        text += f", {part.unconfirmed:,} of {plural(part.successes, 'success', 'successes')}"
        text += " not confirmed"
    counts: dict[State, int] = {
        "error": part.errors,
        "no_reference": part.no_reference,
        "unevaluated": part.unevaluated,
        "missing": part.missing,
        "broken": part.broken,
    }
    left_out = [f"{count:,} {STATES[state].short}" for state, count in counts.items() if count]
    if left_out:
        text += f" ({', '.join(left_out)}: not part of the rates)"
    return text


def _rate_lines(setting: Setting, part: SettingSummary) -> list[str]:
    rates = {
        "individual": part.rates.individual_success,
        "merge": part.rates.merge_success,
        "merged": part.rates.merged_success,
        "overall": part.rates.overall_success,
        "strict": part.rates.overall_success_strict,
    }
    # Agents that share a workspace have no patches of their own.
    all_shared = rates["overall"].of > 0 and rates["individual"].of == 0
    return aligned(
        [
            (
                verdict,
                *rate_cells(rates[verdict]),
                verdict_meaning(verdict, setting, shared=all_shared),
            )
            for verdict in applicable_verdicts(setting, shared=all_shared)
        ]
    )


def _usage_lines(part: SettingSummary) -> Iterator[str]:
    tokens = f"{part.prompt_tokens + part.completion_tokens:,} tokens"
    if part.cached_tokens:
        tokens += f" ({part.cached_tokens:,} cached)"
    counts = [f"cost {dollars_text(part.cost)}", tokens]
    pairs_took = f"pairs {duration_text(part.agent_seconds)}"
    if part.model_calls:
        counts.append(plural(part.model_calls, "model call"))
        in_models = duration_text(part.model_seconds)
        in_sandboxes = duration_text(part.sandbox_seconds)
        pairs_took += f" (in models {in_models}, in sandboxes {in_sandboxes})"
    counts += [plural(part.steps, "step"), plural(part.messages, "message")]
    yield f"  {', '.join(counts)}"
    yield f"  {pairs_took}, tests {duration_text(part.test_seconds)}"
    if part.unpriced_calls:
        calls = plural(part.unpriced_calls, "call")
        yield f"  cost excludes {calls} to models without a known price"


def rate_cells(rate: Rate) -> tuple[str, str]:
    """Return a rate as two cells: `7/8` and `88 %`."""
    share = NOTHING if rate.rate is None else f"{hundredths_text(rate.rate)} %"
    return f"{rate.passed:,}/{rate.of:,}", share


def budget_text(budget: BudgetSummary) -> str:
    """Return how much of `--max-cost` is spent, and what to do if it ended the run."""
    text = f"Budget: {dollars_text(budget.spent)} of {dollars_text(budget.max_cost)} spent"
    not_started = budget.pairs_not_started
    if not not_started:
        return text
    verb = "was" if not_started == 1 else "were"
    pairs = plural(not_started, "pair")
    return f"{text}; {pairs} {verb} not started. Rerun with a higher --max-cost to run them"


def sandboxes_text(sandboxes: SandboxUse) -> str:
    """Return how many sandboxes or machines the run used, and for how many hours."""
    noun = sandboxes.what
    nouns = f"{noun}es" if noun.endswith("x") else f"{noun}s"
    parts = [plural(sandboxes.count, noun, nouns)]
    used = (
        (sandboxes.seconds, noun),
        (sandboxes.vcpu_seconds, "vCPU"),
        (sandboxes.gib_seconds, "GiB"),
    )
    for seconds, unit in used:
        hours = seconds / _SECONDS_PER_HOUR
        if hours:
            digits = 1 if hours < 10 else 0
            parts.append(f"{hours:,.{digits}f} {unit} hours")
    return ", ".join(parts)


def _pair_lines(results: Sequence[PairSummary], setting: Setting, width: int | None) -> list[str]:
    """Return a row for each pair; of many pairs, only for those that did not pass."""
    listed = list(results)
    if len(results) > MAX_ROWS:
        not_passed = [result for result in results if result.state != "passed"]
        listed = not_passed[:MAX_ROWS]
    if not listed:
        return []
    if setting == "solo":
        rows = [(*_SOLO_HEADINGS, "agent"), *(_solo_row(result) for result in listed)]
    else:
        rows = [(*_COOP_HEADINGS, "agents"), *(_coop_row(result) for result in listed)]
    header, *lines = aligned(rows)
    columns = max(len(header), *(len(line) for line in lines))
    table = [header]
    for result, line in zip(listed, lines, strict=True):
        table += _with_remark(line, columns, _remark(result), width)
    if len(listed) < len(results):
        table.append(f"  … {len(results) - len(listed):,} more in summary.json")
    return table


def _with_remark(line: str, columns: int, remark: str, width: int | None) -> list[str]:
    """Put the remark beside its row, or below it where the terminal is too narrow."""
    if not remark:
        return [line]
    if width is None:
        return [f"{line.ljust(columns)}  {shorten(remark, _MAX_REMARK_CHARACTERS)}"]
    columns_left = width - columns - 2
    if columns_left >= min(len(remark), _MIN_REMARK_WIDTH):
        return [f"{line.ljust(columns)}  {shorten(remark, columns_left)}"]
    return [line, _REMARK_INDENT + shorten(remark, max(width - len(_REMARK_INDENT), 20))]


def _coop_row(result: PairSummary) -> tuple[str, ...]:
    if result.state not in EVALUATED:
        return (*_pair_cells(result), "", "", "", _state_text(result), _endings(result))
    merge = merge_text(result.merge_status) or NOTHING
    if result.strategy == "union":
        merge += " (union)"
    return (
        *_pair_cells(result),
        _MARKS[result.individual_success],
        merge,
        _MARKS[result.merged_success],
        _MARKS[result.overall_success],
        _endings(result),
    )


def _solo_row(result: PairSummary) -> tuple[str, ...]:
    overall = _state_text(result)
    if result.state in EVALUATED:
        overall = _MARKS[result.overall_success]
    return (*_pair_cells(result), overall, _endings(result))


def _state_text(result: PairSummary) -> str:
    return STATES[cast("State", result.state)].short


def _pair_cells(result: PairSummary) -> tuple[str, str, str]:
    features = ",".join(str(feature) for feature in result.features)
    return result.repo, str(result.task_id), features


def _endings(result: PairSummary) -> str:
    """Return how the agents ended, in their order; one word if all ended alike."""
    statuses = [printable(status) for status in result.agent_statuses.values()]
    if len(set(statuses)) <= 1:
        return "".join(statuses[:1])
    return ", ".join(statuses)


def _remark(result: PairSummary) -> str:
    """Return the error of a pair that did not pass, and warnings about its verdict."""
    remarks = []
    if result.error and not (result.state in EVALUATED and result.overall_success):
        remarks.append(printable(result.error))
    if result.unsound:
        features = ", ".join(str(feature) for feature in result.unsound)
        remarks.append(f"unsound (feature {features})")
    if result.suspicious:
        remarks.append("suspicious")
    if result.attempts > 1:
        remarks.append(f"{result.attempts} attempts")
    return "; ".join(remarks)


def deficit_text(solo: SettingSummary, coop: SettingSummary) -> str:
    """Return the coordination deficit between the solo and the coop part of two summaries."""
    alone = solo.rates.overall_success
    together = coop.rates.overall_success
    if alone.rate is None or together.rate is None:
        return "Coordination deficit: nothing to compare yet"
    deficit = hundredths_text(alone.rate - together.rate, 1)
    return (
        f"Coordination deficit: solo {alone.passed}/{alone.of}"
        f" − coop {together.passed}/{together.of} = {deficit} percentage points"
    )
