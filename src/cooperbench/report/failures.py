"""Why a pair failed: one line for tables, and the failing tests with their errors for the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cooperbench.models import SHARED
from cooperbench.records.evaluation import FeatureTestRun
from cooperbench.report.pairs import PairData

MAX_REASON_CHARACTERS = 300
MAX_EXCERPT_LINES = 18
_LINES_BEFORE_ERROR = 12
_MAX_LINE_CHARACTERS = 400
_NEXT_FAILURE = re.compile(r"={5}|_{5}|-{20}|FAILED |FAIL:? |ERROR:? ")
_IMPLICIT_ASSERTION = re.compile(r"E +assert |\s*expect\(")
"""Lines of an assertion that pytest and Jest print without the name of the exception."""


@dataclass(frozen=True)
class FailedTests:
    """A test run that failed, with its first error."""

    subject: str
    """The patch that was tested: an agent's id, `solo`, `shared` or `merged`."""
    feature_id: int
    tests_failed: int
    tests_run: int
    test: str | None
    """The first failing test; None where the output does not name one."""
    error: str
    """The error that it raised, with its message where the output has one."""
    excerpt: str
    """The lines of the output around the error."""


def failure_reason(pair: PairData) -> str:
    """Return one line that says why a pair did not pass; empty if it did or is not finished."""
    if pair.error:
        return pair.error[:MAX_REASON_CHARACTERS]
    if pair.state != "failed":
        return ""
    return _reason_of_failure(pair)[:MAX_REASON_CHARACTERS]


def _reason_of_failure(pair: PairData) -> str:
    if pair.loss == "capability":
        return "; ".join(_agent_failures(pair))
    merged_error = (pair.merged.error or "") if pair.merged else ""
    if pair.loss == "conflict":
        return _conflict_reason(pair.conflicting_files, merged_error)
    if pair.suspicious:
        return pair.suspicious_texts[0]
    subject = SHARED if pair.shares_workspace else "merged"
    return f"{subject}: {merged_error}" if merged_error else ""


def _agent_failures(pair: PairData) -> Iterator[str]:
    """Yield why the patches of agents fail alone."""
    for agent in pair.agents:
        if agent.success is not False:
            continue
        totals = pair.evaluation.totals_of(agent.agent_id) if pair.evaluation else None
        error = totals.error if totals else None
        yield f"{agent.agent_id}: {error or 'fails its tests'}"


def _conflict_reason(conflicting_files: list[str], merged_error: str) -> str:
    reason = f"conflict in {', '.join(conflicting_files)}"
    if merged_error.startswith("union merge of "):
        return f"{reason}; {merged_error}"
    # Without a union merge, the error only repeats that there is a conflict.
    if merged_error and not merged_error.startswith("Merge conflict"):
        return f"{reason}; union merge: {merged_error}"
    return reason


def failed_tests(pair: PairData) -> list[FailedTests]:
    """Return the failed test runs that decided against a pair, by agents and features."""
    if pair.state != "failed":
        return []
    outputs = pair.test_outputs()
    subjects = pair.agent_ids if pair.loss == "capability" else ("merged",)
    if pair.shares_workspace:
        subjects = pair.patch_names
    failures = []
    for subject, feature_id, test_run in _failed_runs(pair, subjects):
        recorded_error = test_run.error or "the tests failed"
        output = outputs.get(f"{subject}-f{feature_id}", "")
        test, error, excerpt = find_error(output, recorded_error)
        failures.append(
            FailedTests(
                subject=subject,
                feature_id=feature_id,
                tests_failed=test_run.tests_failed,
                tests_run=test_run.tests_failed + test_run.tests_passed,
                test=test,
                error=error,
                excerpt=excerpt,
            )
        )
    return failures


def _failed_runs(
    pair: PairData, subjects: tuple[str, ...]
) -> Iterator[tuple[str, int, FeatureTestRun]]:
    for subject in subjects:
        totals = pair.evaluation.totals_of(subject) if pair.evaluation else None
        for feature_id, test_run in (totals.features if totals else {}).items():
            if not test_run.success:
                yield subject, feature_id, test_run


def find_error(output: str, recorded_error: str) -> tuple[str | None, str, str]:
    """Find the error that eval.json names (`TypeError in test_total`) in the output of the tests.

    Returns:
        The failing test, the error with its message, and the lines around it. Without such a line
        in the output: the error as it is recorded, and the end of the output.
    """
    exception, separator, test = recorded_error.partition(" in ")
    lines = [line[:_MAX_LINE_CHARACTERS] for line in output.splitlines()]
    end_of_output = "\n".join(lines[-MAX_EXCERPT_LINES:]).strip()
    if not separator:
        return None, recorded_error, end_of_output
    headings = [index for index, line in enumerate(lines) if test in line]
    error_line = _find_error_line(lines, headings[0] if headings else 0, exception)
    if error_line is None:
        return test, recorded_error, end_of_output
    message = re.sub(r"^E +", "", lines[error_line].strip())
    return test, message, _excerpt(lines, error_line, headings)


def _excerpt(lines: list[str], error_line: int, headings: list[int]) -> str:
    """Return the lines from the heading of the test to the next failure, within the limit."""
    start = max(0, error_line - _LINES_BEFORE_ERROR)
    for heading in headings:
        if start < heading <= error_line:
            start = heading
    end = error_line + 1
    while end < len(lines) and end - start < MAX_EXCERPT_LINES:
        if _NEXT_FAILURE.match(lines[end]):
            break
        end += 1
    return "\n".join(lines[start:end]).strip("\n")


def _find_error_line(lines: list[str], start: int, exception: str) -> int | None:
    named = re.compile(rf"(?:E +|[# \t]*)(?:[\w.]+\.)?{re.escape(exception)}(?:\W|$)")
    for index in range(start, len(lines)):
        if named.match(lines[index]):
            return index
        if exception == "AssertionError" and _IMPLICIT_ASSERTION.match(lines[index]):
            return index
    for index in range(start, len(lines)):
        if f"- {exception}" in lines[index]:
            return index
    return None
