"""Is a dataset sound? The base fails each feature's tests, the golden patch passes them, combined.patch passes all.

Golden patches go through the same hygiene and the same judge as an agent's. How they merge is told by
`eval.conflicts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cooperbench.errors import CooperBenchError, Interrupted
from cooperbench.eval.backends.base import SandboxOptions
from cooperbench.eval.basetree import SandboxBaseTree
from cooperbench.eval.evaluator import SPARE_SECONDS
from cooperbench.eval.judge import examine, hidden_paths_of
from cooperbench.eval.testrun import run_tests
from cooperbench.models import Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cooperbench.eval.merge import BaseTree
    from cooperbench.eval.testrun import TestRun
    from cooperbench.models import Feature, Task
    from cooperbench.workshop import Workshop

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
    """Checks one task in sandboxes of a workshop; a sandbox for each test run, as in an evaluation."""

    def __init__(self, task: Task, workshop: Workshop, test_timeout_seconds: int) -> None:
        self._task = task
        self._workshop = workshop
        self._timeout_seconds = test_timeout_seconds
        self._report = TaskReport(task.repo, task.task_id)

    def validate(self) -> TaskReport:
        report = self._report
        report.problems += missing_files(self._task)
        try:
            for feature in self._task.features:
                self._check_base(feature)
                self._check_passes(feature, feature.patch.read_bytes(), "the golden patch", (feature,))
            if self._task.combined_patch.is_file():
                combined = self._task.combined_patch.read_bytes()
                for feature in self._task.features:
                    self._check_passes(feature, combined, "combined.patch", self._task.features)
        except Interrupted:
            raise
        except (CooperBenchError, OSError) as error:
            if self._workshop.stop.is_set():
                raise Interrupted("stopped") from error
            report.problems.append(str(error))
        return report

    def _check_base(self, feature: Feature) -> None:
        run = self._test(feature, None)
        if run.success:
            self._report.problems.append(f"feature {feature.feature_id}: its tests pass without it")

    def _check_passes(self, feature: Feature, patch: bytes, name: str, hiders: Sequence[Feature]) -> None:
        where = f"feature {feature.feature_id}: {name}"
        hidden = hidden_paths_of(Pair(self._task, tuple(one.feature_id for one in hiders)))
        with self._sandbox() as sandbox:
            work = examine(patch, hidden, SandboxBaseTree(sandbox))
            for file in work.dropped:
                self._report.notes.append(f"{where} touches {file.path} ({file.reason}), which is taken out")
            if not work.patch:
                self._report.problems.append(f"{where}: {work.error}")
                return
            self._report.checks += 1
            run = run_tests(sandbox, feature.tests.read_bytes(), work.patch, self._timeout_seconds)
        if not run.success:
            self._report.problems.append(f"{where} fails: {run.error}")

    def _test(self, feature: Feature, patch: bytes | None) -> TestRun:
        self._report.checks += 1
        with self._sandbox() as sandbox:
            return run_tests(sandbox, feature.tests.read_bytes(), patch, self._timeout_seconds)

    def _sandbox(self) -> Any:
        image = self._workshop.images.get(self._task)
        return self._workshop.guard.sandbox(
            image.reference,
            timeout_seconds=self._timeout_seconds + SPARE_SECONDS,
            options=SandboxOptions("evaluation", labels={"task": self._task.label}),
        )


def validate_tasks(
    tasks: Sequence[Task],
    workshop: Workshop,
    *,
    concurrency: int,
    test_timeout_seconds: int,
    progress: Callable[[TaskReport], None],
) -> list[TaskReport]:
    """All of them, side by side; reports in the order of the tasks."""
    pool = workshop.pool(concurrency, "validate")

    def validate(task: Task) -> TaskReport:
        report = TaskValidator(task, workshop, test_timeout_seconds).validate()
        progress(report)
        return report

    futures = [pool.submit(validate, task) for task in tasks]
    workshop.drain(futures, lambda _: None)
    return [future.result() for future in futures]


def sandbox_base_tree(task: Task, workshop: Workshop) -> BaseTree:
    """A task's base commit where no clone is at hand: read out of a sandbox, which ends with the workshop."""
    image = workshop.images.get(task)
    options = SandboxOptions("evaluation", labels={"task": task.label})
    return SandboxBaseTree(
        workshop.guard.open(image.reference, timeout_seconds=SPARE_SECONDS, options=options)
    )
