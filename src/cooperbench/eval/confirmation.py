"""Confirmation runs, compared with the golden patch test by test.

A confirmation suite has tests that must pass and tests that must fail. Which is which was measured
with the golden patch. `References.confirm` makes the runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from cooperbench.eval.canaries import Suite
from cooperbench.eval.test_runs import TestRun
from cooperbench.records.reference import ReferenceRecord, SuiteRecord

_NO_NAMES = re.compile(r"(?!)")
_SLACK = 3
"""Factor by which a confirmation run may be slower than expected: machines can be busy."""
_MAX_TIMEOUT_FACTOR = 6
"""Time limit of a confirmation run, at most, in multiples of the usual one."""


@dataclass(frozen=True)
class Disagreement:
    """Why a confirmation run does not agree with the golden patch."""

    reason: str
    """One line."""
    decoy_passed: bool = False
    """Whether a test passed that must fail. Such a run is never repeated."""


def record_golden_run(
    suite: Suite, run: TestRun, reference: ReferenceRecord, own_tests: re.Pattern[str]
) -> SuiteRecord | None:
    """Return a suite with what its tests did with the golden patch; None if it is of no use.

    Decoys that pass are not compared: their expected values may be right for other code. Nor are
    originals that fail, e.g. because they depend on their own name. `own_tests` matches tests in
    code of the golden patch, which other implementations need not have.
    """
    if run.timed_out:
        return None
    is_decoy, is_original = _name_pattern(suite.decoys), _name_pattern(suite.originals)
    failed = {test for test, outcome in run.outcomes.items() if outcome == "failed"}
    passed = {test for test, outcome in run.outcomes.items() if outcome == "passed"}
    has_failed_decoy = any(is_decoy.search(test) for test in failed)
    if not run.success and not has_failed_decoy:
        # Either the tests cannot be loaded or the framework does not name those that fail.
        is_complete = run.tests_passed + run.tests_failed >= reference.golden.tests_passed
        if (suite.decoys and failed) or not is_complete:
            return None
    unclear_failures = {test for test in failed if is_original.search(test)}
    unclear_passes = {test for test in passed if is_decoy.search(test) or own_tests.search(test)}
    return SuiteRecord(
        kind=suite.kind,
        tests=suite.tests.decode("latin-1"),
        tests_total=suite.tests_total,
        tests_with_decoys=suite.tests_with_decoys,
        failed=sorted(failed - unclear_failures),
        passed=sorted(passed - unclear_passes),
        failed_count=run.tests_failed - len(unclear_failures),
        passed_count=run.tests_passed - len(unclear_passes),
        not_compared=sorted(unclear_failures | unclear_passes),
    )


def failed_originals(suite: Suite, run: TestRun) -> set[str]:
    """Return the names of tests that should pass and fail in a run of the golden patch."""
    is_original = _name_pattern(suite.originals)
    matches = []
    for test, outcome in run.outcomes.items():
        if outcome == "failed":
            matches.append(is_original.search(test))
    return {match["name"] for match in matches if match}


def _name_pattern(names: Collection[str]) -> re.Pattern[str]:
    """Return a pattern for the ids of tests with these names, not of files or modules."""
    if not names:
        return _NO_NAMES
    alternatives = "|".join(re.escape(name) for name in sorted(names))
    return re.compile(rf"(?:^|[.:/> ])(?P<name>{alternatives})(?:[\[/]| >|::case_|$)")


def are_useful(suites: Iterable[SuiteRecord | None]) -> bool:
    """Whether all suites work with the golden patch, and at least one has a test that fails."""
    recorded = list(suites)
    return None not in recorded and any(suite and suite.failed_count for suite in recorded)


def keep_stable(suite: SuiteRecord, golden_run: TestRun) -> SuiteRecord:
    """Return a suite with the tests that end the same way in another run of the golden patch."""
    if golden_run.timed_out:
        return suite
    outcomes = golden_run.outcomes
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    stable_failures = failed.intersection(suite.failed)
    stable_passes = [test for test in suite.passed if outcomes.get(test) == "passed"]
    unstable = {*suite.failed, *suite.passed} - stable_failures - {*stable_passes}
    return replace(
        suite,
        failed=sorted(stable_failures),
        passed=stable_passes,
        failed_count=min(suite.failed_count, golden_run.tests_failed),
        passed_count=min(suite.passed_count, golden_run.tests_passed),
        not_compared=sorted({*suite.not_compared, *unstable}),
        names_vary=bool(failed.difference(suite.failed, suite.not_compared, suite.passed)),
    )


def suite_timeout(
    suites: Iterable[SuiteRecord],
    reference: ReferenceRecord,
    duration_seconds: float,
    timeout_seconds: int,
) -> int:
    """Return the time limit of a patch's confirmation runs.

    A patch that is slower than the golden one may take as much longer with a suite, which has more
    tests. `duration_seconds` is how long the hidden tests took with it.
    """
    hidden_count = max(reference.golden.tests_passed, 1)
    growth = max((suite.passed_count + suite.failed_count) / hidden_count for suite in suites)
    needed_seconds = round(_SLACK * growth * duration_seconds)
    return min(max(timeout_seconds, needed_seconds), _MAX_TIMEOUT_FACTOR * timeout_seconds)


def find_disagreement(
    suite: SuiteRecord, run: TestRun, flaky_tests: Collection[str]
) -> Disagreement | None:
    """Compare a run with the golden patch on the same suite; None if they agree.

    `flaky_tests` are ids of hidden tests that are not required.
    """
    if run.timed_out:
        return Disagreement("a confirmation run did not end in time")
    if run.success and suite.failed_count:
        return Disagreement("every test passes, although some must fail", decoy_passed=True)
    is_flaky = _flaky_pattern(flaky_tests)
    for test in suite.failed:
        if not is_flaky.search(test) and run.outcomes.get(test) == "passed":
            return Disagreement(f"{test} passes, although it must fail", decoy_passed=True)
    for test in suite.failed:
        if not is_flaky.search(test) and run.outcomes.get(test) != "failed":
            return Disagreement(f"{test} must fail, but did not run")
    absent = [test for test in suite.passed if run.outcomes.get(test) != "passed"]
    absent = [test for test in absent if not is_flaky.search(test)]
    if absent and not run.counts_include(absent, suite.passed, suite.passed_count):
        return Disagreement(f"{absent[0]} does not pass in a confirmation run")
    return _find_unexpected_failure(suite, run, is_flaky) or _compare_counts(
        suite, run, len(flaky_tests)
    )


def _find_unexpected_failure(
    suite: SuiteRecord, run: TestRun, is_flaky: re.Pattern[str]
) -> Disagreement | None:
    """Find a failure that the golden patch does not have, where only failures are named."""
    if suite.passed or suite.names_vary:
        return None
    expected = {*suite.failed, *suite.not_compared}
    for test, outcome in run.outcomes.items():
        if outcome == "failed" and test not in expected and not is_flaky.search(test):
            return Disagreement(f"{test} does not pass in a confirmation run")
    return None


def _compare_counts(suite: SuiteRecord, run: TestRun, flaky_count: int) -> Disagreement | None:
    """Compare numbers of tests, which is all there is where tests are not named."""
    if run.tests_passed + flaky_count < suite.passed_count:
        expected = f"{suite.passed_count} tests must pass"
        return Disagreement(f"{expected}, {run.tests_passed} do in a confirmation run")
    if run.tests_failed + flaky_count < suite.failed_count:
        expected = f"{suite.failed_count} tests must fail"
        return Disagreement(f"{expected}, {run.tests_failed} do", decoy_passed=True)
    return None


def _flaky_pattern(flaky_tests: Collection[str]) -> re.Pattern[str]:
    """Return a pattern for flaky tests and their instances, whose names have a suffix."""
    if not flaky_tests:
        return _NO_NAMES
    names = sorted({test.partition("[")[0] for test in flaky_tests})
    return re.compile("|".join(f"^{re.escape(name)}" for name in names))
