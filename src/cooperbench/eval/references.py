"""References: recorded runs of the golden patches, with which the runs of agents are compared.

A verdict exists only if the golden patch passes in the same image under the same conditions. This
module finds these conditions: with the policy `auto`, the strictest under which it passes.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from itertools import count
from random import SystemRandom

from msgspec.structs import replace

from cooperbench.diff import new_lines
from cooperbench.errors import CooperBenchError
from cooperbench.eval.canaries import Suite, new_suites
from cooperbench.eval.canaries.suites import MAX_GROWTH
from cooperbench.eval.conditions import Conditions, conditions_to_try
from cooperbench.eval.confirmation import (
    Disagreement,
    are_useful,
    find_disagreement,
    keep_stable,
    record_golden_run,
)
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.reference_store import ReferenceStore, conditions_of, features_of, key_of
from cooperbench.eval.test_runs import TestRun, not_run
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import EvalNetwork, Feature, Pair, Task
from cooperbench.records.evaluation import Confirmation
from cooperbench.records.reference import ReferenceRecord, SuiteRecord
from cooperbench.retry import SingleFlight
from cooperbench.storage import utc_now

_ADDED_FUNCTION = re.compile(rb"^\+.*\b(?:fn|def|func) (\w+)", re.MULTILINE)

_MIN_SUITE_SECONDS = 60
"""Estimated duration of a confirmation run up to which its suite is not made smaller."""
_NO_SUITE = "no version of the tests that must fail does so with the golden patch"


def _ignore_note(_text: str) -> None:
    """Do nothing with a note."""


class References:
    """References of one experiment: from the cache, or recorded now, each once."""

    def __init__(
        self,
        tester: PatchTester,
        policy: EvalNetwork,
        store: ReferenceStore | None = None,
        note: Callable[[str], None] = _ignore_note,
    ) -> None:
        self.tester = tester
        self.policy = policy
        self.store = store or ReferenceStore()
        self._note = note
        self._conditions = conditions_to_try(tester.capabilities, policy)
        self._work: SingleFlight[tuple[Feature, str], None] = SingleFlight()
        self._references: dict[Feature, ReferenceRecord] = {}
        self._confirmations: SingleFlight[tuple[Feature, str], Confirmation] = SingleFlight()
        self._stable_suites: SingleFlight[tuple[Feature, int], SuiteRecord] = SingleFlight()
        self._lock = threading.Lock()
        self._needs_more: set[Task] = set()
        """Tasks with a golden patch that does not pass under the strictest conditions."""
        self._noted: set[tuple[Task, str]] = set()

    def get(self, feature: Feature) -> ReferenceRecord:
        """Return the reference under the strictest conditions under which the golden patch passes.

        If it passes under none of them, return one that failed.
        """
        self._work.get((feature, "golden"), partial(self._find_reference, feature))
        return self._references[feature]

    def begin(
        self, pairs: Iterable[Pair], pool: Executor, progress: Callable[[str, int, int], None]
    ) -> list[Future[None]]:
        """Record the references that these pairs need and that are not in the cache.

        `progress` gets the name of each, how many are done and how many there are.
        """
        missing = [feature for feature in features_of(pairs) if self._must_be_recorded(feature)]
        done = count(1)

        def record(feature: Feature) -> None:
            # The evaluation that needs it will try again and report the error.
            with suppress(CooperBenchError):
                self.get(feature)
            progress(f"{feature.task.label} feature {feature.feature_id}", next(done), len(missing))

        return [pool.submit(record, feature) for feature in missing]

    def _must_be_recorded(self, feature: Feature) -> bool:
        try:
            for conditions in self._conditions:
                reference = self._load(feature, conditions)
                if reference is None:
                    return True
                if reference.golden.success:
                    return False
        except CooperBenchError:
            return False  # the task has no image, so nothing can run
        return True

    def test(self, feature: Feature, patch: bytes, tree: str) -> TestRun:
        """Run a feature's tests with a patch, and compare the run with the reference.

        `tree` is the id of the git tree that the patch leads to.
        """
        reference = self.get(feature)
        run = self.tester.run_once(feature, patch, tree, conditions_of(reference))
        compared = run.compare_with_reference(reference)
        if run.success and reference.golden.success and not compared.success:
            # Some frameworks name their tests differently each time. Find out before it counts.
            return run.compare_with_reference(self._with_second_run(feature))
        return compared

    def _with_second_run(self, feature: Feature) -> ReferenceRecord:
        """Return the reference after a second run: tests whose ids differ are not required."""

        def run_again() -> None:
            reference = self.get(feature)
            if reference.runs == 1:
                run = self._run_golden(feature, conditions_of(reference))
                self._update(feature, lambda reference: _add_runs(reference, [run]))

        self._work.get((feature, "again"), run_again)
        return self._references[feature]

    def confirm(self, feature: Feature, patch: bytes, tree: str) -> Confirmation:
        """Run a patch, which has passed the tests, with two confirmation suites.

        `tree` is the id of the git tree that the patch leads to. An equal patch is not run again.
        """
        key = (feature, tree)
        return self._confirmations.get(key, partial(self._confirm, feature, patch))

    def _confirm(self, feature: Feature, patch: bytes) -> Confirmation:
        self._work.get((feature, "suites"), partial(self._find_suites, feature))
        reference = self._references[feature]
        suites = reference.suites or []
        if not suites:
            return Confirmation(outcome="impossible", detail=_NO_SUITE)
        conditions = conditions_of(reference)
        tests = [suite.tests.encode("latin-1") for suite in suites]
        runs = self.tester.run_suites(feature, patch, conditions, tests)
        disagreement = None
        for index, run in enumerate(runs):
            disagreement = disagreement or self._find_disagreement(feature, patch, index, run)
        return Confirmation(
            outcome="suspicious" if disagreement else "confirmed",
            kind=suites[0].kind,
            tests=suites[0].tests_total,
            tests_with_decoys=min(suite.tests_with_decoys for suite in suites),
            detail=disagreement.reason if disagreement else None,
        )

    def _find_disagreement(
        self, feature: Feature, patch: bytes, index: int, run: TestRun
    ) -> Disagreement | None:
        """Compare a confirmation run with the golden patch; repeat it if tests may be flaky."""
        reference = self._references[feature]
        assert reference.suites
        suite = reference.suites[index]
        disagreement = find_disagreement(suite, run, reference.flaky_tests)
        # Never retry if a test passed that must fail.
        if disagreement is None or disagreement.decoy_passed:
            return disagreement
        key = (feature, index)
        stable = self._stable_suites.get(key, partial(self._find_stable_suite, feature, suite))
        disagreement = find_disagreement(stable, run, reference.flaky_tests)
        if disagreement is None or disagreement.decoy_passed:
            return disagreement
        tests = [suite.tests.encode("latin-1")]
        (second_run,) = self.tester.run_suites(feature, patch, conditions_of(reference), tests)
        return find_disagreement(stable, second_run, reference.flaky_tests)

    def _find_suites(self, feature: Feature) -> None:
        """Record the first two suites that work with the golden patch; if there are none, that."""
        if self.get(feature).suites is not None:
            return
        recorded: list[SuiteRecord] = []
        with TreeStore(self.tester.base(feature.task)) as store:
            growth = self._max_growth(self._references[feature])
            for suites in new_suites(feature, store, SystemRandom(), max_growth=growth):
                tried = self._try_suites(feature, suites)
                if are_useful(tried):
                    recorded = [suite for suite in tried if suite]
                    break
        self._update(feature, lambda reference: replace(reference, suites=recorded))

    def _max_growth(self, reference: ReferenceRecord) -> float:
        """Return how many times as many tests as the hidden ones a confirmation run may have."""
        duration_seconds = max(reference.golden.duration_seconds, 0.1)
        allowed_seconds = max(_MIN_SUITE_SECONDS, 3 * duration_seconds)
        allowed_seconds = min(allowed_seconds, self.tester.timeout_seconds / 2)
        return min(MAX_GROWTH, max(2.0, allowed_seconds / duration_seconds))

    def _try_suites(self, feature: Feature, suites: Sequence[Suite]) -> list[SuiteRecord | None]:
        """Run the golden patch with suites and record the outcomes; None for a useless suite."""
        runs = self._run_golden_on_suites(feature, [suite.tests for suite in suites])
        reference = self._references[feature]
        own_tests = _own_tests(feature)
        recorded = []
        for suite, run in zip(suites, runs, strict=True):
            recorded.append(record_golden_run(suite, run, reference, own_tests))
        return recorded

    def _find_stable_suite(self, feature: Feature, record: SuiteRecord) -> SuiteRecord:
        """Run the golden patch again: tests that do not end the same way are not compared."""
        (run,) = self._run_golden_on_suites(feature, [record.tests.encode("latin-1")])
        return keep_stable(record, run)

    def _run_golden_on_suites(self, feature: Feature, suites: Sequence[bytes]) -> list[TestRun]:
        conditions = conditions_of(self._references[feature])
        golden = self._apply_golden(feature).patch
        return self.tester.run_suites(feature, golden, conditions, suites)

    def measure(self, feature: Feature, repeat: int = 1) -> ReferenceRecord:
        """Run golden patch and base now, each `repeat` times, and save the result."""
        self._work.get((feature, "golden"), partial(self._measure, feature, repeat))
        return self._references[feature]

    def _measure(self, feature: Feature, repeat: int) -> None:
        self._find_reference(feature, use_cache=False)
        reference = self._references[feature]
        if not reference.golden.success:
            return
        conditions = conditions_of(reference)
        golden_runs = [self._run_golden(feature, conditions) for _ in range(repeat - 1)]
        base_runs = [self.tester.run(feature, None, conditions) for _ in range(repeat)]
        repeated = _add_runs(reference, golden_runs)
        measured = replace(
            repeated,
            flaky_tests=sorted({*repeated.flaky_tests, *_sometimes_failed(base_runs)}),
            base_passes=any(run.success for run in base_runs),
        )
        self._update(feature, lambda _: measured)

    def _update(
        self, feature: Feature, change: Callable[[ReferenceRecord], ReferenceRecord]
    ) -> None:
        """Change a known reference, also in the cache."""
        with self._lock:
            self._references[feature] = change(self._references[feature])
            self._save(self._references[feature])

    def _find_reference(self, feature: Feature, *, use_cache: bool = True) -> None:
        """Try the conditions until the golden patch passes, and remember the last reference."""
        steps = self._conditions
        if feature.task in self._needs_more:
            # Other features of the task will need a dependency layer or a network too.
            steps = tuple(step for step in steps if step.installed) or steps
        for conditions in steps:
            reference = self._load(feature, conditions) if use_cache else None
            if reference is None:
                reference = self._record(feature, conditions, is_last=conditions == steps[-1])
            self._references[feature] = reference
            if reference.golden.success:
                self._note_surprises(feature.task, reference)
                return

    def _record(
        self, feature: Feature, conditions: Conditions, *, is_last: bool
    ) -> ReferenceRecord:
        """Run the golden patch and save the reference."""
        golden = self._apply_golden(feature)
        if golden.error:
            return self._make_reference(feature, conditions, not_run(golden.error))
        first_run = self.tester.run_once(feature, golden.patch, golden.tree, conditions)
        if first_run.success or not is_last:
            reference = self._make_reference(feature, conditions, first_run)
            self._save(reference)
            return reference
        # A golden patch that fails sometimes must not cost all pairs of its feature.
        second_run = self._run_golden(feature, conditions)
        reference = self._make_reference(feature, conditions, second_run)
        if second_run.success:
            reference = _add_runs(reference, [first_run])
            self._save(reference)
        # Otherwise do not cache it: the package index may be down for a moment.
        return reference

    def _apply_golden(self, feature: Feature) -> Applied:
        """Return the golden patch as an agent's would be tested; `error` says why it cannot be."""
        if not feature.tests.read_bytes().strip():
            return Applied("failed", error="tests.patch is empty")
        with TreeStore(self.tester.base(feature.task)) as store:
            protected = self.tester.protected_files((feature,), store)
            golden = drop_protected_files(feature.patch.read_bytes(), protected, store)
        if not protected.hidden and not golden.error:
            return Applied("failed", error="tests.patch does not apply")
        return golden

    def _run_golden(self, feature: Feature, conditions: Conditions) -> TestRun:
        return self.tester.run(feature, self._apply_golden(feature).patch, conditions)

    def _make_reference(
        self, feature: Feature, conditions: Conditions, run: TestRun
    ) -> ReferenceRecord:
        passed = {test for test, outcome in run.outcomes.items() if outcome == "passed"}
        is_own_test = _own_tests(feature)
        own = {test for test in passed if is_own_test.search(test)}
        golden = replace(run.to_record(), tests_passed=run.tests_passed - len(own))
        return ReferenceRecord(
            question=key_of(feature),
            task=feature.task.label,
            feature_id=feature.feature_id,
            image_digest=self.tester.image(feature.task).digest,
            network=conditions.network,
            installed=conditions.installed,
            golden=golden,
            passed_tests=sorted(passed - own),
            time=utc_now(),
        )

    def _load(self, feature: Feature, conditions: Conditions) -> ReferenceRecord | None:
        """Return the cached reference if it is valid with the time limit of this experiment."""
        digest = self.tester.image(feature.task).digest
        if not digest:
            return None
        reference = self.store.load(feature, digest, conditions)
        if reference is None or reference.golden.timed_out:
            return None
        if reference.golden.duration_seconds > self.tester.timeout_seconds:
            return None
        # With a network, backends with and without dependency layers share references.
        return replace(reference, installed=conditions.installed)

    def _save(self, reference: ReferenceRecord) -> None:
        """Write a reference to the cache, unless its image is unknown or nothing was run."""
        if reference.image_digest and reference.golden.exit_code is not None:
            self.store.save(reference)

    def note_once(self, task: Task, topic: str, text: str) -> None:
        """Show a note about a task, once per topic."""
        with self._lock:
            if (task, topic) in self._noted:
                return
            self._noted.add((task, topic))
        self._note(f"{task.label}: {text}")

    def _note_surprises(self, task: Task, reference: ReferenceRecord) -> None:
        """Tell the user which conditions `auto` chose, and if tests have no names."""
        if conditions_of(reference) != self._conditions[0]:
            self._needs_more.add(task)
            conditions = "with a network"
            if reference.network != "public":
                conditions = "in an image that keeps what its runner installs"
            self.note_once(
                task,
                "conditions",
                f"the golden patch of feature {reference.feature_id} does not pass in the bare"
                f" image without a network; its tests run {conditions}",
            )
        if not reference.passed_tests:
            text = "its runner does not name the tests that pass; their number decides"
            self.note_once(task, "names", text)


def _own_tests(feature: Feature) -> re.Pattern[str]:
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


def _add_runs(reference: ReferenceRecord, runs: Sequence[TestRun]) -> ReferenceRecord:
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


def _sometimes_failed(runs: Sequence[TestRun]) -> set[str]:
    """Return the tests that failed in some of these runs, but not in all."""
    failures: Counter[str] = Counter()
    for run in runs:
        failures.update(test for test, outcome in run.outcomes.items() if outcome == "failed")
    return {test for test, number in failures.items() if number < len(runs)}
