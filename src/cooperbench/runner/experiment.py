"""Carries out experiments: what is left to do is read from disk, pairs and evaluations go on side by side.

An experiment has arms. A run has one, an ablation one for each of its configurations, an evaluation one for each
setting of the run that it judges. Arms share sandboxes, test runs, threads and the budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from cooperbench.agents.registry import get_agent
from cooperbench.errors import Interrupted, RunStopped, UserError
from cooperbench.eval import backends
from cooperbench.eval.evaluation_files import evaluate_and_write, is_evaluated, mark_unsound
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.eval.references import References
from cooperbench.models import Pair, Usage, agent_slots
from cooperbench.records import to_object
from cooperbench.report.summary import save_summary, spent_on_disk
from cooperbench.retry import finish_despite_interrupts, with_retries
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display, header_lines
from cooperbench.runner.pair import RESULT_SCHEMA, PairRun
from cooperbench.sandbox.contract import EvalBackend, ResourceUse
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.secrets import redact
from cooperbench.storage import error_record, is_finished, is_undamaged, read_json, write_json
from cooperbench.team.mailbox import MailboxFactory, open_mailboxes


@dataclass(frozen=True)
class Arm:
    """A configuration, its pairs, and what is left of them to do. Those of an ablation differ in what is off."""

    config: RunConfig
    pairs: Sequence[Pair]
    """All that were asked for."""
    round: int = 1
    """Of several that repeat the same: one is over before the next begins."""
    to_run: tuple[Pair, ...] = ()
    to_evaluate: tuple[Pair, ...] = ()
    """Those that have a result already and lack only its evaluation."""

    def planned(self) -> Arm:
        """By what is on disk now."""
        config, to_run, to_evaluate = self.config, [], []
        for pair in self.pairs:
            paths = config.paths.pair(pair, config.setting)
            verdict_on = (paths, pair, config.setting, config.eval_network, config.canary)
            finished = config.evaluate_only or (is_finished(paths) and is_undamaged(paths))
            if not finished or (config.force and not config.evaluate_only):
                to_run.append(pair)
            elif config.auto_eval and (config.force or not is_evaluated(*verdict_on)):
                to_evaluate.append(pair)
        return replace(self, to_run=tuple(to_run), to_evaluate=tuple(to_evaluate))


class Budget:
    """What an experiment may cost; spent from any thread.

    Past `--max-cost` no new pair starts; those at work go on, so that the end may lie above it.
    """

    def __init__(self, limit: float | None, spent: float = 0.0) -> None:
        self._limit = limit
        self._spent = spent
        self._not_started = 0
        self._lock = threading.Lock()

    def spend(self, usage: Usage) -> None:
        with self._lock:
            self._spent += usage.cost

    @property
    def is_spent(self) -> bool:
        return self._limit is not None and self._spent >= self._limit

    def try_start(self) -> bool:
        """Whether there is something left for another pair; one that there is not is counted."""
        with self._lock:
            starts = not self.is_spent
            self._not_started += not starts
        return starts

    def record(self) -> dict[str, float | int] | None:
        """As it stands in summary.json; None without a limit."""
        if self._limit is None:
            return None
        return {
            "max_cost": self._limit,
            "spent": self._spent,
            "pairs_not_started": self._not_started,
        }


def open_backend(config: RunConfig) -> EvalBackend:
    """By module attribute: the documentation tells users to replace it there."""
    return backends.get_backend(config.backend, **config.backend_options)


def carry_out(
    arms: Sequence[Arm],
    display: Display,
    notes: Iterable[str] = (),
    on_start: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, Any]]:
    """Run and judge what is left, here or by jobs of a cluster. The summary of each run, by its name; also on disk.

    `on_start` is called when nothing can be refused any more.
    """
    config = arms[0].config
    jobs = config.paths.jobs_record
    there = (read_json(jobs) or {}).get("engine", config.executor)
    if there != config.executor:
        raise UserError(
            f"jobs of an earlier call may still be at work on {there}: continue with --executor {there},"
            f" or, if none is left there, remove {jobs}"
        )
    backend = engine = mailboxes = None
    with ExitStack() as stack:
        if config.executor == "local":
            backend = open_backend(config)
        else:
            from cooperbench.runner.executors.driver import Driver, open_engine

            engine = stack.enter_context(open_engine(config))
        for paths in {arm.config.run_name: arm.config.paths for arm in arms}.values():
            stack.enter_context(paths.lock())
        for arm in arms if not config.evaluate_only else ():
            arm.config.check_against_disk()
        arms = [arm.planned() for arm in arms]
        if backend:
            mailboxes = mailboxes_for(arms, stack)
        on_start()
        _save_configs(arms)
        to_run = sum(len(arm.to_run) for arm in arms)
        to_evaluate = sum(len(arm.to_evaluate) for arm in arms) + (
            to_run if config.auto_eval else 0
        )
        display.begin(header_lines(arms), to_run=to_run, to_evaluate=to_evaluate)
        stack.callback(display.end)
        for note in (*notes, *([f"Messages: {mailboxes.description}"] if mailboxes else ())):
            display.note(note)
        limit = config.max_cost
        spent = 0.0 if limit is None else sum(spent_on_disk(arm.config.paths) for arm in arms)
        budget = Budget(limit, spent)
        try:
            if backend:
                batch: Any = getattr(backend, "batch_settings", None)
                with SandboxManager(backend) as sandboxes:
                    here = list(map(_without_evaluation, arms)) if batch else arms
                    Experiment(here, sandboxes, display, mailboxes, budget).work_through()
                if batch:
                    from cooperbench.runner.executors.batch_engine import evaluate_by_batch

                    evaluate_by_batch(batch, arms, display)
            elif engine:
                Driver(engine, arms, display, budget).work_off()
        finally:
            used = getattr(backend, "resource_use", lambda: None)()
            summaries = finish_despite_interrupts(lambda: _sum_up(arms, budget, used))
        return summaries


def _without_evaluation(arm: Arm) -> Arm:
    return replace(arm, config=replace(arm.config, auto_eval=False), to_evaluate=())


def mailboxes_for(arms: Sequence[Arm], stack: ExitStack) -> MailboxFactory | None:
    """None where no agents will be at work that write to each other."""
    working = [arm.config for arm in arms if arm.to_run]
    if not any(config.messaging_enabled and config.setting != "solo" for config in working):
        return None
    name = working[0].run_name.partition("/")[0]
    return stack.enter_context(open_mailboxes(working[0].redis_url, name))


def _save_configs(arms: Iterable[Arm]) -> None:
    """Also marks, in verdicts, the unsound features that `validate` has found since."""
    store = ReferenceStore()
    for arm in arms:
        if not arm.config.evaluate_only:
            arm.config.save()
            continue
        for pair in arm.pairs:
            mark_unsound(arm.config.paths.pair(pair, arm.config.setting), pair, store)


def _sum_up(
    arms: Iterable[Arm], budget: Budget, used: ResourceUse | None
) -> dict[str, dict[str, Any]]:
    """What sandboxes used stands with the first run."""
    summaries: dict[str, dict[str, Any]] = {}
    for name, of_run in groupby(arms, lambda arm: arm.config.run_name):
        expected = {arm.config.setting: arm for arm in of_run}
        paths = next(iter(expected.values())).config.paths
        pairs = {setting: arm.pairs for setting, arm in expected.items()}
        summaries[name] = save_summary(paths, pairs, budget.record(), None if summaries else used)
    return summaries


class Experiment:
    """Works through what is left of all arms, in this process."""

    def __init__(
        self,
        arms: Sequence[Arm],
        sandboxes: SandboxManager,
        display: Display,
        mailboxes: MailboxFactory | None,
        budget: Budget,
        store: ReferenceStore | None = None,
    ) -> None:
        config = arms[0].config
        self._arms = arms
        self._sandboxes = sandboxes
        self._display = display
        self._mailboxes = mailboxes
        self._budget = budget
        tester = PatchTester(sandboxes, config.test_timeout_seconds, config.run_name)
        self._references = References(tester, config.eval_network, store, display.note)
        self._evaluations = sandboxes.pool(config.eval_concurrency, "eval")
        self._stopped_by: RunStopped | None = None

    def work_through(self) -> None:
        config = self._arms[0].config
        to_run = [pair for arm in self._arms for pair in arm.to_run]
        to_evaluate = [(arm.config, pair) for arm in self._arms for pair in arm.to_evaluate]
        evaluated = [pair for _, pair in to_evaluate]
        for name in dict.fromkeys(config.agents) if to_run else ():
            # Slow imports. If one fails, the agent itself reports that later, with a better message.
            self._sandboxes.pool(1, "warm-up").submit(get_agent(name).warm_up)
        self._sandboxes.prepare(
            [pair.task for pair in (*to_run, *evaluated)],
            lambda task, done, total: self._display.progress("Prepared", task.label, done, total),
        )
        # Agents are at work for longer than golden patches take: both begin at once.
        expected = [*(to_run if config.auto_eval else ()), *evaluated]
        told = partial(self._display.progress, "Reference")
        futures: list[Future[Any]] = [*self._references.begin(expected, self._evaluations, told)]
        futures += [self._evaluate(*one) for one in to_evaluate]
        agents = self._sandboxes.pool(config.concurrency, "pair")
        futures += [agents.submit(self._run, *one) for one in interleaved(self._arms)]
        try:
            self._sandboxes.drain(futures, lambda done: self._evaluate(*done) if done else None)
        except Interrupted:
            if self._stopped_by is not None:
                raise self._stopped_by from None
            raise

    def _evaluate(self, config: RunConfig, pair: Pair) -> Future[None]:
        def evaluate() -> None:
            self._check_stop()
            paths, setting, canary = config.paths, config.setting, config.canary
            found = evaluate_and_write(paths, pair, setting, self._references, canary=canary)
            self._display.evaluated(pair, to_object(found))

        return self._evaluations.submit(evaluate)

    def _run(self, config: RunConfig, pair: Pair) -> tuple[RunConfig, Pair] | None:
        """The same, if there is a result that is to be judged."""
        self._check_stop()
        if not self._budget.try_start():
            return None
        self._display.pair_started(pair, agent_slots(pair, config.setting))
        needed = (pair, config, self._sandboxes, self._display, self._mailboxes, self._budget.spend)
        try:
            result = with_retries(
                lambda attempt: PairRun(*needed).execute(attempt),
                self._sandboxes.stop,
                lambda attempt, error: self._display.note(
                    redact(f"{pair.label}: attempt {attempt} failed: {error}")
                ),
            )
        except Interrupted:
            raise
        except RunStopped as error:
            # At once: the next pair would begin before anybody looks at this one.
            self._stopped_by = error
            self._sandboxes.stop.set()
            raise
        except Exception as error:
            self._check_stop()
            result = write_error(config, pair, error)
        self._display.pair_ended(pair, result)
        return (config, pair) if config.auto_eval and result["status"] == "completed" else None

    def _check_stop(self) -> None:
        if self._sandboxes.stop.is_set():
            raise Interrupted("stopped")


def write_error(config: RunConfig, pair: Pair, error: Exception) -> dict[str, Any]:
    """result.json of a pair that ended in an error."""
    record = {"schema": RESULT_SCHEMA} | error_record(config.paths, pair, config.setting, error)
    write_json(config.paths.pair(pair, config.setting).result, record)
    return record


def interleaved(arms: Sequence[Arm]) -> Iterator[tuple[RunConfig, Pair]]:
    """What is to be run: a pair in all arms, then the next, so that what changes with time, like a provider, hits all
    arms alike. The arms take turns at being first."""
    for number in sorted({arm.round for arm in arms}):
        of_round = [(arm, set(arm.to_run)) for arm in arms if arm.round == number]
        for turn in range(max(len(arm.pairs) for arm, _ in of_round)):
            shift = turn % len(of_round)
            for arm, to_run in of_round[shift:] + of_round[:shift]:
                if turn < len(arm.pairs) and arm.pairs[turn] in to_run:
                    yield arm.config, arm.pairs[turn]
