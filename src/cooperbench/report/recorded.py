"""The verdicts that came with an imported run beside ours on the same patches; why they differ.

A difference has two parts: the rule (our overall verdict and the public rule's may differ on the
same test runs), and everything else (the tests of another dataset revision, other machines, files
that one side leaves out of patches). `merged_public` tells them apart: it is the public rule, here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cooperbench.records.evaluation import Evaluation, TestTotals
from cooperbench.records.imported import RecordedTests, RecordedVerdict
from cooperbench.report.formatting import Table, first_lines
from cooperbench.report.loading import Side
from cooperbench.report.pairs import EVALUATED, PairData, PairKey
from cooperbench.report.public_rule import explain_rules
from cooperbench.text import plural, printable, shorten

_MAX_ERROR_CHARACTERS = 120
_MERGE_STATUS = {"conflicts": "conflict"}
"""Statuses of the public release that have another name here."""
_FEATURE = "feature"


@dataclass(frozen=True)
class RecordedPair:
    """One pair with its three verdicts; None for those that there are not."""

    pair: PairKey
    recorded: bool | None
    overall: bool | None
    public: bool | None
    dataset_sha256: str | None
    """Checksum of the dataset's files that our verdict is of; the source does not say its own."""
    reason: str
    """Why the verdicts differ or one is missing, on one line; empty if all agree."""


@dataclass(frozen=True)
class RecordedComparison:
    """The pairs of one side that have a recorded verdict."""

    side: str
    pairs: tuple[RecordedPair, ...]
    without: int
    """Number of pairs without a recorded verdict."""

    @property
    def compared(self) -> tuple[RecordedPair, ...]:
        """The pairs with a recorded verdict and one of ours."""
        return tuple(
            pair for pair in self.pairs if pair.recorded is not None and pair.overall is not None
        )

    @property
    def differences(self) -> tuple[RecordedPair, ...]:
        """The compared pairs whose verdicts are not all equal."""
        return tuple(pair for pair in self.compared if pair.reason)

    @property
    def without_ours(self) -> tuple[RecordedPair, ...]:
        """The pairs with a recorded verdict only."""
        return tuple(pair for pair in self.pairs if pair.overall is None)


def compare_with_recorded(side: Side) -> RecordedComparison:
    """Compare our verdicts on a side with those that were recorded elsewhere."""
    pairs = []
    without = 0
    for pair in side.pairs.values():
        verdict = pair.recorded
        if verdict is None or verdict.passed is None:
            without += 1
            continue
        evaluation = pair.evaluation
        entry = RecordedPair(
            pair=pair.key,
            recorded=verdict.passed,
            overall=pair.verdicts.get("overall"),
            public=pair.public_success,
            dataset_sha256=evaluation.dataset_sha256 if evaluation else None,
            reason="; ".join(_reasons(pair, verdict)),
        )
        pairs.append(entry)
    return RecordedComparison(side.label, tuple(pairs), without)


def _reasons(pair: PairData, verdict: RecordedVerdict) -> Iterator[str]:
    """Yield why the verdicts on a pair differ, the rule first."""
    evaluation = pair.evaluation
    if evaluation is None or pair.state not in EVALUATED:
        yield f"{pair.state}: {shorten(pair.error or 'no verdict of ours', _MAX_ERROR_CHARACTERS)}"
        return
    yield from _rule_reasons(pair, verdict)
    is_our_rule = pair.public_success is None or verdict.rule == "quick_start"
    expected = pair.verdicts["overall"] if is_our_rule else pair.public_success
    if verdict.passed != expected:
        reasons = list(_other_reasons(evaluation, verdict))
        yield from reasons or ["the recorded file does not say why"]


def _rule_reasons(pair: PairData, verdict: RecordedVerdict) -> Iterator[str]:
    """Yield why our overall verdict differs from the public rule on the same test runs."""
    overall, public = pair.verdicts["overall"], pair.public_success
    if public is None and verdict.passed != overall:
        yield "merged_public is missing, `eval --force` adds it"
    if public is not None and public != overall:
        yield f"the rule: {explain_rules(pair)}"


def _other_reasons(evaluation: Evaluation, verdict: RecordedVerdict) -> Iterator[str]:
    """Yield what differs apart from the rule: merges, left out files, test runs."""
    if verdict.error:
        yield f"recorded error: {shorten(printable(verdict.error), _MAX_ERROR_CHARACTERS)}"
    if verdict.strategy == "union":
        yield "the recorded verdict is of a union merge, as older versions tested"
    merged = evaluation.merged
    recorded_status = _MERGE_STATUS.get(verdict.merge_status or "", verdict.merge_status)
    has_other_merge = False
    if merged is not None and recorded_status and recorded_status != merged.merge_status:
        has_other_merge = True
        yield f"the merge: recorded {printable(recorded_status)}, here {merged.merge_status}"
    for agent_id, agent in evaluation.agents.items():
        if agent.dropped_files:
            count = plural(len(agent.dropped_files), "file")
            yield f"{agent_id}: {count} left out here, e.g. {agent.dropped_files[0].path}"
    if not has_other_merge:
        yield from _test_reasons(evaluation, verdict)


def _test_reasons(evaluation: Evaluation, verdict: RecordedVerdict) -> Iterator[str]:
    """Yield the recorded test runs whose outcome is another one here."""
    for name, tests in verdict.tests.items():
        outcome = _totals_here(evaluation, name)
        if outcome is None or tests.passed is None or tests.passed == outcome.success:
            continue
        yield f"{name}: recorded {_counts_text(tests)}, here {_totals_text(outcome)}"


@dataclass(frozen=True)
class _Outcome:
    """A test run of ours, comparable with a recorded one."""

    success: bool | None
    tests_passed: int
    tests_failed: int
    error: str | None


def _totals_here(evaluation: Evaluation, name: str) -> _Outcome | None:
    """Return our run of `feature1`, the first feature with the merge, or of `agent1`, `merged`."""
    if not name.startswith(_FEATURE):
        totals = evaluation.totals_of(name)
        return None if totals is None else _outcome(totals)
    position = int(name.removeprefix(_FEATURE)) - 1
    if evaluation.merged is None or not 0 <= position < len(evaluation.features):
        return None
    run = evaluation.merged.features.get(evaluation.features[position])
    if run is None:
        return None
    return _Outcome(run.success, run.tests_passed, run.tests_failed, run.error)


def _outcome(totals: TestTotals) -> _Outcome:
    return _Outcome(totals.success, totals.tests_passed, totals.tests_failed, totals.error)


def _counts_text(tests: RecordedTests) -> str:
    text = "passed" if tests.passed else "failed"
    if tests.tests_passed is None or tests.tests_failed is None:
        return text
    return f"{text} ({tests.tests_passed:,} passed, {tests.tests_failed:,} failed)"


def _totals_text(outcome: _Outcome) -> str:
    text = "passed" if outcome.success else "failed"
    text += f" ({outcome.tests_passed:,} passed, {outcome.tests_failed:,} failed)"
    if outcome.error:
        text += f": {shorten(outcome.error, _MAX_ERROR_CHARACTERS)}"
    return text


def recorded_tables(comparisons: Sequence[RecordedComparison]) -> Iterator[Table]:
    """Yield the tables of `cooperbench compare RUN --with-recorded`."""
    rows = []
    notes = []
    for comparison in comparisons:
        compared = comparison.compared
        public = [pair.public for pair in compared]
        rows.append(
            [
                comparison.side,
                f"{len(compared):,}",
                f"{[pair.recorded for pair in compared].count(True):,}",
                f"{public.count(True):,}" if None not in public else None,
                f"{[pair.overall for pair in compared].count(True):,}",
                f"{len(comparison.differences):,}",
            ]
        )
        if comparison.without:
            count = plural(comparison.without, "pair")
            notes.append(f"{comparison.side}: {count} without a recorded verdict")
    headings = ("", "pairs", "recorded", "public rule", "overall", "differ")
    notes += [
        "recorded: the verdict that came with the run",
        "public rule: the same rule, evaluated here (merged_public); overall: our rule",
        "the source does not say which revision of the dataset it was evaluated on",
    ]
    yield Table("Recorded verdicts and ours: pairs that pass", headings, rows, notes)
    for comparison in comparisons:
        yield from _pair_tables(comparison)


def _pair_tables(comparison: RecordedComparison) -> Iterator[Table]:
    if comparison.differences:
        rows = [
            [
                pair.pair.label,
                _verdict_text(pair.recorded),
                _verdict_text(pair.public),
                _verdict_text(pair.overall),
                pair.reason,
            ]
            for pair in comparison.differences
        ]
        headings = ("pair", "recorded", "public rule", "overall", "why")
        yield Table(f"{comparison.side}: where they differ ({len(rows):,})", headings, rows)
    if comparison.without_ours:
        lines = [f"{pair.pair.label}: {pair.reason}" for pair in comparison.without_ours]
        title = f"{comparison.side}: no verdict of ours ({len(lines):,})"
        yield Table(title, notes=first_lines(lines))


def _verdict_text(verdict: bool | None) -> str | None:
    if verdict is None:
        return None
    return "passed" if verdict else "failed"
