"""The search for confirmation suites that work with the golden patch of a feature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom

from cooperbench.eval.canaries import Suite, new_suites
from cooperbench.eval.canaries.suites import MAX_GROWTH
from cooperbench.eval.confirmation import are_useful, failed_originals, record_golden_run
from cooperbench.eval.golden_runs import own_tests_pattern
from cooperbench.eval.test_runs import TestRun
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Feature
from cooperbench.records.reference import ReferenceRecord, SuiteRecord

_MIN_SUITE_SECONDS = 60
"""Duration of a confirmation run up to which its suite is not made smaller."""
_MAX_FIRST_SECONDS = 300
"""Estimated duration of the first run of a suite, at most.

The estimate takes all of a test run for tests. Most of it may be spent before the tests begin.
"""
_MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class _Trial:
    """Two suites of the same kind, and what the golden patch does with them."""

    suites: Sequence[Suite]
    records: list[SuiteRecord]
    duration_seconds: float
    failed_originals: frozenset[str]
    """Names of tests that should pass, but do not."""


class SuiteSearch:
    """The search for the suites of one feature."""

    def __init__(
        self,
        feature: Feature,
        reference: ReferenceRecord,
        run_golden: Callable[[Sequence[bytes]], list[TestRun]],
        timeout_seconds: float,
    ) -> None:
        self._feature = feature
        self._reference = reference
        self._run_golden = run_golden
        self._timeout_seconds = timeout_seconds
        self._random: Random = SystemRandom()

    def find(self, store: TreeStore) -> list[SuiteRecord]:
        """Return the first two suites that work with the golden patch; none if there are none.

        They are made again, with fewer copies, if they take too long. They are also made again if
        tests fail that should pass: the golden patch returns objects of its own types there, so
        operands of these tests are compared as they are.
        """
        growth = self._first_growth()
        own_types: frozenset[str] = frozenset()
        best: list[SuiteRecord] = []
        for _ in range(_MAX_ATTEMPTS):
            trial = self._first_useful(
                new_suites(
                    self._feature, store, self._random, max_growth=growth, own_types=own_types
                )
            )
            if trial is None:
                break
            best = trial.records
            excess = trial.duration_seconds / self._allowed_seconds()
            has_new_own_types = bool(trial.failed_originals) and not own_types
            is_done = excess <= 1 and not has_new_own_types
            if is_done or trial.suites[0].kind != "copies":
                break
            own_types |= trial.failed_originals
            growth = max(2.0, growth / max(excess, 1.0))
        return best

    def _allowed_seconds(self) -> float:
        duration_seconds = max(self._reference.golden.duration_seconds, 0.1)
        return min(max(_MIN_SUITE_SECONDS, 3 * duration_seconds), self._timeout_seconds / 2)

    def _first_growth(self) -> float:
        """Return how many times as many tests as the hidden ones the first suite may have."""
        duration_seconds = max(self._reference.golden.duration_seconds, 0.1)
        seconds = max(self._allowed_seconds(), min(_MAX_FIRST_SECONDS, self._timeout_seconds / 2))
        return min(MAX_GROWTH, max(2.0, seconds / duration_seconds))

    def _first_useful(self, pairs: Iterable[tuple[Suite, Suite]]) -> _Trial | None:
        own_tests = own_tests_pattern(self._feature)
        for suites in pairs:
            runs = self._run_golden([suite.tests for suite in suites])
            records = []
            failed: set[str] = set()
            for suite, run in zip(suites, runs, strict=True):
                records.append(record_golden_run(suite, run, self._reference, own_tests))
                failed |= failed_originals(suite, run)
            if are_useful(records):
                return _Trial(
                    suites,
                    [record for record in records if record],
                    max(run.duration_seconds for run in runs),
                    frozenset(failed),
                )
        return None
