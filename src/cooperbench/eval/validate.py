"""Is a dataset sound? The base fails each feature's tests, the golden patch passes them, combined.patch passes all.

Golden patches are judged by the same rules as an agent's; what they did is kept as references. How they merge is in
`eval.conflicts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cooperbench.errors import CooperBenchError, Interrupted
from cooperbench.eval.attacks import attack_patches
from cooperbench.eval.evaluator import confirm
from cooperbench.eval.test_side import judged_patch
from cooperbench.eval.trees import TreeStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cooperbench.eval.executor import TestExecutor
    from cooperbench.eval.reference import Reference, References
    from cooperbench.eval.test_side import JudgedPatch
    from cooperbench.models import Feature, Task
    from cooperbench.sandbox.session import SandboxSession

SCHEMA = "cooperbench.validation/1"


@dataclass
class TaskReport:
    """What was found of one task; sound if there are no problems."""

    repo: str
    task_id: int
    checks: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "repo": self.repo,
            "task_id": self.task_id,
            "ok": not self.problems,
            "checks": self.checks,
            "problems": self.problems,
            "notes": self.notes,
        }


def missing_files(task: Task) -> Iterable[str]:
    """What the contract asks of a task's folder and is not there."""
    for path in (
        task.dockerfile,
        task.setup_script,
        task.runner_script,
        task.run_tests_script,
        task.combined_patch,
    ):
        if not path.is_file():
            yield f"{path.name} is missing"
    for feature in task.features:
        if not feature.description.read_text(errors="replace").strip():
            yield f"feature{feature.feature_id}/feature.md is empty"


class TaskValidator:
    """Checks one task; a sandbox for each test run, as in an evaluation. What is found is kept as references."""

    def __init__(
        self, task: Task, executor: TestExecutor, references: References, repeat: int, attacks: bool
    ) -> None:
        self._task = task
        self._executor = executor
        self._references = references
        self._repeat = repeat
        self._attacks = attacks
        self._report = TaskReport(task.repo, task.task_id)

    def validate(self, features: Sequence[Feature]) -> TaskReport:
        report = self._report
        report.problems += missing_files(self._task)
        try:
            found = {feature: self._check(feature) for feature in features}
            if self._task.combined_patch.is_file():
                self._check_combined(found)
            if self._attacks:
                for feature, reference in found.items():
                    self._attack(feature, reference)
        except Interrupted:
            raise
        except (CooperBenchError, OSError) as error:
            if self._executor.stop.is_set():
                raise Interrupted("stopped") from error
            report.problems.append(str(error))
        return report

    def _check(self, feature: Feature) -> Reference:
        """The golden patch passes the feature's tests, and the base does not."""
        report, where = self._report, f"feature {feature.feature_id}"
        work = self._examine(feature.patch.read_bytes(), (feature,), f"{where}: the golden patch")
        reference = self._references.measure(self._task, feature, self._repeat)
        report.checks += 2 * reference.runs if reference.base_passes is not None else 1
        if not reference.success:
            report.problems.append(f"{where}: the golden patch fails: {reference.error or work.error}")
        if reference.failed_runs:
            report.problems.append(
                f"{where}: the golden patch fails in {reference.failed_runs} of {reference.runs} runs"
            )
        if reference.base_passes:
            report.problems.append(f"{where}: its tests pass without it")
        if reference.flaky_tests:
            report.notes.append(f"{where}: flaky, not required: {', '.join(reference.flaky_tests)}")
        if reference.network == "public" and self._references.asked == "auto":
            report.notes.append(f"{where}: its tests need a network")
        return reference

    def _check_combined(self, references: Mapping[Feature, Reference]) -> None:
        name = "combined.patch"
        work = self._examine(self._task.combined_patch.read_bytes(), self._task.features, name)
        if not work.patch:
            self._report.problems.append(f"{name}: {work.error}")
            return
        for feature, reference in references.items():
            self._report.checks += 1
            run = self._executor.ask(self._task, feature, work.patch, work.tree, reference.conditions)
            run = run.held_against(reference)
            if not run.success:
                self._report.problems.append(f"feature {feature.feature_id}: {name} fails: {run.error}")

    def _attack(self, feature: Feature, reference: Reference) -> None:
        """Patches that implement nothing: none may be scored."""
        if not reference.success:
            return
        task, executor = self._task, self._executor
        with TreeStore(executor.base(task)) as store:
            side = executor.test_side(task, (feature,), store)
            for name, patch in attack_patches(feature, store):
                work = judged_patch(patch, side, store)
                run = executor.run(task, feature, work.patch, reference.conditions)
                self._report.checks += 1
                if not run.held_against(reference).success:
                    continue
                if confirm(task, feature, work.patch, store, executor, self._references) != "suspicious":
                    self._report.problems.append(f"feature {feature.feature_id}: scored: {name}")

    def _examine(self, patch: bytes, features: Sequence[Feature], name: str) -> JudgedPatch:
        with TreeStore(self._executor.base(self._task)) as store:
            work = judged_patch(patch, self._executor.test_side(self._task, features, store), store)
        for file in work.dropped:
            self._report.notes.append(f"{name} touches {file.path} ({file.reason}), which is taken out")
        return work


def validate_features(
    features: Mapping[Task, Sequence[Feature]],
    session: SandboxSession,
    references: References,
    executor: TestExecutor,
    *,
    concurrency: int,
    repeat: int,
    attacks: bool = False,
    progress: Callable[[TaskReport], None],
) -> list[TaskReport]:
    """All tasks, side by side; reports in their order."""
    pool = session.pool(concurrency, "validate")

    def validate(task: Task) -> TaskReport:
        report = TaskValidator(task, executor, references, repeat, attacks).validate(features[task])
        progress(report)
        return report

    futures = [pool.submit(validate, task) for task in features]
    session.drain(futures, lambda _: None)
    return [future.result() for future in futures]
