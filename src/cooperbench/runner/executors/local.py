"""Pairs in this process. With a backend that has Google Batch, evaluations are one Batch job."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cooperbench.eval import backends
from cooperbench.runner.budget import Budget
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.base import Executor
from cooperbench.runner.plan import Plan
from cooperbench.runner.schedule import Scheduler
from cooperbench.sandbox.backend import adapted_backend
from cooperbench.sandbox.contract import EvalBackend, ResourceUse
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.team.mailbox import MailboxFactory, open_mailboxes

if TYPE_CHECKING:
    from cooperbench.backends.gcp.settings import GcpSettings


@runtime_checkable
class HasBatch(Protocol):
    """A backend whose evaluations run on Google Batch."""

    @property
    def batch_settings(self) -> GcpSettings:
        """Settings of the Batch jobs."""
        ...


@runtime_checkable
class MeasuresUse(Protocol):
    """A backend that measures the use of its sandboxes."""

    def resource_use(self) -> ResourceUse | None:
        """Return what all sandboxes have used so far."""
        ...


def open_backend(config: RunConfig) -> EvalBackend:
    """Return the backend of a configuration.

    It is looked up in the module on each call, because the documentation tells users to replace
    `get_backend` there.
    """
    return backends.get_backend(config.backend, **config.backend_options)


def open_plan_mailboxes(plans: Sequence[Plan], stack: ExitStack) -> MailboxFactory | None:
    """Open the mailboxes of plans; None if no agents will run that can write to each other."""
    configs = [plan.config for plan in plans if plan.to_run]
    if not any(config.messaging_enabled and config.setting != "solo" for config in configs):
        return None
    run_name = configs[0].run_name.partition("/")[0]
    return stack.enter_context(open_mailboxes(configs[0].redis_url, run_name))


def make_local_executor(config: RunConfig) -> LocalExecutor:
    """Return an executor with the backend of a configuration."""
    backend = open_backend(config)
    if isinstance(backend, HasBatch):
        return BatchEvaluationExecutor(backend, backend.batch_settings)
    return LocalExecutor(backend)


class LocalExecutor(Executor):
    """Runs and evaluates pairs in this process."""

    def __init__(self, backend: EvalBackend) -> None:
        self._backend = backend
        self._mailboxes: MailboxFactory | None = None
        self._stack = ExitStack()

    def start(self, plans: Sequence[Plan]) -> list[str]:
        """Open the mailboxes; raise UserError if the backend cannot open sandboxes."""
        self._mailboxes = open_plan_mailboxes(plans, self._stack)
        if self._opens_sandboxes(plans):
            adapted_backend(self._backend).check()
        if self._mailboxes is None:
            return []
        return [f"Messages: {self._mailboxes.description}"]

    def run(self, plans: Sequence[Plan], display: Display, budget: Budget) -> None:
        """Run and evaluate pairs in threads."""
        with SandboxManager(self._backend) as sandboxes:
            Scheduler(plans, sandboxes, display, self._mailboxes, budget).run()

    def _opens_sandboxes(self, plans: Sequence[Plan]) -> bool:
        return any(plan.to_run or plan.to_evaluate for plan in plans)

    def resource_use(self) -> ResourceUse | None:
        """Return what the backend has measured."""
        if isinstance(self._backend, MeasuresUse):
            return self._backend.resource_use()
        return None

    def close(self) -> None:
        """Close the mailboxes."""
        self._stack.close()


class BatchEvaluationExecutor(LocalExecutor):
    """Runs pairs in this process and evaluates their results as one Google Batch job."""

    def __init__(self, backend: EvalBackend, settings: GcpSettings) -> None:
        super().__init__(backend)
        self._settings = settings

    def run(self, plans: Sequence[Plan], display: Display, budget: Budget) -> None:
        """Run all pairs, then evaluate them."""
        from cooperbench.runner.executors.batch_cluster import evaluate_by_batch

        super().run([_without_evaluation(plan) for plan in plans], display, budget)
        evaluate_by_batch(self._settings, plans, display)

    def _opens_sandboxes(self, plans: Sequence[Plan]) -> bool:
        return any(plan.to_run for plan in plans)


def _without_evaluation(plan: Plan) -> Plan:
    return replace(plan, config=replace(plan.config, auto_eval=False), to_evaluate=())
