"""The search for the strictest conditions under which a golden patch passes.

What was found is kept in the cache, with the conditions that were ruled out, so that the next
process does not search again. Failures that a network outage can cause are never kept.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from cooperbench.eval.conditions import Conditions, conditions_to_try
from cooperbench.eval.dependency_layer import DependencyLayerError, compiles_outside_repository
from cooperbench.eval.golden_runs import GoldenRuns, always_failed, may_be_flaky
from cooperbench.eval.package_index import Outage, find_outage
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.eval.test_runs import TestRun, not_run
from cooperbench.eval.trees import Applied
from cooperbench.models import EvalNetwork, Feature, Task
from cooperbench.records.reference import ReferenceRecord

_BARE = Conditions("none")
_LAYER = Conditions("none", installed=True)
OUTAGE_SECONDS = 60.0
"""Seconds after an outage in which other features of the task do not try again."""


@dataclass
class _Search:
    """State of the search for one feature."""

    feature: Feature
    golden: Applied
    ruled_out: list[str] = field(default_factory=list)
    """Labels of conditions under which the golden patch fails, whatever the network does."""
    failed_tests: tuple[frozenset[str], int] | None = None
    """Tests that always failed under stricter conditions, and their number; None if none ran."""
    outage: Outage | None = None


class ReferenceSearch:
    """Finds references, each with the runs that it needs."""

    def __init__(
        self,
        tester: PatchTester,
        policy: EvalNetwork,
        store: ReferenceStore,
        note_once: Callable[[Task, str, str], None],
    ) -> None:
        self._tester = tester
        self._golden = GoldenRuns(tester)
        self._store = store
        self._note_once = note_once
        capabilities = tester.capabilities
        self._conditions = conditions_to_try(capabilities, policy)
        self._conditions_without_layer = conditions_to_try(
            dataclasses.replace(capabilities, snapshots=False), policy
        )
        self._bare_fails: set[Task] = set()
        """Tasks with a golden patch that does not pass in the bare image without a network."""
        self._outages: dict[Task, tuple[float, Outage]] = {}
        self._layer_errors: dict[Task, DependencyLayerError] = {}

    def load(self, feature: Feature) -> ReferenceRecord | None:
        """Return the reference in the cache; None if a search is necessary.

        Every stricter condition must have been ruled out.
        """
        ruled_out: set[str] = set()
        for conditions in self._steps(feature.task):
            reference = self._load(feature, conditions)
            if reference is None:
                continue
            if not reference.golden.success:
                ruled_out.add(conditions.label)
            elif self._is_strictest(feature.task, conditions, ruled_out | set(reference.ruled_out)):
                return reference
        return None

    def find(self, feature: Feature, *, use_cache: bool = True) -> ReferenceRecord:
        """Return the reference under the strictest conditions under which the golden patch passes.

        If it passes under none of them, return one that failed.
        """
        reference = self.load(feature) if use_cache else None
        if reference is None:
            reference = self._search(feature, use_cache=use_cache)
        if reference.golden.success and not reference.passed_tests:
            text = "its runner does not name the tests that pass; their number decides"
            self._note_once(feature.task, "names", text)
        return reference

    def save(self, reference: ReferenceRecord) -> ReferenceRecord:
        """Write a reference to the cache, unless its image is unknown or nothing was run.

        Return it with the flaky tests that were known before.
        """
        if reference.image_digest and reference.golden.exit_code is not None:
            return self._store.save(reference)
        return reference

    def _steps(self, task: Task) -> tuple[Conditions, ...]:
        """Return the conditions to try for a task.

        With Go, tests start with the dependency layer: it saves compiling in each run.
        """
        steps = self._conditions
        if not self._tester.image(task).takes_snapshots:
            steps = self._conditions_without_layer
        if _LAYER in steps and compiles_outside_repository(task):
            return (_LAYER, *(step for step in steps if step != _LAYER))
        return steps

    def _is_strictest(self, task: Task, conditions: Conditions, ruled_out: set[str]) -> bool:
        steps = self._steps(task)
        stricter = steps[: steps.index(conditions)]
        return all(step.label in ruled_out for step in stricter)

    def _search(self, feature: Feature, *, use_cache: bool) -> ReferenceRecord:
        """Try the conditions until the golden patch passes."""
        search = _Search(feature, self._golden.apply(feature))
        if search.golden.error:
            reason = not_run(search.golden.error)
            return self._golden.make_reference(feature, self._steps(feature.task)[-1], [reason])
        reference: ReferenceRecord | None = None
        steps = self._steps(feature.task)
        for conditions in steps:
            is_last = conditions == steps[-1]
            if conditions == _BARE and not is_last and self._needs_more_than_bare(feature.task):
                # Other features of the task need a dependency layer or a network too.
                search.ruled_out.append(_BARE.label)
                continue
            if search.outage and conditions.network != "none":
                break
            tried = self._load(feature, conditions) if use_cache else None
            if tried is None or (is_last and not tried.golden.success):
                tried = self._try(search, conditions)
            if tried is None:
                continue
            reference = tried
            if reference.golden.success:
                return self._finish(search, reference)
            search.ruled_out.append(conditions.label)
        if search.outage:
            failure = not_run(f"{search.outage}; evaluate again when the network is back")
            return self._golden.make_reference(feature, steps[-1], [failure])
        assert reference is not None, "the last conditions need no dependency layer"
        return reference

    def _try(self, search: _Search, conditions: Conditions) -> ReferenceRecord | None:
        """Run the golden patch under some conditions; None if the image for them is missing."""
        task = search.feature.task
        needs_network = conditions.installed or conditions.network != "none"
        search.outage = search.outage or self._recent_outage(task)
        if needs_network and search.outage:
            return None
        layer_error = self._layer_errors.get(task)
        if conditions.installed and layer_error:
            if conditions.network == "none":
                return None
            conditions = conditions._replace(installed=False)
        try:
            return self._record(search, conditions)
        except DependencyLayerError as error:
            if error.outage:
                self._remember_outage(search, error.outage)
                return None
            self._layer_errors[task] = error
            # A runner that does not get as far as the tests on the base commit.
            return self._try(search, conditions) if conditions.network != "none" else None

    def _record(self, search: _Search, conditions: Conditions) -> ReferenceRecord | None:
        """Run the golden patch; save the reference unless an outage can be the cause of it."""
        feature, golden = search.feature, search.golden
        runs = self._run(search, conditions)
        reference = self._golden.make_reference(feature, conditions, runs)
        if reference.golden.success:
            return reference
        search.failed_tests = _failed_tests(runs)
        if conditions.network == "none":
            if conditions != self._steps(feature.task)[-1]:
                self.save(reference)
            return reference
        self._tester.forget(feature, golden.tree, conditions)
        outage = find_outage(runs[-1].output)
        if outage:
            self._remember_outage(search, outage)
            return None
        return reference

    def _run(self, search: _Search, conditions: Conditions) -> list[TestRun]:
        feature, golden = search.feature, search.golden
        if search.failed_tests:
            # Tests that always failed under stricter conditions need not be repeated.
            first = self._tester.run_once(feature, golden.patch, golden.tree, conditions)
            if first.success or _failed_tests([first]) == search.failed_tests:
                return [first]
        runs = self._golden.run_until_stable(feature, golden, conditions)
        is_install_failure = not runs[0].success and not may_be_flaky(runs[0])
        if conditions.network != "none" and is_install_failure and not find_outage(runs[0].output):
            # A golden patch that fails sometimes must not cost all pairs of its feature.
            runs.append(self._tester.run(feature, golden.patch, conditions))
        return runs

    def _finish(self, search: _Search, reference: ReferenceRecord) -> ReferenceRecord:
        """Save a reference that passed, with the conditions that were ruled out."""
        task = search.feature.task
        if reference.network == "public" and task in self._layer_errors:
            if _LAYER in self._steps(task):
                # The network works now. Was it down when the layer was made?
                del self._layer_errors[task]
                layered = self._try(search, _LAYER)
                if layered and layered.golden.success:
                    return self._finish(search, layered)
            if not search.outage:
                search.ruled_out.append(_LAYER.label)
        reference = replace(reference, ruled_out=list(search.ruled_out))
        is_new_for_task = not self._needs_more_than_bare(task)
        reference = self.save(reference)
        if _BARE.label in search.ruled_out:
            self._bare_fails.add(task)
            if is_new_for_task:
                self._note_conditions(task, reference)
        return reference

    def _note_conditions(self, task: Task, reference: ReferenceRecord) -> None:
        """Tell the user which conditions `auto` chose."""
        conditions = "with a network"
        if reference.network == "none":
            conditions = "in an image that keeps what its runner installs"
        self._note_once(
            task,
            "conditions",
            f"the golden patch of feature {reference.feature_id} does not pass in the bare"
            f" image without a network; its tests run {conditions}",
        )

    def _needs_more_than_bare(self, task: Task) -> bool:
        """Whether bare images were ruled out for another feature, also by an earlier process."""
        if task in self._bare_fails:
            return True
        digest = self._tester.image(task).digest
        for reference in self._store.known([task]):
            is_same_image = bool(digest) and reference.image_digest == digest
            if is_same_image and reference.golden.success and _BARE.label in reference.ruled_out:
                self._bare_fails.add(task)
                return True
        return False

    def _remember_outage(self, search: _Search, outage: Outage) -> None:
        search.outage = outage
        self._outages[search.feature.task] = (time.monotonic(), outage)

    def _recent_outage(self, task: Task) -> Outage | None:
        since, outage = self._outages.get(task, (0.0, None))
        if time.monotonic() - since > OUTAGE_SECONDS:
            return None
        return outage

    def _load(self, feature: Feature, conditions: Conditions) -> ReferenceRecord | None:
        """Return the cached reference if it is valid with the time limit of this experiment."""
        digest = self._tester.image(feature.task).digest
        if not digest:
            return None
        reference = self._store.load(feature, digest, conditions)
        if reference is None or reference.golden.timed_out:
            return None
        if reference.golden.duration_seconds > self._tester.timeout_seconds:
            return None
        # With a network, backends with and without dependency layers share references.
        is_layer_impossible = not reference.installed and _LAYER.label in reference.ruled_out
        installed = conditions.installed and not is_layer_impossible
        return replace(reference, installed=installed)


def _failed_tests(runs: Sequence[TestRun]) -> tuple[frozenset[str], int] | None:
    """Return the tests that failed in all runs, and how many; None if none ran."""
    if not may_be_flaky(runs[-1]):
        return None
    return frozenset(always_failed(runs)), runs[-1].tests_failed
