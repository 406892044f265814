"""Is a dataset sound? The base fails each feature's tests, the golden patch passes them, combined.patch passes all.

Golden patches are judged by the same rules as an agent's. Attacks are patches that implement nothing and try to pass
all the same: one that is scored shows what a dataset's tests let through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from cooperbench.errors import CooperBenchError, Interrupted
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.reference import References
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import Feature, Task
from cooperbench.sandbox.manager import SandboxManager

SCHEMA = "cooperbench.validation/1"
_ATTACKED = {
    "python": (".py",),
    "javascript": (".js", ".mjs", ".cjs", ".ts", ".tsx", ".jsx"),
    "go": (".go",),
    "rust": (".rs",),
}
"""Files of each language that attacks can be put into."""


@dataclass
class TaskReport:
    """What was found of one task; sound if there are no problems."""

    repo: str
    task_id: int
    checks: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"ok": not self.problems, **vars(self)}


def validate_features(
    features: Mapping[Task, Sequence[Feature]],
    sandboxes: SandboxManager,
    references: References,
    *,
    concurrency: int,
    repeat: int,
    attacks: bool = False,
    progress: Callable[[TaskReport], None],
) -> list[TaskReport]:
    """All tasks, side by side; reports in their order. A sandbox for each test run, as in an evaluation."""
    pool = sandboxes.pool(concurrency, "validate")

    def validate(task: Task) -> TaskReport:
        report = TaskReport(task.repo, task.task_id, problems=list(_missing_files(task)))
        try:
            for feature in features[task]:
                _check(report, feature, references, repeat)
            if task.combined_patch.is_file():
                _combined(report, task, features[task], references)
            for feature in features[task] if attacks else ():
                _attack(report, feature, references)
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
    """What the contract asks of a task's folder and is not there."""
    scripts = (task.setup_script, task.runner_script, task.run_tests_script)
    for path in (task.dockerfile, *scripts, task.combined_patch):
        if not path.is_file():
            yield f"{path.name} is missing"
    for feature in task.features:
        if not feature.description.read_text(errors="replace").strip():
            yield f"feature{feature.feature_id}/feature.md is empty"


def _check(report: TaskReport, feature: Feature, references: References, repeat: int) -> None:
    """The golden patch passes the feature's tests, and the base does not."""
    where = f"feature {feature.feature_id}"
    patch = feature.patch.read_bytes()
    work = _examine(report, patch, (feature,), references, f"{where}: the golden patch")
    reference = references.measure(feature, repeat)
    report.checks += 2 * reference.runs if reference.base_passes is not None else 1
    if not reference.success:
        report.problems.append(
            f"{where}: the golden patch fails: {reference.golden.error or work.error}"
        )
    if reference.failed_runs:
        report.problems.append(
            f"{where}: the golden patch fails in {reference.failed_runs} of {reference.runs} runs"
        )
    if reference.base_passes:
        report.problems.append(f"{where}: its tests pass without it")
    if reference.flaky_tests:
        report.notes.append(f"{where}: flaky, not required: {', '.join(reference.flaky_tests)}")
    if reference.network == "public" and references.asked == "auto":
        report.notes.append(f"{where}: its tests need a network")


def _combined(
    report: TaskReport, task: Task, features: Sequence[Feature], references: References
) -> None:
    name = "combined.patch"
    work = _examine(report, task.combined_patch.read_bytes(), task.features, references, name)
    if not work.patch:
        report.problems.append(f"{name}: {work.error}")
        return
    for feature in features:
        report.checks += 1
        run = references.test(feature, work.patch, work.tree)
        if not run.success:
            report.problems.append(f"feature {feature.feature_id}: {name} fails: {run.error}")


def _examine(
    report: TaskReport, patch: bytes, features: Sequence[Feature], references: References, name: str
) -> Applied:
    with TreeStore(references.tester.base(features[0].task)) as store:
        work = drop_protected_files(
            patch, references.tester.protected_files(features, store), store
        )
    for file in work.dropped:
        report.notes.append(f"{name} touches {file.path} ({file.reason}), which is taken out")
    return work


def _attack(report: TaskReport, feature: Feature, references: References) -> None:
    """Patches that implement nothing: none may be scored."""
    if not references.get(feature).success:
        return
    with TreeStore(references.tester.base(feature.task)) as store:
        side = references.tester.protected_files((feature,), store)
        for name, patch in _attacks(feature, store):
            work = drop_protected_files(patch, side, store)
            report.checks += 1
            if not references.test(feature, work.patch, work.tree).success:
                continue
            if references.confirm(feature, work.patch) != "suspicious":
                report.problems.append(f"feature {feature.feature_id}: scored: {name}")


def _attacks(feature: Feature, store: TreeStore) -> Iterator[tuple[str, bytes]]:
    """Name and patch of each attack that fits a file of the golden patch, which the hidden tests are likely to load.

    In `attack_code`, `##### name` begins the code to add to that file, and `#### path` a file of its own.
    """
    golden = store.apply(feature.patch.read_bytes()).tree
    changes = store.changes(golden) if golden else {}
    for language, suffixes in _ATTACKED.items():
        path = next(
            (path for path, one in changes.items() if one.after and path.endswith(suffixes)), None
        )
        if path is None:
            continue
        before, after = (store.content(entry) or b"" for entry in changes[path])
        if language == "go":
            # A file of its own.
            package = re.search(rb"^package \w+", after, re.MULTILINE)
            path, before = (
                path.removesuffix(".go") + "_entry.go",
                package[0] if package else b"package x",
            )
        code = (
            resources.files("cooperbench.eval")
            .joinpath("attack_code", f"{language}.txt")
            .read_bytes()
        )
        for part in code.split(b"##### ")[1:]:
            name, _, attack = part.partition(b"\n")
            added, *others = attack.split(b"\n#### ")
            files = {path: before + b"\n" + added}
            for other in others:
                other_path, _, content = other.partition(b"\n")
                files[other_path.decode()] = content + b"\n"
            tree = store.edited(store.base.tree, files)
            yield f"{name.decode()} ({path})", store.patch_of(tree)
