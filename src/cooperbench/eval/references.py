"""References: recorded runs of the golden patches, with which the runs of agents are compared.

A verdict exists only if the golden patch passes in the same image under the same conditions. This
module finds these conditions: with the policy `auto`, the strictest under which it passes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from itertools import count

from msgspec.structs import replace

from cooperbench.errors import CooperBenchError, InfraError
from cooperbench.eval.conditions import Conditions
from cooperbench.eval.confirmation import (
    Disagreement,
    find_disagreement,
    keep_stable,
    suite_timeout,
)
from cooperbench.eval.golden_runs import GoldenRuns, add_runs
from cooperbench.eval.package_index import find_outage
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.reference_search import ReferenceSearch
from cooperbench.eval.reference_store import ReferenceStore, conditions_of, features_of
from cooperbench.eval.suite_search import SuiteSearch
from cooperbench.eval.test_runs import TestRun
from cooperbench.eval.trees import TreeStore
from cooperbench.models import EvalNetwork, Feature, Pair, Task
from cooperbench.records.evaluation import Confirmation
from cooperbench.records.reference import ReferenceRecord, SuiteRecord
from cooperbench.retry import SingleFlight

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
        self._golden = GoldenRuns(tester)
        self._search = ReferenceSearch(tester, policy, self.store, self.note_once)
        self._work: SingleFlight[tuple[Feature, str], None] = SingleFlight()
        self._references: dict[Feature, ReferenceRecord] = {}
        self._confirmations: SingleFlight[tuple[Feature, str], Confirmation] = SingleFlight()
        self._stable_suites: SingleFlight[tuple[Feature, int], SuiteRecord] = SingleFlight()
        self._durations: dict[tuple[Feature, str], float] = {}
        """Seconds that the hidden tests took, by feature and tree."""
        self._lock = threading.Lock()
        self._noted: set[tuple[Task, str]] = set()

    def get(self, feature: Feature) -> ReferenceRecord:
        """Return the reference under the strictest conditions under which the golden patch passes.

        If it passes under none of them, return one that failed.
        """
        self._work.get((feature, "golden"), partial(self._find_reference, feature))
        reference = self._references[feature]
        if reference.golden.exit_code is None:
            # Nothing ran, perhaps because of an outage. The next call tries again.
            self._work.forget((feature, "golden"))
        return reference

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
            return self._search.load(feature) is None
        except CooperBenchError:
            return False  # the task has no image, so nothing can run

    def test(self, feature: Feature, patch: bytes, tree: str) -> TestRun:
        """Run a feature's tests with a patch, and compare the run with the reference.

        `tree` is the id of the git tree that the patch leads to.
        """
        reference = self.get(feature)
        conditions = conditions_of(reference)
        run = self.tester.run_once(feature, patch, tree, conditions)
        if conditions.network != "none" and not run.success and find_outage(run.output):
            # It may be back already.
            self.tester.forget(feature, tree, conditions)
            run = self.tester.run_once(feature, patch, tree, conditions)
            self._raise_if_outage(feature, run, conditions)
        self._durations[feature, tree] = run.duration_seconds
        compared = run.compare_with_reference(reference)
        if run.success and reference.golden.success and not compared.success:
            # Some frameworks name their tests differently each time. Find out before it counts.
            return run.compare_with_reference(self._with_second_run(feature))
        return compared

    def _raise_if_outage(self, feature: Feature, run: TestRun, conditions: Conditions) -> None:
        """Raise InfraError if a run failed because of an outage: the golden patch fails too.

        The output alone proves nothing, since code under test can print anything.
        """
        if conditions.network == "none" or run.success:
            return
        outage = find_outage(run.output)
        if outage and not self._run_golden(feature, conditions).success:
            raise InfraError(str(outage))

    def _with_second_run(self, feature: Feature) -> ReferenceRecord:
        """Return the reference after a second run: tests whose ids differ are not required."""

        def run_again() -> None:
            reference = self.get(feature)
            if reference.runs == 1:
                run = self._run_golden(feature, conditions_of(reference))
                self._update(feature, lambda reference: add_runs(reference, [run]))

        self._work.get((feature, "again"), run_again)
        return self._references[feature]

    def confirm(self, feature: Feature, patch: bytes, tree: str) -> Confirmation:
        """Run a patch, which has passed the tests, with two confirmation suites.

        `tree` is the id of the git tree that the patch leads to. An equal patch is not run again.
        """
        key = (feature, tree)
        return self._confirmations.get(key, partial(self._confirm, feature, patch, tree))

    def _confirm(self, feature: Feature, patch: bytes, tree: str) -> Confirmation:
        suites = self.suites(feature)
        reference = self._references[feature]
        if not suites:
            return Confirmation(outcome="impossible", detail=_NO_SUITE)
        conditions = conditions_of(reference)
        tests = [suite.tests.encode("latin-1") for suite in suites]
        duration_seconds = self._durations.get((feature, tree), 0.0)
        limit = suite_timeout(suites, reference, duration_seconds, self.tester.timeout_seconds)
        runs = self.tester.run_suites(feature, patch, conditions, tests, limit)
        disagreement = None
        for index, run in enumerate(runs):
            if disagreement is None:
                disagreement = self._find_disagreement(feature, patch, index, run, limit)
        return Confirmation(
            outcome="suspicious" if disagreement else "confirmed",
            kind=suites[0].kind,
            tests=suites[0].tests_total,
            tests_with_decoys=min(suite.tests_with_decoys for suite in suites),
            detail=disagreement.reason if disagreement else None,
        )

    def suites(self, feature: Feature) -> list[SuiteRecord]:
        """Return the confirmation suites of a feature; none if none can be made."""
        self._work.get((feature, "suites"), partial(self._find_suites, feature))
        return self._references[feature].suites or []

    def _find_disagreement(
        self, feature: Feature, patch: bytes, index: int, run: TestRun, timeout_seconds: int
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
        conditions = conditions_of(reference)
        (second_run,) = self.tester.run_suites(feature, patch, conditions, tests, timeout_seconds)
        disagreement = find_disagreement(stable, second_run, reference.flaky_tests)
        if disagreement and not disagreement.decoy_passed:
            self._raise_if_outage(feature, second_run, conditions)
        return disagreement

    def _find_suites(self, feature: Feature) -> None:
        """Record the first two suites that work with the golden patch; if there are none, that."""
        if self.get(feature).suites is not None:
            return
        search = SuiteSearch(
            feature,
            self._references[feature],
            partial(self._run_golden_on_suites, feature),
            self.tester.timeout_seconds,
        )
        with TreeStore(self.tester.base(feature.task)) as store:
            recorded = search.find(store)
        self._update(feature, lambda reference: replace(reference, suites=recorded))

    def _find_stable_suite(self, feature: Feature, record: SuiteRecord) -> SuiteRecord:
        """Run the golden patch again: tests that do not end the same way are not compared."""
        (run,) = self._run_golden_on_suites(feature, [record.tests.encode("latin-1")])
        return keep_stable(record, run)

    def _run_golden_on_suites(self, feature: Feature, suites: Sequence[bytes]) -> list[TestRun]:
        conditions = conditions_of(self._references[feature])
        golden = self._golden.apply(feature).patch
        runs = self.tester.run_suites(feature, golden, conditions, suites)
        for run in runs:
            self._raise_if_outage(feature, run, conditions)
        return runs

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
        repeated = add_runs(reference, golden_runs)
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
            changed = change(self._references[feature])
            self._references[feature] = self._search.save(changed)

    def _find_reference(self, feature: Feature, *, use_cache: bool = True) -> None:
        self._references[feature] = self._search.find(feature, use_cache=use_cache)

    def _run_golden(self, feature: Feature, conditions: Conditions) -> TestRun:
        return self._golden.run(feature, conditions)

    def note_once(self, task: Task, topic: str, text: str) -> None:
        """Show a note about a task, once per topic."""
        with self._lock:
            if (task, topic) in self._noted:
                return
            self._noted.add((task, topic))
        self._note(f"{task.label}: {text}")


def _sometimes_failed(runs: Sequence[TestRun]) -> set[str]:
    """Return the tests that failed in some of these runs, but not in all."""
    failures: Counter[str] = Counter()
    for run in runs:
        failures.update(test for test, outcome in run.outcomes.items() if outcome == "failed")
    return {test for test, number in failures.items() if number < len(runs)}
