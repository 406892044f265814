"""Reference runs: what the golden patch of a feature does, before any agent is judged by that feature's tests.

A verdict exists only where the golden patch passes in the same image under the same conditions. Which conditions these
are is found here: with the policy `auto`, the strictest under which it passes. References are kept in a cache that
all runs on the machine share, and travel as one JSON file.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval.counts import read_outcomes
from cooperbench.eval.test_side import judged_patch
from cooperbench.eval.testrun import Conditions, not_run
from cooperbench.eval.trees import TreeStore
from cooperbench.retry import Once, with_retries
from cooperbench.sandbox.contract import SandboxOptions, check_network
from cooperbench.settings import default_cache_dir
from cooperbench.storage import read_json, utc_now, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from cooperbench.eval.executor import TestExecutor
    from cooperbench.eval.testrun import TestRun
    from cooperbench.models import EvalNetwork, Feature, Pair, Task
    from cooperbench.sandbox.contract import Capabilities, NetworkPolicy

SCHEMA = "cooperbench.reference/2"
EXPORT_SCHEMA = "cooperbench.references/2"


@dataclass(frozen=True)
class Reference:
    """How the tests of one feature went with its golden patch, under some conditions."""

    question: str
    """SHA-256 of runner, tests and golden patch."""
    task: str
    feature_id: int
    image_digest: str
    network: NetworkPolicy | None
    installed: bool
    success: bool
    exit_code: int | None
    tests_passed: int
    tests_failed: int
    tests_skipped: int
    framework: str | None
    timed_out: bool
    duration_seconds: float
    error: str | None
    passed_tests: tuple[str, ...]
    """Their ids, where the framework gives them."""
    flaky_tests: tuple[str, ...] = ()
    """Those that did not end alike each time; they are not required."""
    base_passes: bool | None = None
    """The tests pass without the feature: it is unsound. None where that was not tried."""
    runs: int = 1
    failed_runs: int = 0
    version: str = __version__
    time: str = ""

    @property
    def conditions(self) -> Conditions:
        return Conditions(self.network, self.installed)

    def usable(self, timeout_seconds: int) -> bool:
        """Whether it tells how the golden patch would do with this time limit."""
        return not self.timed_out and self.duration_seconds <= timeout_seconds

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Reference | None:
        """None for what is no reference of this version of ours."""
        if content.get("schema") != SCHEMA:
            return None
        try:
            values: dict[str, Any] = {field.name: content[field.name] for field in fields(cls)}
        except KeyError:
            return None
        for name, value in values.items():
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


def question_of(task: Task, feature: Feature) -> str:
    """What a reference is about, whatever the image and the conditions."""
    digest = hashlib.sha256(b"cooperbench-reference/2")
    for path in (task.runner_script, feature.tests, feature.patch):
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return digest.hexdigest()


class ReferenceStore:
    """References on disk, a file each."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_cache_dir() / "references"

    def load(self, question: str, image_digest: str, conditions: Conditions) -> Reference | None:
        content = read_json(self.folder / file_name(question, image_digest, conditions))
        return Reference.from_json(content) if content else None

    def save(self, reference: Reference) -> None:
        name = file_name(reference.question, reference.image_digest, reference.conditions)
        write_json(self.folder / name, reference.to_json())

    def about(self, task: Task, feature: Feature) -> Iterator[Reference]:
        """All that is known of a feature, in whatever image and under whatever conditions."""
        for path in sorted(self.folder.glob(f"{question_of(task, feature)[:32]}-*.json")):
            content = read_json(path)
            if content and (reference := Reference.from_json(content)):
                yield reference

    def known(self, tasks: Iterable[Task]) -> list[Reference]:
        return [found for task in tasks for feature in task.features for found in self.about(task, feature)]

    def _unsound(self, task: Task, feature: Feature) -> bool:
        return any(reference.base_passes for reference in self.about(task, feature))

    def unsound_of(self, pair: Pair) -> list[int]:
        """Features of a pair whose tests are known to pass without them, as `cooperbench validate` has found."""
        return [one.feature_id for one in pair.features if self._unsound(pair.task, one)]

    def unknown(self, pairs: Iterable[Pair]) -> int:
        """How many features of these pairs have no golden patch that is known to pass, in whatever image."""
        features = {(pair.task, feature.feature_id): feature for pair in pairs for feature in pair.features}
        return sum(
            not any(reference.success for reference in self.about(task, feature))
            for (task, _), feature in features.items()
        )

    def add(self, content: Any) -> int:
        """Take in what `exported` made, also another machine's; how many there were."""
        if not isinstance(content, dict) or content.get("schema") != EXPORT_SCHEMA:
            raise UserError(f"this is no file of references (its schema is not {EXPORT_SCHEMA})")
        found = [Reference.from_json(entry) for entry in content["references"]]
        for reference in found:
            if reference is not None:
                self.save(reference)
        return sum(reference is not None for reference in found)


def sound_pairs(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Those without a feature whose tests are known to pass without it."""
    store = ReferenceStore()
    return tuple(pair for pair in pairs if not store.unsound_of(pair))


def exported(references: Iterable[Reference]) -> dict[str, Any]:
    return {"schema": EXPORT_SCHEMA, "references": [reference.to_json() for reference in references]}


def file_name(question: str, image_digest: str, conditions: Conditions) -> str:
    """With a network the runner installs what it needs, whatever was installed before: that makes no difference."""
    kept = conditions.network == "none" and conditions.installed
    policy = f"{image_digest} {conditions.network}{' installed' if kept else ''}"
    return f"{question[:32]}-{hashlib.sha256(policy.encode()).hexdigest()[:16]}.json"


def conditions_to_try(can: Capabilities, asked: EvalNetwork) -> tuple[Conditions, ...]:
    """From the strictest to what was asked for at most; UserError where the backend cannot give that."""
    if not can.options:
        if asked != "auto":
            raise UserError(
                f"this backend cannot be asked for a network of evaluation ({asked}): it takes no options;"
                " use --eval-network auto"
            )
        return (Conditions(None),)
    if asked == "none" or asked == "public":
        check_network(can, SandboxOptions(network=asked))
        return (Conditions(asked, installed=asked == "public" and can.snapshots),)
    steps = [Conditions("none"), Conditions("public", installed=can.snapshots)]
    if can.snapshots:
        steps.insert(1, Conditions("none", installed=True))
    found = tuple(one for one in steps if one.network in can.networks)
    if not found:
        check_network(can, SandboxOptions())
    return found


class References:
    """Those of one experiment: from the cache, or run now, each once."""

    def __init__(
        self,
        executor: TestExecutor,
        asked: EvalNetwork,
        store: ReferenceStore | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.asked = asked
        self.store = store or ReferenceStore()
        self._executor = executor
        self._note = note
        self._steps = conditions_to_try(executor.backend_can, asked)
        self._found: Once[tuple[Task, int], Reference] = Once()
        self._canaries: Once[tuple[Task, int, bool], set[str] | None] = Once()
        self._confirmed: Once[tuple[Task, int], Reference] = Once()
        self._lock = threading.Lock()
        self._needs_more: set[Task] = set()
        """Tasks of which a golden patch does not pass under the strictest conditions."""
        self._told: set[tuple[Task, str]] = set()

    def get(self, task: Task, feature: Feature) -> Reference:
        """The reference under the strictest conditions that the golden patch passes under; else one that failed."""
        return self._found.get((task, feature.feature_id), lambda: self._find(task, feature))

    def is_known(self, task: Task, feature: Feature) -> bool:
        """Whether `get` needs no test run."""
        for conditions in self._steps:
            found = self._load(task, feature, conditions)
            if found is None or found.success:
                return found is not None
        return False

    def begin(
        self, pairs: Iterable[Pair], pool: Executor, progress: Callable[[str, int, int], None]
    ) -> list[Future[None]]:
        """Run what these pairs need and is not known yet, telling after each how many of how many are done."""
        wanted = {(pair.task, feature.feature_id): feature for pair in pairs for feature in pair.features}
        unknown = [(task, one) for (task, _), one in wanted.items() if not self._is_known_or_lost(task, one)]
        done = count(1)

        def find(task: Task, feature: Feature) -> None:
            # Whoever needs it for a verdict is told what went wrong, and tries again.
            with suppress(CooperBenchError):
                self.get(task, feature)
            progress(f"{task.label} feature {feature.feature_id}", next(done), len(unknown))

        return [pool.submit(find, task, feature) for task, feature in unknown]

    def _is_known_or_lost(self, task: Task, feature: Feature) -> bool:
        try:
            return self.is_known(task, feature)
        except CooperBenchError:
            return True  # there is no image of the task: nothing can be run

    def measure(self, task: Task, feature: Feature, repeat: int = 1) -> Reference:
        """Run golden patch and base now, each `repeat` times, and keep what came of it. For `validate`."""
        golden = self._find(task, feature, fresh=True)
        if not golden.success:
            return golden
        _, patch, _ = self._golden(task, feature)
        conditions = golden.conditions
        runs = [self._run(task, feature, patch, conditions) for _ in range(repeat - 1)]
        base = [self._run(task, feature, None, conditions) for _ in range(repeat)]
        flaky = _differing([read_outcomes(run.output) for run in base])
        measured = replace(
            golden,
            flaky_tests=tuple(sorted({*golden.flaky_tests, *flaky, *_unsteady(golden, runs)})),
            base_passes=any(run.success for run in base),
            runs=repeat,
            failed_runs=sum(not run.success for run in runs),
        )
        self._save(measured)
        return measured

    def confirm(self, task: Task, feature: Feature) -> Reference:
        """The reference after a second run of the golden patch: ids that differ from run to run are not required."""

        def run_again() -> Reference:
            reference = self.get(task, feature)
            if reference.runs > 1:
                return reference
            _, patch, _ = self._golden(task, feature)
            run = self._run(task, feature, patch, reference.conditions)
            flaky = {*reference.flaky_tests, *_unsteady(reference, [run])}
            confirmed = replace(
                reference, flaky_tests=tuple(sorted(flaky)), runs=2, failed_runs=int(not run.success)
            )
            self._save(confirmed)
            return confirmed

        return self._confirmed.get((task, feature.feature_id), run_again)

    def canary_failures(self, task: Task, feature: Feature, *, breaks_tests: bool) -> set[str] | None:
        """Which hidden tests a canary lets fail beside the golden patch.

        None where it is not seen there: some runners choose their tests by name.
        """

        def run_canary() -> set[str] | None:
            with TreeStore(self._executor.base(task)) as store:
                canary = self._executor.canary(task, feature, store, breaks_tests=breaks_tests)
            if canary is None:
                return None
            _, patch, _ = self._golden(task, feature)
            reference = self.get(task, feature)
            run = self._run(task, feature, patch, reference.conditions, canary.tests)
            return canary.failed_tests(run) - set(reference.flaky_tests) if canary.was_seen(run) else None

        return self._canaries.get((task, feature.feature_id, breaks_tests), run_canary)

    def _find(self, task: Task, feature: Feature, *, fresh: bool = False) -> Reference:
        # What one feature of a task needs, the others will need, too.
        kept = tuple(one for one in self._steps if one.installed)
        *stricter, last = kept if kept and task in self._needs_more else self._steps
        for conditions in stricter:
            known = None if fresh else self._load(task, feature, conditions)
            found = known or self._try(task, feature, conditions, last=False)
            if found.success:
                return self._told_of(task, found)
        known = None if fresh else self._load(task, feature, last)
        return self._told_of(task, known or self._try(task, feature, last, last=True))

    def _try(self, task: Task, feature: Feature, conditions: Conditions, *, last: bool) -> Reference:
        problem, patch, tree = self._golden(task, feature)
        if problem:
            return self._reference(task, feature, conditions, not_run(problem))
        ask = self._executor.ask
        runs = [
            with_retries(
                lambda _: ask(task, feature, patch, tree, conditions, task.label), self._executor.stop
            )
        ]
        if last and not runs[0].success:
            # A golden patch that fails now and then is not to cost all pairs of its feature.
            runs.append(self._run(task, feature, patch, conditions))
        reference = self._reference(task, feature, conditions, runs[-1])
        if reference.success and len(runs) > 1:
            flaky = _differing([read_outcomes(run.output) for run in runs])
            reference = replace(reference, flaky_tests=tuple(sorted(flaky)), runs=2, failed_runs=1)
        # What failed with all that was asked for may pass tomorrow: an index was away, a machine was slow.
        if reference.success or not last:
            self._save(reference)
        return reference

    def _golden(self, task: Task, feature: Feature) -> tuple[str, bytes, str]:
        """Why it cannot be tested, or the golden patch as an agent's would be tested and the tree that it makes."""
        if not feature.tests.read_bytes().strip():
            return "tests.patch is empty", b"", ""
        with TreeStore(self._executor.base(task)) as store:
            side = self._executor.test_side(task, (feature,), store)
            work = judged_patch(feature.patch.read_bytes(), side, store)
        if work.status == "applied" and not side.hidden:
            return "tests.patch does not apply", b"", ""
        return work.error or "", work.patch, work.tree

    def _run(
        self,
        task: Task,
        feature: Feature,
        patch: bytes | None,
        conditions: Conditions,
        tests: bytes | None = None,
    ) -> TestRun:
        run = self._executor.run
        return with_retries(
            lambda _: run(task, feature, patch, conditions, task.label, tests), self._executor.stop
        )

    def _reference(self, task: Task, feature: Feature, conditions: Conditions, run: TestRun) -> Reference:
        outcomes = read_outcomes(run.output)
        return Reference(
            question_of(task, feature),
            task.label,
            feature.feature_id,
            self._executor.image(task).digest,
            conditions.network,
            conditions.installed,
            run.success,
            run.exit_code,
            run.counts.passed,
            run.counts.failed,
            run.counts.skipped,
            run.counts.framework,
            run.timed_out,
            run.duration_seconds,
            run.error,
            tuple(sorted(test for test, outcome in outcomes.items() if outcome == "passed")),
            time=utc_now(),
        )

    def _load(self, task: Task, feature: Feature, conditions: Conditions) -> Reference | None:
        digest = self._executor.image(task).digest
        found = self.store.load(question_of(task, feature), digest, conditions) if digest else None
        if found is None or not found.usable(self._executor.timeout_seconds):
            return None
        # With a network it may come from a backend that keeps what runners install, or from one that cannot.
        return replace(found, installed=conditions.installed)

    def _save(self, reference: Reference) -> None:
        """Without a digest nobody could say what it is a reference of."""
        if reference.image_digest and reference.exit_code is not None:
            self.store.save(reference)

    def tell(self, task: Task, about: str, text: str) -> None:
        """Say something once for each task."""
        with self._lock:
            known = (task, about) in self._told
            self._told.add((task, about))
        if not known:
            self._note(f"{task.label}: {text}")

    def _told_of(self, task: Task, found: Reference) -> Reference:
        """Says what `auto` came to, and what verdicts rest on, where that is not what one would expect."""
        if not found.success:
            return found
        if found.conditions != self._steps[0]:
            self._needs_more.add(task)
            kept = "in an image that keeps what its runner installs"
            how = "with a network" if found.network == "public" else kept
            self.tell(
                task,
                "conditions",
                f"the golden patch of feature {found.feature_id} does not pass in the bare image without a network;"
                f" its tests run {how}",
            )
        if not found.passed_tests:
            self.tell(task, "names", "its runner does not name the tests that pass; their number decides")
        return found


def _unsteady(reference: Reference, runs: Iterable[TestRun]) -> set[str]:
    """Tests that passed with the golden patch once, but then failed, or have another name each time."""
    found: set[str] = set()
    for run in runs:
        outcomes = read_outcomes(run.output)
        unwanted = ("failed", "skipped", None) if run.success else ("failed",)
        found |= {test for test in reference.passed_tests if outcomes.get(test) in unwanted}
    return found


def _differing(runs: Sequence[dict[str, Any]]) -> set[str]:
    """Tests that failed in some runs and not in others."""
    every = {test for run in runs for test in run}
    return {test for test in every if 0 < sum(run.get(test) == "failed" for run in runs) < len(runs)}
