"""Reference runs: what the golden patch of a feature does, before any agent is judged by that feature's tests.

A verdict exists only where the golden patch passes in the same image under the same conditions. Which conditions these
are is found here: with the policy `auto`, the strictest under which it passes. References are kept in a cache that
all runs on the machine share, and travel as one JSON file.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from cooperbench.diff import new_lines
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval.canary import Canary, new_canaries
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.test_runs import Conditions, PatchTester, TestRun, conditions_to_try, not_run
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import EvalNetwork, Feature, Pair, Task
from cooperbench.retry import SingleFlight
from cooperbench.sandbox.contract import NetworkPolicy
from cooperbench.settings import default_cache_dir
from cooperbench.storage import read_json, utc_now, write_json

SCHEMA = "cooperbench.reference/7"
EXPORT_SCHEMA = "cooperbench.references/7"
_ADDED_FUNCTION = re.compile(rb"^\+.*\b(?:fn|def|func) (\w+)", re.MULTILINE)


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
    golden: TestRun
    """The first run, or the one that passed."""
    passed_tests: tuple[str, ...]
    """Their ids, where the framework gives them."""
    flaky_tests: tuple[str, ...] = ()
    """Those that did not end alike each time; they are not required."""
    base_passes: bool | None = None
    """The tests pass without the feature: it is unsound. None where that was not tried."""
    runs: int = 1
    failed_runs: int = 0
    canary: Canary | None = None
    """None where that was not tried."""
    time: str = ""

    @property
    def success(self) -> bool:
        return self.golden.success

    @property
    def conditions(self) -> Conditions:
        return Conditions(self.network, self.installed)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "golden": self.golden.to_json()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Reference | None:
        """None for what is no reference of this version of ours."""
        if content.get("schema") != SCHEMA:
            return None
        values = _with_tuples(content)
        del values["schema"]
        values["golden"] = TestRun(**_with_tuples(values["golden"]))
        if values["canary"]:
            values["canary"] = Canary(**_with_tuples(values["canary"]))
        return cls(**values)


def _with_tuples(content: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }


def question_of(feature: Feature) -> str:
    """What a reference is about, whatever the image and the conditions."""
    digest = hashlib.sha256(SCHEMA.encode())
    for path in (feature.task.runner_script, feature.tests, feature.patch):
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return digest.hexdigest()


class ReferenceStore:
    """References on disk, a file each."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_cache_dir() / "references"

    def load(self, name: str) -> Reference | None:
        content = read_json(self.folder / name)
        return Reference.from_json(content) if content else None

    def save(self, reference: Reference) -> None:
        name = file_name(reference.question, reference.image_digest, reference.conditions)
        write_json(self.folder / name, reference.to_json())

    def about(self, feature: Feature) -> Iterator[Reference]:
        """All that is known of a feature, in whatever image and under whatever conditions."""
        for path in sorted(self.folder.glob(f"{question_of(feature)[:32]}-*.json")):
            if reference := self.load(path.name):
                yield reference

    def known(self, of: Iterable[Task | Pair]) -> list[Reference]:
        return [found for one in of for feature in one.features for found in self.about(feature)]

    def unsound_of(self, pair: Pair) -> list[int]:
        """Features of a pair whose tests are known to pass without them, as `cooperbench validate` has found."""
        return [
            feature.feature_id
            for feature in pair.features
            if any(reference.base_passes for reference in self.about(feature))
        ]

    def unknown(self, pairs: Iterable[Pair]) -> int:
        """How many features of these pairs have no golden patch that is known to pass, in whatever image."""
        features = _features_of(pairs)
        return sum(
            not any(reference.success for reference in self.about(feature)) for feature in features
        )

    def add(self, content: Any) -> int:
        """Take in what `exported` made, also another machine's; how many there were."""
        if not isinstance(content, dict) or content.get("schema") != EXPORT_SCHEMA:
            raise UserError(f"this is no file of references (its schema is not {EXPORT_SCHEMA})")
        found = list(filter(None, map(Reference.from_json, content["references"])))
        for reference in found:
            self.save(reference)
        return len(found)


def exported(references: Iterable[Reference]) -> dict[str, Any]:
    return {
        "schema": EXPORT_SCHEMA,
        "references": [reference.to_json() for reference in references],
    }


def sound_pairs(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Those without a feature whose tests are known to pass without it."""
    store = ReferenceStore()
    return tuple(pair for pair in pairs if not store.unsound_of(pair))


def file_name(question: str, image_digest: str, conditions: Conditions) -> str:
    """With a network the runner installs what it needs, whatever was installed before: that makes no difference."""
    kept = conditions.network == "none" and conditions.installed
    policy = f"{image_digest} {conditions.network}{' installed' if kept else ''}"
    return f"{question[:32]}-{hashlib.sha256(policy.encode()).hexdigest()[:16]}.json"


def _features_of(pairs: Iterable[Pair]) -> list[Feature]:
    """Each once."""
    return list(dict.fromkeys(feature for pair in pairs for feature in pair.features))


class References:
    """Those of one experiment: from the cache, or run now, each once."""

    def __init__(
        self,
        tester: PatchTester,
        asked: EvalNetwork,
        store: ReferenceStore | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.tester = tester
        self.asked = asked
        self.store = store or ReferenceStore()
        self._note = note
        self._steps = conditions_to_try(tester.backend_can, asked)
        self._done: SingleFlight[tuple[Feature, str], None] = SingleFlight()
        self._known: dict[Feature, Reference] = {}
        self._steady: SingleFlight[Feature, Canary] = SingleFlight()
        self._lock = threading.Lock()
        self._needs_more: set[Task] = set()
        """Tasks of which a golden patch does not pass under the strictest conditions."""
        self._told: set[tuple[Task, str]] = set()

    def get(self, feature: Feature) -> Reference:
        """The reference under the strictest conditions that the golden patch passes under; else one that failed."""
        self._done.get(
            (feature, "golden"), lambda: self._known.update({feature: self._find(feature)})
        )
        return self._known[feature]

    def _amend(self, feature: Feature, **changes: Any) -> None:
        """What was found since, in the cache too."""
        with self._lock:
            self._known[feature] = replace(self._known[feature], **changes)
            self._save(self._known[feature])

    def begin(
        self, pairs: Iterable[Pair], pool: Executor, progress: Callable[[str, int, int], None]
    ) -> list[Future[None]]:
        """Run what these pairs need and is not known yet, telling after each how many of how many are done."""
        unknown = [feature for feature in _features_of(pairs) if self._has_to_be_run(feature)]
        done = count(1)

        def find(feature: Feature) -> None:
            # Whoever needs it for a verdict is told what went wrong, and tries again.
            with suppress(CooperBenchError):
                self.get(feature)
            progress(f"{feature.task.label} feature {feature.feature_id}", next(done), len(unknown))

        return [pool.submit(find, feature) for feature in unknown]

    def _has_to_be_run(self, feature: Feature) -> bool:
        with suppress(CooperBenchError):  # there is no image of the task: nothing can be run
            for conditions in self._steps:
                found = self._load(feature, conditions)
                if found is None or found.success:
                    return found is None
            return True
        return False

    def test(self, feature: Feature, patch: bytes, tree: str) -> TestRun:
        """A feature's tests with a patch, held against its reference. `tree` identifies what the patch makes."""
        reference = self.get(feature)
        run = self.tester.ask(feature, patch, tree, reference.conditions)
        held = run.compare_with_reference(reference)
        if run.success and reference.success and not held.success:
            # Before that counts: some frameworks name their tests differently each time.
            held = run.compare_with_reference(self._confirmed(feature))
        return held

    def _confirmed(self, feature: Feature) -> Reference:
        """The reference after a second run of the golden patch: ids that differ from run to run are not required."""

        def run_again() -> None:
            reference = self.get(feature)
            if reference.runs == 1:
                run = self._run(feature, reference.conditions)
                self._amend(feature, **_repeated(reference, [run]))

        self._done.get((feature, "again"), run_again)
        return self._known[feature]

    def confirm(self, feature: Feature, patch: bytes) -> str:
        """The tests once more with some that must fail: `confirmed`, `suspicious`, or why it cannot be told."""
        self._done.get((feature, "canary"), lambda: self._find_canary(feature))
        reference = self._known[feature]
        canary = reference.canary
        if canary is None or not canary.tests:
            return "none that can be put into these tests fails with the golden patch"

        tests, flaky = canary.tests.encode("latin-1"), reference.flaky_tests
        run = self.tester.run(feature, patch, reference.conditions, tests)
        if canary.agrees(run, flaky):
            return "confirmed"
        steady = self._steady.get(feature, lambda: self._steady_canary(feature))
        # There is no second chance for whoever lets tests pass that must fail.
        failed = run.success or any(run.outcomes.get(test) == "passed" for test in steady.failed)
        if not failed and not steady.agrees(run, flaky):
            run = self.tester.run(feature, patch, reference.conditions, tests)
        return "confirmed" if not failed and steady.agrees(run, flaky) else "suspicious"

    def _find_canary(self, feature: Feature) -> None:
        """One that was tried with the golden patch."""
        if self.get(feature).canary is None:
            with TreeStore(self.tester.base(feature.task)) as store:
                tried = (self._try_canary(feature, one) for one in new_canaries(feature, store))
                self._amend(feature, canary=next(filter(None, tried), Canary()))

    def _steady_canary(self, feature: Feature) -> Canary:
        """Tried once more: what does not end alike each time is not required."""
        canary = self._known[feature].canary or Canary()
        return canary.common_with(self._try_canary(feature, canary) or canary)

    def _try_canary(self, feature: Feature, canary: Canary) -> Canary | None:
        reference = self._known[feature]
        run = self._run(feature, reference.conditions, canary.tests.encode("latin-1"))
        return canary.tried(run, reference)

    def measure(self, feature: Feature, repeat: int = 1) -> Reference:
        """Run golden patch and base now, each `repeat` times, and keep what came of it. For `validate`."""
        self._done.get((feature, "golden"), lambda: self._measure(feature, repeat))
        return self._known[feature]

    def _measure(self, feature: Feature, repeat: int) -> None:
        reference = self._known[feature] = self._find(feature, fresh=True)
        if reference.success:
            runs = [self._run(feature, reference.conditions) for _ in range(repeat - 1)]
            base = [self.tester.run(feature, None, reference.conditions) for _ in range(repeat)]
            repeated = _repeated(reference, runs)
            repeated["flaky_tests"] = tuple(sorted({*repeated["flaky_tests"], *_differing(base)}))
            self._amend(feature, **repeated, base_passes=any(run.success for run in base))

    def _find(self, feature: Feature, *, fresh: bool = False) -> Reference:
        # What one feature of a task needs, the others will need, too.
        kept = tuple(one for one in self._steps if one.installed)
        steps = kept if kept and feature.task in self._needs_more else self._steps
        for conditions in steps:
            known = None if fresh else self._load(feature, conditions)
            found = known or self._try(feature, conditions, last=conditions == steps[-1])
            if found.success:
                self._tell_of(feature.task, found)
                break
        return found

    def _try(self, feature: Feature, conditions: Conditions, *, last: bool) -> Reference:
        golden = self._golden(feature)
        if golden.error:
            return self._reference(feature, conditions, not_run(golden.error))
        runs = [self.tester.ask(feature, golden.patch, golden.tree, conditions)]
        if last and not runs[0].success:
            # A golden patch that fails now and then is not to cost all pairs of its feature.
            runs.append(self._run(feature, conditions))
        reference = self._reference(feature, conditions, runs[-1])
        if reference.success and len(runs) > 1:
            reference = replace(reference, **_repeated(reference, runs[:1]))
        # What failed with all that was asked for may pass tomorrow: an index was away, a machine was slow.
        if reference.success or not last:
            self._save(reference)
        return reference

    def _golden(self, feature: Feature) -> Applied:
        """The golden patch as an agent's would be tested; its `error` says why it cannot be."""
        if not feature.tests.read_bytes().strip():
            return Applied("failed", error="tests.patch is empty")
        with TreeStore(self.tester.base(feature.task)) as store:
            side = self.tester.protected_files((feature,), store)
            work = drop_protected_files(feature.patch.read_bytes(), side, store)
        return (
            work
            if side.hidden or work.error
            else Applied("failed", error="tests.patch does not apply")
        )

    def _run(self, feature: Feature, conditions: Conditions, tests: bytes | None = None) -> TestRun:
        """With the golden patch."""
        return self.tester.run(feature, self._golden(feature).patch, conditions, tests)

    def _reference(self, feature: Feature, conditions: Conditions, run: TestRun) -> Reference:
        passed = {test for test, outcome in run.outcomes.items() if outcome == "passed"}
        own = set(filter(_own_tests(feature).search, passed))
        return Reference(
            question_of(feature),
            feature.task.label,
            feature.feature_id,
            self.tester.image(feature.task).digest,
            *conditions,
            golden=replace(run, output="", tests_passed=run.tests_passed - len(own)),
            passed_tests=tuple(sorted(passed - own)),
            time=utc_now(),
        )

    def _load(self, feature: Feature, conditions: Conditions) -> Reference | None:
        """Only what tells how the golden patch would do with our time limit."""
        digest = self.tester.image(feature.task).digest
        found = (
            self.store.load(file_name(question_of(feature), digest, conditions)) if digest else None
        )
        limit = self.tester.timeout_seconds
        if found is None or found.golden.timed_out or found.golden.duration_seconds > limit:
            return None
        # With a network it may come from a backend that keeps what runners install, or from one that cannot.
        return replace(found, installed=conditions.installed)

    def _save(self, reference: Reference) -> None:
        """Without a digest nobody could say what it is a reference of."""
        if reference.image_digest and reference.golden.exit_code is not None:
            self.store.save(reference)

    def tell(self, task: Task, about: str, text: str) -> None:
        """Say something once for each task."""
        with self._lock:
            known = (task, about) in self._told
            self._told.add((task, about))
        if not known:
            self._note(f"{task.label}: {text}")

    def _tell_of(self, task: Task, found: Reference) -> None:
        """What `auto` came to, and what verdicts rest on, where that is not what one would expect."""
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
            self.tell(
                task, "names", "its runner does not name the tests that pass; their number decides"
            )


def _own_tests(feature: Feature) -> re.Pattern[str]:
    """Finds ids of tests in the golden patch's code or in documentation, which other code need not have."""
    golden, hidden = feature.patch.read_bytes(), feature.tests.read_bytes()
    paths = {line.path for line in new_lines(golden)} - {line.path for line in new_lines(hidden)}
    names = {*_ADDED_FUNCTION.findall(golden)} - {*_ADDED_FUNCTION.findall(hidden)}
    patterns = [rf"(?:^|\[){re.escape(path)}(?!\w)" for path in sorted(paths)]
    patterns += [rf"(?:::|\.){name.decode()}(?=[/\[]|$)" for name in sorted(names)]
    return re.compile("|".join([r"\.rs - ", *patterns]))


def _repeated(reference: Reference, runs: Sequence[TestRun]) -> dict[str, Any]:
    """What more runs of the golden patch change."""
    flaky = set(reference.flaky_tests)
    for run in runs:
        unwanted = ("failed", "skipped", None) if run.success else ("failed",)
        flaky |= {test for test in reference.passed_tests if run.outcomes.get(test) in unwanted}
    return {
        "flaky_tests": tuple(sorted(flaky)),
        "runs": reference.runs + len(runs),
        "failed_runs": reference.failed_runs + sum(not run.success for run in runs),
    }


def _differing(runs: Sequence[TestRun]) -> set[str]:
    """Tests that failed in some runs and not in others."""
    failures = Counter(
        test for run in runs for test, outcome in run.outcomes.items() if outcome == "failed"
    )
    return {test for test, number in failures.items() if number < len(runs)}
