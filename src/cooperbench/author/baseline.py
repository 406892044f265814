"""Runs the tests of a task's base commit, to see whether they work before any feature is added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cooperbench.eval.conditions import Conditions, conditions_to_try
from cooperbench.eval.fail_fast import change_runner
from cooperbench.eval.test_runs import TestRun, run_tests
from cooperbench.models import EvalNetwork, Task
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import SandboxManager

_SPARE_SECONDS = 300


@dataclass(frozen=True)
class Baseline:
    """Runs of the tests of a base commit, each in its own sandbox."""

    first: TestRun
    flaky_tests: tuple[str, ...]
    """Tests that passed in one run and failed in another."""
    needs_network: bool
    """Whether the tests pass only with a network."""

    @property
    def failed_tests(self) -> list[str]:
        """Names of the tests that failed, as far as the framework names them."""
        failed = [test for test, outcome in self.first.outcomes.items() if outcome == "failed"]
        return sorted(failed)


def measure_baseline(
    task: Task,
    sandboxes: SandboxManager,
    *,
    timeout_seconds: int,
    policy: EvalNetwork = "auto",
    note: Callable[[str], None] = lambda _: None,
) -> Baseline:
    """Run all tests of the base commit twice, without a network if they pass without it."""
    tried = conditions_to_try(sandboxes.backend.capabilities, policy)
    conditions = [step for step in tried if not step.installed or step.network == "public"]
    run = _run_once(task, sandboxes, conditions[0], timeout_seconds)
    used = conditions[0]
    for step in conditions[1:]:
        if run.success:
            break
        note(f"the tests fail without a network ({run.error}); trying with a network")
        second = _run_once(task, sandboxes, step, timeout_seconds)
        if second.success or second.tests_passed > run.tests_passed:
            run, used = second, step
    second_run = _run_once(task, sandboxes, used, timeout_seconds)
    flaky = []
    for test, outcome in run.outcomes.items():
        if {outcome, second_run.outcomes.get(test)} == {"passed", "failed"}:
            flaky.append(test)
    return Baseline(run, tuple(sorted(flaky)), needs_network=used is not conditions[0])


def _run_once(
    task: Task, sandboxes: SandboxManager, conditions: Conditions, timeout_seconds: int
) -> TestRun:
    image = sandboxes.image(task)
    options = SandboxOptions(
        "evaluation",
        conditions.network or "none",
        {"task": task.label},
        for_test_run=bool(image.evaluation_ref),
    )
    lifetime = timeout_seconds + _SPARE_SECONDS
    image_ref = image.evaluation_ref or image.ref
    with sandboxes.sandbox(image_ref, timeout_seconds=lifetime, options=options) as sandbox:
        if not image.evaluation_ref:
            sandbox.run_script("strip_future_commits.sh")
        runner = change_runner(task.runner_script.read_bytes())
        # A base commit is run without a dependency layer.
        env = conditions._replace(installed=False).env
        return run_tests(sandbox, b"", None, timeout_seconds, env, runner=runner)
