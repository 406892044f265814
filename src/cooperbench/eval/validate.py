"""Validation of a dataset.

It is sound if the base fails each feature's tests, the golden patch passes them, and combined.patch
passes all. Golden patches are evaluated by the same rules as patches of agents. Attacks are patches
that implement nothing and try to pass: one that succeeds shows a weakness of the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import NamedTuple

from cooperbench.errors import CooperBenchError, Interrupted
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.references import References
from cooperbench.eval.trees import Applied, Change, TreeStore
from cooperbench.models import Feature, Task
from cooperbench.records.files import JsonObject
from cooperbench.records.reference import ReferenceRecord
from cooperbench.sandbox.manager import SandboxManager

SCHEMA = "cooperbench.validation/1"
NO_CANARIES = "its successes cannot be confirmed: no version of its tests must fail"
_ATTACKED_SUFFIXES = {
    "python": (".py",),
    "javascript": (".js", ".mjs", ".cjs", ".ts", ".tsx", ".jsx"),
    "go": (".go",),
    "rust": (".rs",),
}
"""Files of each language to which attacks can be added."""


@dataclass(frozen=True)
class CanaryReport:
    """Whether successes of a feature can be confirmed."""

    feature_id: int
    kind: str | None
    """How tests that must fail are made; None if there are none."""
    tests: int
    """Number of hidden tests."""
    tests_with_decoys: int
    """Number of hidden tests of which there is a version that must fail."""


class AttackResult(NamedTuple):
    """An attack on the tests of a feature."""

    name: str
    scored: bool
    """Whether it would count as a success, which shows a weakness of the tests."""

    @property
    def is_guess(self) -> bool:
        """Whether it also scores by chance, more often the fewer values the tests compare."""
        return "and guess which of their copies" in self.name


@dataclass
class TaskReport:
    """Result of validating one task; it is sound if there are no problems."""

    repo: str
    task_id: int
    checks: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    canaries: list[CanaryReport] = field(default_factory=list)
    """Of each feature, if that was asked for."""

    def to_json(self) -> JsonObject:
        """Return the report as `validate --json` prints it."""
        return {"ok": not self.problems, **asdict(self)}


def validate_features(  # noqa: PLR0913  # options are keyword-only
    features: Mapping[Task, Sequence[Feature]],
    sandboxes: SandboxManager,
    references: References,
    *,
    concurrency: int,
    repeat: int,
    attacks: bool = False,
    canaries: bool = False,
    progress: Callable[[TaskReport], None],
) -> list[TaskReport]:
    """Validate tasks in parallel and return their reports in order.

    Each test run has its own sandbox, as in an evaluation.
    """
    pool = sandboxes.pool(concurrency, "validate")

    def validate(task: Task) -> TaskReport:
        report = TaskReport(task.repo, task.task_id, problems=list(_missing_files(task)))
        try:
            _validate_task(report, task, features[task], references, repeat)
            if canaries:
                for feature in features[task]:
                    _check_canaries(report, feature, references)
            if attacks:
                for feature in features[task]:
                    _attack_feature(report, feature, references)
        except Interrupted:
            raise
        except (CooperBenchError, OSError) as error:
            if sandboxes.stop.is_set():
                raise Interrupted("stopped") from error
            report.problems.append(str(error))
        progress(report)
        return report

    futures = [pool.submit(validate, task) for task in features]
    sandboxes.drain(futures, lambda _: None)
    return [future.result() for future in futures]


def _missing_files(task: Task) -> Iterable[str]:
    """Yield a problem for each file of a task's folder that is missing or empty."""
    scripts = (task.setup_script, task.runner_script, task.run_tests_script)
    for path in (task.dockerfile, *scripts, task.combined_patch):
        if not path.is_file():
            yield f"{path.name} is missing"
    for feature in task.features:
        if not feature.description.read_text(errors="replace").strip():
            yield f"feature{feature.feature_id}/feature.md is empty"


def _validate_task(
    report: TaskReport,
    task: Task,
    features: Sequence[Feature],
    references: References,
    repeat: int,
) -> None:
    for feature in features:
        _check_feature(report, feature, references, repeat)
    if task.combined_patch.is_file():
        _check_combined_patch(report, task, features, references)


def _check_feature(
    report: TaskReport, feature: Feature, references: References, repeat: int
) -> None:
    """Check that the golden patch passes the feature's tests, and the base does not."""
    label = f"feature {feature.feature_id}"
    patch = feature.patch.read_bytes()
    golden = _apply_patch(report, patch, f"{label}: the golden patch", (feature,), references)
    reference = references.measure(feature, repeat)
    if reference.base_passes is None:
        report.checks += 1
    else:
        report.checks += 2 * reference.runs
    report.problems += _problems_of(reference, label, golden.error)
    if reference.flaky_tests:
        report.notes.append(f"{label}: flaky, not required: {', '.join(reference.flaky_tests)}")
    if reference.network == "public" and references.policy == "auto":
        report.notes.append(f"{label}: its tests need a network")


def _problems_of(reference: ReferenceRecord, label: str, apply_error: str) -> Iterator[str]:
    if not reference.golden.success:
        error = reference.golden.error or apply_error
        yield f"{label}: the golden patch fails: {error}"
    elif reference.failed_runs:
        runs = f"{reference.failed_runs} of {reference.runs} runs"
        yield f"{label}: the golden patch fails in {runs}"
    if reference.base_passes:
        yield f"{label}: its tests pass without it"


def _check_combined_patch(
    report: TaskReport, task: Task, features: Sequence[Feature], references: References
) -> None:
    """Check that combined.patch passes the tests of all features."""
    name = "combined.patch"
    patch = task.combined_patch.read_bytes()
    combined = _apply_patch(report, patch, name, task.features, references)
    if not combined.patch:
        report.problems.append(f"{name}: {combined.error}")
        return
    for feature in features:
        report.checks += 1
        run = references.test(feature, combined.patch, combined.tree)
        if not run.success:
            report.problems.append(f"feature {feature.feature_id}: {name} fails: {run.error}")


def _apply_patch(
    report: TaskReport,
    patch: bytes,
    name: str,
    features: Sequence[Feature],
    references: References,
) -> Applied:
    """Apply a patch without protected files, and note which files were dropped."""
    tester = references.tester
    with TreeStore(tester.base(features[0].task)) as store:
        applied = drop_protected_files(patch, tester.protected_files(features, store), store)
    for file in applied.dropped:
        report.notes.append(f"{name} touches {file.path} ({file.reason}), which is taken out")
    return applied


def _check_canaries(report: TaskReport, feature: Feature, references: References) -> None:
    """Check that there are tests that must fail, with which successes can be confirmed."""
    if not references.get(feature).golden.success:
        return
    canary = find_canaries(feature, references)
    report.canaries.append(canary)
    if canary.kind is None:
        report.problems.append(f"feature {feature.feature_id}: {NO_CANARIES}")


def find_canaries(feature: Feature, references: References) -> CanaryReport:
    """Return whether successes of a feature, whose golden patch passes, can be confirmed."""
    suites = references.suites(feature)
    if not suites:
        return CanaryReport(feature.feature_id, None, 0, 0)
    with_decoys = min(suite.tests_with_decoys for suite in suites)
    return CanaryReport(feature.feature_id, suites[0].kind, suites[0].tests_total, with_decoys)


def _attack_feature(report: TaskReport, feature: Feature, references: References) -> None:
    """Check that no attack passes the feature's tests."""
    if not references.get(feature).golden.success:
        return
    for attack in try_attacks(feature, references):
        report.checks += 1
        if attack.scored:
            report.problems.append(f"feature {feature.feature_id}: scored: {attack.name}")


def try_attacks(feature: Feature, references: References) -> Iterator[AttackResult]:
    """Try each attack on the tests of a feature whose golden patch passes."""
    tester = references.tester
    with TreeStore(tester.base(feature.task)) as store:
        protected = tester.protected_files((feature,), store)
        for name, patch in _attacks(feature, store):
            applied = drop_protected_files(patch, protected, store)
            scored = False
            if references.test(feature, applied.patch, applied.tree).success:
                confirmation = references.confirm(feature, applied.patch, applied.tree)
                scored = confirmation.outcome != "suspicious"
            yield AttackResult(name, scored)


def _attacks(feature: Feature, store: TreeStore) -> Iterator[tuple[str, bytes]]:
    """Yield name and patch of each attack that fits a file of the golden patch.

    Hidden tests are likely to load that file.
    """
    golden = store.apply(feature.patch.read_bytes()).tree
    if not golden:
        return
    changes = store.changes(golden)
    for language, suffixes in _ATTACKED_SUFFIXES.items():
        path = _first_changed_file(changes, suffixes)
        if path is None:
            continue
        code_before = store.content(changes[path].before) or b""
        if language == "go":
            # A new file in the same package.
            code_after = store.content(changes[path].after) or b""
            package = re.search(rb"^package \w+", code_after, re.MULTILINE)
            code_before = package[0] if package else b"package x"
            path = path.removesuffix(".go") + "_entry.go"
        for name, files in _attack_files(language, path, code_before):
            tree = store.edit(store.base.tree, files)
            yield f"{name} ({path})", store.patch_of(tree)


def _first_changed_file(changes: Mapping[str, Change], suffixes: tuple[str, ...]) -> str | None:
    for path, change in changes.items():
        if change.after and path.endswith(suffixes):
            return path
    return None


def _attack_files(
    language: str, path: str, code_before: bytes
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the name of each attack in `attack_code`, and the files that it changes.

    `##### name` begins the code to add to the file at `path`, and `#### path` another file.
    """
    folder = resources.files("cooperbench.eval").joinpath("attack_code")
    code = folder.joinpath(f"{language}.txt").read_bytes()
    for part in code.split(b"##### ")[1:]:
        name, _, attack = part.partition(b"\n")
        added, *others = attack.split(b"\n#### ")
        files = {path: code_before + b"\n" + added}
        for other in others:
            other_path, _, content = other.partition(b"\n")
            files[other_path.decode()] = content + b"\n"
        yield name.decode(), files
