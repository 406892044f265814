"""One experiment: carries out a plan, pairs and evaluations side by side, and leaves a summary."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cooperbench.errors import Interrupted, RunStopped
from cooperbench.eval.batch import Order, remote_evaluation_of
from cooperbench.eval.evaluator import Evaluator
from cooperbench.eval.executor import TestExecutor
from cooperbench.eval.reference import References
from cooperbench.redaction import redact
from cooperbench.report.summary import save_summary
from cooperbench.retry import with_retries
from cooperbench.runner.pair import RESULT_SCHEMA, PairRun
from cooperbench.runner.plan import Budget, spent_on_disk
from cooperbench.sandbox.contract import resource_use_of
from cooperbench.sandbox.session import SandboxSession
from cooperbench.signals import finished
from cooperbench.storage import error_record, write_json
from cooperbench.team.mailbox import MemoryMailbox

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cooperbench.models import Message, Pair, Task
    from cooperbench.runner.config import RunConfig
    from cooperbench.runner.display import Display
    from cooperbench.runner.plan import Plan
    from cooperbench.sandbox.contract import EvalBackend
    from cooperbench.team.mailbox import MailboxFactory


def carry_out(
    config: RunConfig, plan: Plan, backend: EvalBackend, display: Display, mailboxes: MailboxFactory | None
) -> dict[str, Any]:
    """The summary, also on disk. KeyboardInterrupt passes through once everything has ended and is summed up."""
    budget = Budget(config.max_cost, 0.0 if config.max_cost is None else spent_on_disk(config.paths))
    try:
        with SandboxSession(backend) as session:
            _Experiment(config, plan, session, display, mailboxes, budget).run()
    finally:
        pairs = {config.setting: plan.pairs}
        summary = finished(
            lambda: save_summary(config.paths, pairs, budget.record(), resource_use_of(backend))
        )
    return summary


class _Experiment:
    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        session: SandboxSession,
        display: Display,
        mailboxes: MailboxFactory | None,
        budget: Budget,
    ) -> None:
        self._config = config
        self._plan = plan
        self._display = display
        self._session = session
        self._mailboxes = mailboxes
        self._budget = budget
        self._stopped_by: RunStopped | None = None
        executor = TestExecutor(session, config.test_timeout_seconds, config.run_name)
        self._references = References(executor, config.eval_network, note=display.note)
        self._evaluator = Evaluator(config.paths, executor, self._references)
        self._remote = remote_evaluation_of(session.backend)
        self._for_remote: list[Pair] = list(plan.to_evaluate) if self._remote else []

    def run(self) -> None:
        """Runs feed evaluations; both go on until nothing is left. Remote evaluations go out together at the end."""
        plan, config = self._plan, self._config
        judged_here = () if self._remote else plan.to_evaluate
        tasks = [pair.task for pair in (*plan.to_run, *judged_here)]
        self._session.prepare(tasks, self._prepared)
        pairs = self._session.pool(config.concurrency, "pair")
        evaluations = self._session.pool(config.eval_concurrency, "eval")

        def evaluate_next(pair: Pair | None) -> Future[Pair | None] | None:
            if pair is None or not config.auto_eval:
                return None
            if self._remote:
                self._for_remote.append(pair)
                return None
            return evaluations.submit(self._evaluate, pair)

        first: list[Future[Any]] = []
        if config.auto_eval and not self._remote:
            # First in their pool, while agents work.
            to_judge = (*plan.to_run, *judged_here)
            first += self._references.begin(to_judge, evaluations, self._display.referenced)
        first += [pairs.submit(self._run_pair, pair) for pair in plan.to_run]
        first += [evaluations.submit(self._evaluate, pair) for pair in judged_here]
        try:
            self._session.drain(first, evaluate_next)
        except Interrupted:
            if self._stopped_by is not None:
                raise self._stopped_by from None
            raise
        if self._remote and config.auto_eval:
            work = [(pair, config.setting) for pair in self._for_remote]
            order = Order(
                config.paths, work, config.eval_concurrency, config.test_timeout_seconds, config.eval_network
            )
            self._remote(order, self._display, self._session.stop)

    def _prepared(self, task: Task, done: int, total: int) -> None:
        self._display.prepared(task.label, done, total)

    def _run_pair(self, pair: Pair) -> Pair | None:
        """The pair, if there is a result worth evaluating."""
        self._check_stop()
        if not self._budget.lets_start(pair):
            return None
        self._display.pair_started(pair)
        config = self._config
        try:
            result = with_retries(
                lambda attempt: self._attempt(pair, attempt),
                self._session.stop,
                lambda attempt, error: self._display.note(
                    redact(f"{pair.label}: attempt {attempt} failed: {error}")
                ),
            )
        except Interrupted:
            raise
        except RunStopped as error:
            # At once: the next pair would begin before anybody looks at this one.
            self._stopped_by = error
            self._session.stop.set()
            raise
        except Exception as error:
            self._check_stop()
            result = {"schema": RESULT_SCHEMA} | error_record(config.paths, pair, config.setting, error)
            write_json(config.paths.pair(pair, config.setting).result, result)
        self._display.pair_ended(pair, result)
        return pair if result["status"] == "completed" else None

    def _attempt(self, pair: Pair, attempt: int) -> dict[str, Any]:
        image = self._session.image(pair.task)
        self._config.paths.archive(pair, self._config.setting)
        paths = self._config.paths.pair(pair, self._config.setting)
        paths.folder.mkdir(parents=True)

        def tell(message: Message) -> None:
            self._display.message(pair, message)

        make_mailbox = partial(self._mailboxes.make, pair.label) if self._mailboxes else MemoryMailbox
        pair_run = PairRun(
            pair,
            self._config,
            image,
            self._session,
            paths,
            tell,
            make_mailbox,
            on_spend=self._budget.spend,
        )
        return pair_run.execute(attempt)

    def _evaluate(self, pair: Pair) -> None:
        self._check_stop()
        self._display.evaluated(pair, self._evaluator.evaluate(pair, self._config.setting))

    def _check_stop(self) -> None:
        if self._session.stop.is_set():
            raise Interrupted("stopped")
