"""Runs plans in this process: pairs and evaluations side by side, each in its own thread pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from cooperbench import records
from cooperbench.agents.registry import get_agent
from cooperbench.errors import InfraError, Interrupted, RunStopped
from cooperbench.eval.evaluation_files import evaluate_and_write
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.eval.references import References
from cooperbench.models import Pair, Task, agent_slots
from cooperbench.records.errors import make_error
from cooperbench.records.result import PairResult, ResultError, earlier_attempts
from cooperbench.retry import with_retries
from cooperbench.runner.budget import Budget
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.pair_run import Services, run_pair
from cooperbench.runner.plan import Plan
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.secrets import redact
from cooperbench.team.mailbox import MailboxFactory

_POLL_SECONDS = 0.5
"""Wait no longer at once, so that Ctrl-C is noticed."""


class Work(NamedTuple):
    """A pair, with the configuration that it belongs to."""

    config: RunConfig
    pair: Pair


@dataclass
class Scheduler:
    """Runs and evaluates what plans have left to do."""

    plans: Sequence[Plan]
    sandboxes: SandboxManager
    display: Display
    mailboxes: MailboxFactory | None
    budget: Budget
    reference_store: ReferenceStore | None = None
    _stopped_by: RunStopped | None = field(default=None, init=False)

    def run(self) -> None:
        """Run all pairs and evaluate each as soon as it has a result.

        The first error that is not about a single pair ends everything.
        """
        config = self.plans[0].config
        work_to_run = interleave(self.plans)
        work_to_evaluate = [
            Work(plan.config, pair) for plan in self.plans for pair in plan.to_evaluate
        ]
        if work_to_run:
            self._warm_up_agents()
        self._prepare_images([*work_to_run, *work_to_evaluate])
        references = self._make_references()
        pair_pool = self.sandboxes.pool(config.concurrency, "pair")
        evaluation_pool = self.sandboxes.pool(config.eval_concurrency, "eval")

        expected = [work.pair for work in work_to_evaluate]
        if config.auto_eval:
            expected = [*(pair for plan in self.plans for pair in plan.to_run), *expected]
        on_reference = partial(self.display.progress, "Reference")
        # Golden patches are tested while agents work, which takes longer.
        evaluating = set(references.begin(expected, evaluation_pool, on_reference))
        for work in work_to_evaluate:
            evaluating.add(evaluation_pool.submit(self.evaluate, work, references))
        running = {pair_pool.submit(self.run_pair, work) for work in work_to_run}
        try:
            while running or evaluating:
                pending: set[Future[Any]] = {*running, *evaluating}
                done, _ = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
                for pair_future in running & done:
                    finished = pair_future.result()
                    if finished is not None:
                        evaluating.add(evaluation_pool.submit(self.evaluate, finished, references))
                for evaluation_future in evaluating & done:
                    evaluation_future.result()
                running -= done
                evaluating -= done
        except Interrupted:
            if self._stopped_by is not None:
                raise self._stopped_by from None
            raise

    def run_pair(self, work: Work) -> Work | None:
        """Run one pair; return it if it needs evaluation."""
        self._raise_if_stopped()
        if not self.budget.try_start():
            return None
        config, pair = work
        self.display.pair_started(pair, agent_slots(pair, config.setting))
        result = self._run_with_retries(work)
        self.display.pair_ended(pair, result)
        if config.auto_eval and result.is_completed:
            return work
        return None

    def _run_with_retries(self, work: Work) -> PairResult | ResultError:
        """Run a pair, again after infrastructure errors; the last error becomes its result."""
        config, pair = work
        services = Services(self.sandboxes, self.display, self.mailboxes, self.budget.spend)
        try:
            return with_retries(
                lambda _: run_pair(config, pair, services),
                self.sandboxes.stop,
                lambda attempt, error: self._note_failed_attempt(work, attempt, error),
            )
        except Interrupted:
            raise
        except RunStopped as error:
            # Stop at once: the next pair would start before the main thread sees this error.
            self._stopped_by = error
            self.sandboxes.stop.set()
            raise
        except Exception as error:
            self._raise_if_stopped()
            return write_result_error(config, pair, error)

    def _note_failed_attempt(self, work: Work, attempt: int, error: InfraError) -> None:
        """Keep the reason in the folder of the attempt, which is archived before the next one."""
        config, pair = work
        write_result_error(config, pair, error)
        self.display.note(redact(f"{pair.label}: attempt {attempt} failed: {error}"))

    def evaluate(self, work: Work, references: References) -> None:
        """Evaluate the result of one pair."""
        self._raise_if_stopped()
        config, pair = work
        evaluation = evaluate_and_write(
            config.paths, pair, config.setting, references, canary=config.canary
        )
        self.display.evaluated(pair, evaluation)

    def _raise_if_stopped(self) -> None:
        if self.sandboxes.stop.is_set():
            raise Interrupted("stopped")

    def _warm_up_agents(self) -> None:
        """Start slow imports. If one fails, the agent reports it later with a better message."""
        pool = self.sandboxes.pool(1, "warm-up")
        for name in dict.fromkeys(self.plans[0].config.agents):
            pool.submit(get_agent(name).warm_up)

    def _prepare_images(self, work: Sequence[Work]) -> None:
        self.sandboxes.prepare([pair.task for _, pair in work], self._on_image_prepared)

    def _on_image_prepared(self, task: Task, done: int, total: int) -> None:
        failed = self.sandboxes.preparation_error(task) is not None
        self.display.progress("Not prepared" if failed else "Prepared", task.label, done, total)

    def _make_references(self) -> References:
        config = self.plans[0].config
        tester = PatchTester(self.sandboxes, config.test_timeout_seconds, config.run_name)
        return References(tester, config.eval_network, self.reference_store, self.display.note)


def write_result_error(config: RunConfig, pair: Pair, error: Exception) -> ResultError:
    """Write result.json of a pair that ended in an error."""
    record = make_error(ResultError, config.paths, pair, config.setting, error)
    attempts = earlier_attempts(config.paths, pair, config.setting)
    record = msgspec.structs.replace(record, attempt=len(attempts) + 1, earlier_attempts=attempts)
    records.write(config.paths.pair(pair, config.setting).result, record)
    return record


def interleave(plans: Sequence[Plan]) -> list[Work]:
    """Return the pairs to run: the first pair in all plans, then the second, and so on.

    What changes with time, like the load of a provider, then affects all plans alike. The plans
    take turns at being first.
    """
    work: list[Work] = []
    for round_number in sorted({plan.round for plan in plans}):
        round_plans = [plan for plan in plans if plan.round == round_number]
        work += _interleave_round(round_plans)
    return work


def _interleave_round(plans: Sequence[Plan]) -> Iterator[Work]:
    to_run = [set(plan.to_run) for plan in plans]
    for index in range(max(len(plan.pairs) for plan in plans)):
        first = index % len(plans)
        for offset in range(len(plans)):
            number = (first + offset) % len(plans)
            plan = plans[number]
            if index < len(plan.pairs) and plan.pairs[index] in to_run[number]:
                yield Work(plan.config, plan.pairs[index])
