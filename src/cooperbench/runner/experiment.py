"""One experiment: carries out a plan, pairs and evaluations side by side, and leaves a summary."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.errors import Interrupted, RunStopped
from cooperbench.eval.batch import Order, remote_evaluation_of
from cooperbench.eval.evaluator import evaluate_and_write
from cooperbench.eval.executor import TestExecutor
from cooperbench.eval.reference import References
from cooperbench.models import seats_of
from cooperbench.processes import finished
from cooperbench.report.summary import save_summary, spent_on_disk
from cooperbench.retry import with_retries
from cooperbench.runner.pair import RESULT_SCHEMA, PairRun
from cooperbench.runner.plan import Budget
from cooperbench.sandbox.contract import resource_use_of
from cooperbench.sandbox.session import SandboxSession
from cooperbench.secrets import redact
from cooperbench.storage import error_record, write_json
from cooperbench.team.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from cooperbench.models import Message, Pair, Setting
    from cooperbench.runner.config import RunConfig
    from cooperbench.runner.display import Display
    from cooperbench.runner.plan import Plan
    from cooperbench.sandbox.contract import EvalBackend, ResourceUse
    from cooperbench.storage import ExperimentPaths
    from cooperbench.team.mailbox import MailboxFactory

Work = tuple["Pair", "Setting"]


def open_backend(name: str, options: Mapping[str, object]) -> EvalBackend:
    """By module attribute: the documentation tells users to replace it there."""
    from cooperbench.eval import backends

    return backends.get_backend(name, **options)


class Experiment:
    """Sandboxes and evaluations of one call of `run` or `evaluate`."""

    def __init__(
        self, order: Order, session: SandboxSession, display: Display, shared: Experiment | None = None
    ) -> None:
        """`shared`: another arm of the same, whose test runs, references and threads serve this one, too."""
        self._order = order
        self._session = session
        self._display = display
        if shared is None:
            executor = TestExecutor(session, order.test_timeout_seconds, order.paths.run_name)
            self._references = References(executor, order.eval_network, note=display.note)
            self._evaluations = session.pool(order.concurrency, "eval")
        else:
            self._references, self._evaluations = shared._references, shared._evaluations
        self._remote = remote_evaluation_of(session.backend)
        self._for_remote: list[Work] = []

    def prepare(self, pairs: Sequence[Pair], judged: Sequence[Work]) -> None:
        """Images of what agents work on, and of what is judged here."""
        judged_here = () if self._remote else [pair for pair, _ in judged]
        tasks = [pair.task for pair in (*pairs, *judged_here)]
        self._session.prepare(
            tasks, lambda task, done, total: self._display.prepared(task.label, done, total)
        )

    def begin(
        self, work: Sequence[Work], expected: Sequence[Pair] = (), *, refer: bool = True
    ) -> list[Future[Any]]:
        """Judge these, and, to `refer` to, run the golden patches of these and of what is `expected` to follow."""
        futures: list[Future[Any]] = []
        if not self._remote and refer:
            pairs = [*expected, *(pair for pair, _ in work)]
            futures += self._references.begin(pairs, self._evaluations, self._display.referenced)
        return [*futures, *filter(None, (self.judge(*one) for one in work))]

    def judge(self, pair: Pair, setting: Setting) -> Future[None] | None:
        """None where it goes elsewhere, with all others, in the end."""
        if self._remote:
            self._for_remote.append((pair, setting))
            return None
        return self._evaluations.submit(self._judge, pair, setting)

    def finish(self) -> None:
        if self._remote and self._for_remote:
            order = replace(self._order, work=self._for_remote)
            self._remote(order, self._display, self._session.stop)

    def _judge(self, pair: Pair, setting: Setting) -> None:
        if self._session.stop.is_set():
            raise Interrupted("stopped")
        order = self._order
        record = evaluate_and_write(order.paths, pair, setting, self._references, canary=order.canary)
        self._display.evaluated(pair, record)


@contextmanager
def summed_up(
    paths: ExperimentPaths,
    backend: EvalBackend,
    summary: dict[str, Any],
    expected: Mapping[Setting, Iterable[Pair]],
    budget: Budget | None = None,
) -> Iterator[SandboxSession]:
    """A session after which summary.json is written, whatever happened; `summary` then is what stands there."""
    try:
        with SandboxSession(backend) as session:
            yield session
    finally:
        _sum_up(paths, summary, expected, budget, resource_use_of(backend))


def _sum_up(
    paths: ExperimentPaths,
    summary: dict[str, Any],
    expected: Mapping[Setting, Iterable[Pair]],
    budget: Budget | None,
    used: ResourceUse | None = None,
) -> None:
    spent = budget.record() if budget else None
    summary |= finished(lambda: save_summary(paths, expected, spent, used))


def evaluate_pairs(order: Order, backend: EvalBackend, display: Display) -> dict[str, Any]:
    """Judge what the order names; the summary of the whole run."""
    summary: dict[str, Any] = {}
    with summed_up(order.paths, backend, summary, {}) as session:
        judge_all(order, session, display)
    return summary


def judge_all(order: Order, session: SandboxSession, display: Display) -> None:
    experiment = Experiment(order, session, display)
    experiment.prepare((), order.work)
    session.drain(experiment.begin(order.work), lambda _: None)
    experiment.finish()


class Arm(NamedTuple):
    """A configuration, and what is left of it to do. A run has one; those of an ablation share all but their parts."""

    config: RunConfig
    plan: Plan
    display: Display
    round: int = 1
    """Of several that repeat the same: one is over before the next begins."""


def carry_out(
    arms: Sequence[Arm], backend: EvalBackend, mailboxes: MailboxFactory | None
) -> list[dict[str, Any]]:
    """The summary of each arm, also on disk. What sandboxes used stands with the first.

    KeyboardInterrupt passes through once everything has ended and is summed up.
    """
    config, limit = arms[0].config, arms[0].config.max_cost
    spent = 0.0 if limit is None else sum(spent_on_disk(arm.config.paths) for arm in arms)
    budget = Budget(limit, spent)
    summaries: list[dict[str, Any]] = [{} for _ in arms]
    expected = [{arm.config.setting: arm.plan.pairs} for arm in arms]
    with ExitStack() as stack:
        for arm, summary, pairs in zip(arms[1:], summaries[1:], expected[1:], strict=True):
            stack.callback(_sum_up, arm.config.paths, summary, pairs, budget)
        session = stack.enter_context(summed_up(config.paths, backend, summaries[0], expected[0], budget))
        work_through(arms, session, mailboxes, budget)
    return summaries


def work_through(
    arms: Sequence[Arm], session: SandboxSession, mailboxes: MailboxFactory | None, budget: Budget
) -> None:
    """Run and judge, in this process, what is left of all arms."""
    config, display, auto_eval = arms[0].config, arms[0].display, arms[0].config.auto_eval
    experiments = [Experiment(config.order, session, display)]
    for arm in arms[1:]:
        experiments.append(Experiment(arm.config.order, session, arm.display, experiments[0]))
    agents = [_AgentRuns(arm.config, session, arm.display, mailboxes, budget) for arm in arms]
    waiting: list[list[Work]] = [
        [(pair, arm.config.setting) for pair in arm.plan.to_evaluate] for arm in arms
    ]
    to_run = [*dict.fromkeys(pair for arm in arms for pair in arm.plan.to_run)]
    experiments[0].prepare(to_run, [one for work in waiting for one in work])
    pool = session.pool(config.concurrency, "pair")
    first = experiments[0].begin(waiting[0], to_run if auto_eval else ())
    for experiment, work in zip(experiments[1:], waiting[1:], strict=True):
        first += experiment.begin(work, refer=False)

    def run(at: int, pair: Pair) -> tuple[int, Pair] | None:
        done = agents[at].run(pair)
        return None if done is None else (at, done)

    def judge_next(done: tuple[int, Pair] | None) -> Future[None] | None:
        return experiments[done[0]].judge(done[1], config.setting) if done and auto_eval else None

    first += [pool.submit(run, at, pair) for at, pair in interleaved(arms)]
    try:
        session.drain(first, judge_next)
    except Interrupted:
        for one in agents:
            if one.stopped_by is not None:
                raise one.stopped_by from None
        raise
    for experiment in experiments:
        experiment.finish()


def interleaved(arms: Sequence[Arm]) -> Iterator[tuple[int, Pair]]:
    """Places of arms, and pairs to be run: a pair in all arms, then the next, so that what changes with time, like a
    provider, hits all arms alike. The arms take turns at being first."""
    for number in sorted({arm.round for arm in arms}):
        places = [at for at, arm in enumerate(arms) if arm.round == number]
        to_run = {at: set(arms[at].plan.to_run) for at in places}
        for turn, pair in enumerate(arms[0].plan.pairs):
            shift = turn % len(places)
            yield from ((at, pair) for at in places[shift:] + places[:shift] if pair in to_run[at])


class _AgentRuns:
    """Agents at work, pair by pair, from any thread."""

    def __init__(
        self,
        config: RunConfig,
        session: SandboxSession,
        display: Display,
        mailboxes: MailboxFactory | None,
        budget: Budget,
    ) -> None:
        self._config = config
        self._display = display
        self._session = session
        self._mailboxes = mailboxes
        self._budget = budget
        self.stopped_by: RunStopped | None = None

    def run(self, pair: Pair) -> Pair | None:
        """The pair, if there is a result worth evaluating."""
        self._check_stop()
        if not self._budget.lets_start(pair):
            return None
        self._display.pair_started(pair, seats_of(pair, self._config.setting))
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
            self.stopped_by = error
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

        make_mailbox = partial(self._mailboxes.make, pair.label) if self._mailboxes else Mailbox
        return PairRun(
            pair,
            self._config,
            image,
            self._session,
            paths,
            tell,
            make_mailbox,
            self._budget.spend,
            partial(self._display.outage, pair),
        ).execute(attempt)

    def _check_stop(self) -> None:
        if self._session.stop.is_set():
            raise Interrupted("stopped")
