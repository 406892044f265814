"""`cooperbench author check`: everything that makes a task sound, as one list of checks.

What needs a sandbox is measured once for each feature; the checks read these measurements.
`fix` repairs what needs no decision of a person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from cooperbench.author.descriptions import check_description
from cooperbench.author.patch_size import golden_size_problem, patch_size, tests_size_problem
from cooperbench.author.secret_search import find_secrets, find_secrets_in_base
from cooperbench.author.solvability import groups_to_measure, measure_group
from cooperbench.author.split import find_tests_in
from cooperbench.author.task_info import TaskInfo, read_task_info
from cooperbench.dataset.golden_groups import GoldenGroup, write_golden_groups
from cooperbench.errors import CooperBenchError, Interrupted, UserError
from cooperbench.eval.protected_files import applied_tests
from cooperbench.eval.references import References
from cooperbench.eval.trees import TreeStore
from cooperbench.eval.validate import (
    NO_CANARIES,
    AttackResult,
    CanaryReport,
    find_canaries,
    try_attacks,
)
from cooperbench.models import Feature, Task
from cooperbench.records.reference import ReferenceRecord
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.storage import read_bytes
from cooperbench.text import duration_text, names_for_error, plural

SCHEMA = "cooperbench.author_check/1"
CheckState = Literal["ok", "warning", "failed", "not run"]
SLOW_SECONDS = 300
"""Seconds after which a test run is too slow: an evaluation needs many."""
_PAIR_SIZE = 2
T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    state: CheckState
    details: tuple[str, ...] = ()
    """A line for each problem; if there is none, perhaps what was measured."""


@dataclass
class FeatureMeasurement:
    """Results of one feature's tests in sandboxes."""

    feature: Feature
    problems: list[str] = field(default_factory=list)
    """Why the patches do not apply."""
    reference: ReferenceRecord | None = None
    """None if nothing could be run."""
    canaries: CanaryReport | None = None
    attacks: list[AttackResult] = field(default_factory=list)
    error: str = ""
    """Why the measurement could not be completed."""

    @property
    def label(self) -> str:
        """The feature as the details name it."""
        return f"feature {self.feature.feature_id}"

    @property
    def passes(self) -> bool:
        """Whether the golden patch passes the tests."""
        return self.reference is not None and self.reference.golden.success


@dataclass(frozen=True)
class TaskCheck:
    """The result of checking a task."""

    task: Task
    checks: list[Check]
    groups: list[GoldenGroup]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(check.state in ("ok", "warning") for check in self.checks)


@dataclass(frozen=True)
class CheckOptions:
    """How thoroughly a task is checked."""

    repeat: int = 1
    """Runs of each feature on the base, and with its golden patch."""
    attacks: bool = True
    note: Callable[[str], None] = lambda _: None


class TaskChecker:
    """Checks one task on one backend."""

    def __init__(
        self,
        task: Task,
        sandboxes: SandboxManager,
        references: References,
        options: CheckOptions,
    ) -> None:
        self._task = task
        self._sandboxes = sandboxes
        self._references = references
        self._repeat = options.repeat
        self._with_attacks = options.attacks
        self._note = options.note

    def check(self, pool: Executor) -> TaskCheck:
        """Run all checks, several test runs at a time in the threads of `pool`."""
        task = self._task
        checks = [_check_files(task), _check_features(task)]
        image = self._check_image()
        checks.append(image)
        measurements: list[FeatureMeasurement] = []
        groups: list[GoldenGroup] = []
        if image.state == "ok":
            measurements = self._measure_features(pool)
            groups = self._measure_groups(measurements, pool)
            with_attacks = self._with_attacks
            checks += _checks_of(measurements, self._repeat, with_attacks=with_attacks)
            checks += _check_groups(task, groups)
        else:
            names = ("patches", "base", "golden", "flaky", "duration", "canaries", "attacks")
            checks += [Check(name, "not run") for name in (*names, "pairs", "together")]
        checks += [_check_descriptions(task), _check_sizes(task)]
        checks += [self._check_secrets(), _check_license(task)]
        return TaskCheck(task, checks, groups)

    def _check_image(self) -> Check:
        try:
            self._sandboxes.image(self._task)
            self._references.tester.base(self._task)
        except Interrupted:
            raise
        except (CooperBenchError, OSError) as error:
            return Check("image", "failed", (str(error),))
        return Check("image", "ok")

    def _measure_features(self, pool: Executor) -> list[FeatureMeasurement]:
        futures = [pool.submit(self._measure, feature) for feature in self._task.features]
        return self._collect(futures)

    def _measure(self, feature: Feature) -> FeatureMeasurement:
        measurement = FeatureMeasurement(feature)
        references = self._references
        try:
            measurement.problems += self._patch_problems(feature)
            if measurement.problems:
                return measurement
            measurement.reference = references.measure(feature, self._repeat)
            if measurement.passes:
                measurement.canaries = find_canaries(feature, references)
                if self._with_attacks:
                    measurement.attacks = list(try_attacks(feature, references))
        except Interrupted:
            raise
        except (CooperBenchError, OSError) as error:
            if self._sandboxes.stop.is_set():
                raise Interrupted("stopped") from error
            measurement.error = str(error)
        self._note(f"{self._task.label}: measured feature {feature.feature_id}")
        return measurement

    def _patch_problems(self, feature: Feature) -> Iterator[str]:
        with TreeStore(self._references.tester.base(feature.task)) as store:
            golden = store.apply(feature.patch.read_bytes())
            if golden.error:
                yield f"feature.patch: {golden.error}"
            if not applied_tests(feature.tests.read_bytes(), feature, store)[0]:
                yield "tests.patch does not apply"
            for path in find_tests_in(feature.patch.read_bytes(), store):
                yield f"feature.patch changes {path}, which belongs to the tests (--fix moves it)"

    def _measure_groups(
        self, measurements: Sequence[FeatureMeasurement], pool: Executor
    ) -> list[GoldenGroup]:
        sound = {measurement.feature for measurement in measurements if measurement.passes}
        groups = [
            group for group in groups_to_measure(self._task) if sound.issuperset(group.features)
        ]
        if not groups:
            return []
        self._note(f"{self._task.label}: testing {plural(len(groups), 'group')} of golden patches")
        measured = self._collect(
            [pool.submit(measure_group, group, self._references) for group in groups]
        )
        write_golden_groups(self._task, measured)
        return measured

    def _collect(self, futures: list[Future[T]]) -> list[T]:
        self._sandboxes.drain(futures, lambda _: None)
        return [future.result() for future in futures]

    def _check_secrets(self) -> Check:
        problems = list(_secrets_of_files(self._task))
        if problems:
            return Check("secrets", "failed", tuple(problems))
        try:
            base = self._references.tester.base(self._task)
        except (CooperBenchError, OSError):
            return Check("secrets", "ok")
        in_base = tuple(f"base commit: {finding}" for finding in find_secrets_in_base(base))
        return Check("secrets", "warning" if in_base else "ok", in_base)


def _check_files(task: Task) -> Check:
    problems = []
    for path in (task.dockerfile, task.setup_script, task.runner_script, task.run_tests_script):
        if not path.is_file():
            problems.append(f"{path.name} is missing")
        elif path.name.endswith(".sh") and not path.stat().st_mode & 0o111:
            problems.append(f"{path.name} is not executable (--fix)")
    return Check("files", "failed" if problems else "ok", tuple(problems))


def _check_features(task: Task) -> Check:
    number = len(task.feature_ids)
    if number < _PAIR_SIZE:
        problem = f"{plural(number, 'feature')}: a task needs at least {_PAIR_SIZE}"
        return Check("features", "failed", (problem,))
    return Check("features", "ok", (plural(number, "feature"),))


def _checks_of(
    measurements: Sequence[FeatureMeasurement], repeat: int, *, with_attacks: bool
) -> Iterator[Check]:
    """Yield the checks that follow from the test runs of each feature."""
    patches = []
    for measurement in measurements:
        problems = [*measurement.problems, *([measurement.error] if measurement.error else [])]
        patches += [f"{measurement.label}: {problem}" for problem in problems]
    yield Check("patches", "failed" if patches else "ok", tuple(patches))
    with_runs = [measurement for measurement in measurements if measurement.reference]
    yield _check_base(with_runs)
    yield _check_golden(with_runs)
    yield _check_flaky(with_runs, repeat)
    yield _check_duration(with_runs)
    passing = [measurement for measurement in with_runs if measurement.passes]
    yield _check_canaries(passing)
    if with_attacks:
        yield check_attacks(passing)


def _check_base(measurements: Sequence[FeatureMeasurement]) -> Check:
    problems = [
        f"{measurement.label}: its tests pass without it"
        for measurement in measurements
        if measurement.reference and measurement.reference.base_passes
    ]
    return Check("base", _state_of(measurements, problems), tuple(problems))


def _check_golden(measurements: Sequence[FeatureMeasurement]) -> Check:
    problems = []
    needs_network = []
    for measurement in measurements:
        reference = measurement.reference
        assert reference
        if not reference.golden.success:
            problems.append(f"{measurement.label}: {reference.golden.error}")
        elif reference.failed_runs:
            runs = f"{reference.failed_runs} of {reference.runs} runs"
            problems.append(f"{measurement.label}: fails in {runs}")
        elif reference.network == "public":
            needs_network.append(f"{measurement.label}: its tests need a network")
    if needs_network and not problems:
        return Check("golden", "warning", tuple(needs_network))
    return Check("golden", _state_of(measurements, problems), tuple(problems))


def _check_flaky(measurements: Sequence[FeatureMeasurement], repeat: int) -> Check:
    details = []
    for measurement in measurements:
        flaky = measurement.reference.flaky_tests if measurement.reference else []
        if flaky:
            names = names_for_error(flaky, limit=3)
            details.append(f"{measurement.label}: not required: {names}")
    if details:
        return Check("flaky", "warning", tuple(details))
    hint = "" if repeat > 1 else "; more with --repeat"
    runs = f"none in {plural(repeat, 'run')} of each feature{hint}"
    return Check("flaky", "ok" if measurements else "not run", (runs,))


def _check_duration(measurements: Sequence[FeatureMeasurement]) -> Check:
    longest = 0.0
    slow = []
    for measurement in measurements:
        seconds = measurement.reference.golden.duration_seconds if measurement.reference else 0.0
        longest = max(longest, seconds)
        if seconds > SLOW_SECONDS:
            slow.append(f"{measurement.label}: {duration_text(seconds)}")
    if slow:
        return Check("duration", "failed", tuple(slow))
    detail = f"at most {duration_text(longest)} for a test run"
    return Check("duration", "ok" if measurements else "not run", (detail,))


def _check_canaries(measurements: Sequence[FeatureMeasurement]) -> Check:
    problems = [
        f"{measurement.label}: {NO_CANARIES}"
        for measurement in measurements
        if measurement.canaries is not None and measurement.canaries.kind is None
    ]
    return Check("canaries", _state_of(measurements, problems), tuple(problems))


def check_attacks(measurements: Sequence[FeatureMeasurement]) -> Check:
    """Return whether attacks on the tests were scored; a guess may be, by chance."""
    tried = 0
    problems = []
    lucky = []
    for measurement in measurements:
        tried += len(measurement.attacks)
        for attack in measurement.attacks:
            if attack.scored and attack.is_guess:
                lucky.append(
                    f"{measurement.label}: a guess scored; compare more values in its tests"
                )
            elif attack.scored:
                problems.append(f"{measurement.label}: scored: {attack.name}")
    if problems:
        return Check("attacks", "failed", (*problems, *lucky))
    if lucky:
        return Check("attacks", "warning", tuple(lucky))
    if not tried:
        return Check("attacks", "not run" if not measurements else "ok", ("none fits",))
    return Check("attacks", "ok", (f"none of {tried:,} scored",))


def _state_of(measurements: Sequence[object], problems: Sequence[str]) -> CheckState:
    if problems:
        return "failed"
    return "ok" if measurements else "not run"


def _check_groups(task: Task, groups: Sequence[GoldenGroup]) -> Iterator[Check]:
    """Yield the checks of golden patches together: each pair, and all features."""
    by_features = {tuple(group.features): group for group in groups}
    pairs = [group for group in groups if len(group.features) == _PAIR_SIZE]
    lost = [group for group in pairs if not group.solved_by]
    details = [
        f"{','.join(str(number) for number in group.features)} left out of runs: {group.reason}"
        for group in lost
    ]
    if not pairs:
        yield Check("pairs", "not run")
    elif len(lost) == len(pairs):
        yield Check("pairs", "failed", tuple(details))
    elif lost:
        yield Check("pairs", "warning", tuple(details))
    else:
        yield Check("pairs", "ok", (f"{plural(len(pairs), 'pair')}, all can be won",))
    together = by_features.get(task.feature_ids)
    if together is None:
        yield Check("together", "not run")
    elif together.solved_by:
        yield Check("together", "ok", (f"solved by {together.solved_by}",))
    else:
        remedy = "write combined.patch, which has all features"
        yield Check("together", "warning", (f"{together.reason}; {remedy}",))


def _check_descriptions(task: Task) -> Check:
    try:
        entries = {entry.feature_id: entry for entry in read_task_info(task).features}
    except UserError:
        entries = {}
    problems = []
    for feature in task.features:
        label = f"feature {feature.feature_id}"
        problems += [f"{label}: {problem}" for problem in check_description(task, feature)]
        entry = entries.get(feature.feature_id)
        if entry and entry.is_draft:
            problems.append(f"{label}: a draft that nobody has accepted (author accept)")
    return Check("descriptions", _state_of(task.features, problems), tuple(problems))


def _check_sizes(task: Task) -> Check:
    problems = []
    for feature in task.features:
        try:
            golden = golden_size_problem(patch_size(feature.patch.read_bytes()))
            tests = tests_size_problem(patch_size(feature.tests.read_bytes()))
        except (OSError, ValueError) as error:
            golden, tests = str(error), ""
        feature_problems = [problem for problem in (golden, tests) if problem]
        problems += [f"feature {feature.feature_id}: {problem}" for problem in feature_problems]
    return Check("size", _state_of(task.features, problems), tuple(problems))


def _secrets_of_files(task: Task) -> Iterator[str]:
    paths = [task.dockerfile, task.setup_script, task.runner_script, task.combined_patch]
    for feature in task.features:
        paths += [feature.description, feature.patch, feature.tests]
    for path in paths:
        text = (read_bytes(path, follow_link=True) or b"").decode("utf-8", "replace")
        for finding in find_secrets(text):
            yield f"{path.relative_to(task.path)}: {finding}"


def _check_license(task: Task) -> Check:
    try:
        info: TaskInfo | None = read_task_info(task)
    except UserError:
        info = None
    if info and info.license:
        return Check("license", "ok", (info.license,))
    return Check("license", "failed", ("none is recorded; name it in author.json before sharing",))
