"""Test runs of golden patches, and the references that are made from them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from cooperbench.diff import new_lines
from cooperbench.eval.conditions import Conditions
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.reference_store import key_of
from cooperbench.eval.test_runs import TestRun
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import Feature
from cooperbench.records.reference import ReferenceRecord
from cooperbench.storage import utc_now

MAX_GOLDEN_RUNS = 4
"""Maximum number of runs of a golden patch with failed tests, before it counts as failed.

A golden patch that fails in 15 % of its runs is then lost in 0.05 % of all cases.
"""
_ADDED_FUNCTION = re.compile(rb"^\+.*\b(?:fn|def|func) (\w+)", re.MULTILINE)
_FILE_OR_PACKAGE = re.compile(r"(?:[\w@.+-]+/)*[\w@.+-]+")
_GO_TEST = re.compile(r"(?:^|\.)(?:Test|Example|Fuzz)")


class GoldenRuns:
    """Runs of golden patches for one experiment."""

    def __init__(self, tester: PatchTester) -> None:
        self._tester = tester

    def apply(self, feature: Feature) -> Applied:
        """Return the golden patch as an agent's would be tested; `error` says why it cannot be."""
        if not feature.tests.read_bytes().strip():
            return Applied("failed", error="tests.patch is empty")
        with TreeStore(self._tester.base(feature.task)) as store:
            protected = self._tester.protected_files((feature,), store)
            golden = drop_protected_files(feature.patch.read_bytes(), protected, store)
        if not protected.hidden and not golden.error:
            return Applied("failed", error="tests.patch does not apply")
        return golden

    def run(self, feature: Feature, conditions: Conditions) -> TestRun:
        """Run the golden patch with the feature's tests."""
        return self._tester.run(feature, self.apply(feature).patch, conditions)

    def run_until_stable(
        self, feature: Feature, golden: Applied, conditions: Conditions
    ) -> list[TestRun]:
        """Run the golden patch, again while tests fail that may be flaky."""
        runs = [self._tester.run_once(feature, golden.patch, golden.tree, conditions)]
        while len(runs) < MAX_GOLDEN_RUNS and may_be_flaky(runs[-1]) and not _best(runs).success:
            runs.append(self._tester.run(feature, golden.patch, conditions))
        return runs

    def make_reference(
        self, feature: Feature, conditions: Conditions, runs: Sequence[TestRun]
    ) -> ReferenceRecord:
        """Return the reference that follows from all runs under the same conditions."""
        best = _best(runs)
        passed = {test for test, outcome in best.outcomes.items() if outcome == "passed"}
        is_own_test = own_tests_pattern(feature)
        own = {test for test in passed if is_own_test.search(test)}
        golden = replace(best.to_record(), tests_passed=best.tests_passed - len(own))
        reference = ReferenceRecord(
            question=key_of(feature),
            task=feature.task.label,
            feature_id=feature.feature_id,
            image_digest=self._tester.image(feature.task).digest,
            network=conditions.network,
            installed=conditions.installed,
            golden=golden,
            passed_tests=sorted(passed - own),
            flaky_tests=sorted(_flaky_tests(runs)),
            runs=0,
            time=utc_now(),
        )
        return add_runs(reference, runs)


def may_be_flaky(run: TestRun) -> bool:
    """Whether tests ran and failed, so that another run may end differently.

    A file that cannot be loaded or a package that does not compile is not flaky.
    """
    if run.success or run.timed_out:
        return False
    failed = _tests_with(run, "failed")
    if failed:
        return any(_is_test(test) for test in failed)
    return run.tests_passed + run.tests_failed > 0


def always_failed(runs: Sequence[TestRun]) -> set[str]:
    """Return the tests that failed in some of these runs and passed in none."""
    failed: set[str] = set()
    passed: set[str] = set()
    for run in runs:
        failed |= _tests_with(run, "failed")
        passed |= _tests_with(run, "passed")
    return failed - passed


def add_runs(reference: ReferenceRecord, runs: Sequence[TestRun]) -> ReferenceRecord:
    """Return a reference after more runs of the golden patch: they show which tests are flaky."""
    flaky = set(reference.flaky_tests)
    failed_runs = reference.failed_runs
    for run in runs:
        if not run.success:
            failed_runs += 1
        for test in reference.passed_tests:
            outcome = run.outcomes.get(test)
            # A run that failed may have stopped early, so only failures count there.
            if outcome == "failed" or (run.success and outcome != "passed"):
                flaky.add(test)
    return replace(
        reference,
        flaky_tests=sorted(flaky),
        runs=reference.runs + len(runs),
        failed_runs=failed_runs,
    )


def _best(runs: Sequence[TestRun]) -> TestRun:
    """Return the first success, also one in which only flaky tests failed; else the first run."""
    for run in runs:
        if run.success:
            return run
    flaky = _flaky_tests(runs)
    for run in runs:
        forgiven = run.forgive_flaky_failures(flaky)
        if forgiven.success:
            return forgiven
    return runs[0]


def _flaky_tests(runs: Sequence[TestRun]) -> set[str]:
    """Return the tests that passed in one of these runs and failed in another."""
    failed: set[str] = set()
    for run in runs:
        failed |= _tests_with(run, "failed")
    return failed - always_failed(runs)


def _tests_with(run: TestRun, outcome: str) -> set[str]:
    return {test for test, ended in run.outcomes.items() if ended == outcome}


def _is_test(test: str) -> bool:
    """Whether an id is that of a test, and not of a file or package that cannot be tested."""
    if "_FailedTest" in test:  # what unittest makes of a module that cannot be imported
        return False
    if _GO_TEST.search(test):
        return True
    is_path = _FILE_OR_PACKAGE.fullmatch(test) and ("/" in test or "." in test)
    return not is_path


def own_tests_pattern(feature: Feature) -> re.Pattern[str]:
    """Return a pattern for the ids of tests that other implementations need not have.

    These are tests in the code of the golden patch, and in documentation.
    """
    golden, hidden = feature.patch.read_bytes(), feature.tests.read_bytes()
    paths = {line.path for line in new_lines(golden)} - {line.path for line in new_lines(hidden)}
    functions = set(_ADDED_FUNCTION.findall(golden)) - set(_ADDED_FUNCTION.findall(hidden))
    patterns = [r"\.rs - "]
    patterns += [rf"(?:^|\[){re.escape(path)}(?!\w)" for path in sorted(paths)]
    patterns += [rf"(?:::|\.){name.decode()}(?=[/\[]|$)" for name in sorted(functions)]
    return re.compile("|".join(patterns))
