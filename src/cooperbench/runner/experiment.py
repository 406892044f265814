"""One experiment from its configuration to its summary; `run`, `evaluate` and studies end here.

configuration → plan → executor (runs pairs and evaluates them) → summary
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.eval.evaluation_files import mark_unsound
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.models import Pair, Setting
from cooperbench.records.config import RunRecord
from cooperbench.records.history import record_end, record_start
from cooperbench.records.result import is_finished
from cooperbench.records.summary import Summary
from cooperbench.report.summary import save_summary, spent_on_disk
from cooperbench.retry import finish_despite_interrupts
from cooperbench.runner.budget import Budget
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display, header_lines
from cooperbench.runner.executors import make_executor
from cooperbench.runner.plan import (
    Plan,
    check_backend,
    check_earlier_jobs,
    check_plan,
    make_evaluation_plans,
    make_plan,
)
from cooperbench.sandbox.contract import ResourceUse
from cooperbench.storage import ExperimentPaths, read_bytes


def run_experiment(config: RunConfig, display: Display) -> Summary:
    """Run and evaluate the pairs of a configuration; return its summary."""
    with reserve([config.paths]):
        plan = make_plan(config)
        check_plan(plan)
        return run_plans([plan], display)[config.run_name]


def evaluate_experiment(config: RunConfig, display: Display) -> Summary:
    """Evaluate the results of an existing run; return its summary."""
    check_backend(config)
    with reserve([config.paths]):
        plans = make_evaluation_plans(config)
        for plan in plans:
            check_plan(plan)
        return run_plans(plans, display)[config.run_name]


@contextmanager
def reserve(experiments: Sequence[ExperimentPaths]) -> Iterator[None]:
    """Lock experiments against other processes; a rejected call leaves no new files or folders."""
    new_folders: list[Path] = []
    new_lock_files: list[Path] = []
    for paths in experiments:
        new_folders += _missing([paths.root, *paths.root.parents])
        new_lock_files += _missing([paths.root / ".lock"])
    with ExitStack() as locks:
        for paths in experiments:
            locks.enter_context(paths.lock())
        try:
            yield
        except UserError:
            # While the locks are held: no other process can have locked a file that is removed.
            for path in new_lock_files:
                path.unlink(missing_ok=True)
            _remove_empty(new_folders)
            raise


def _missing(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if not path.exists()]


def _remove_empty(folders: Iterable[Path]) -> None:
    deepest_first = sorted(set(folders), key=lambda folder: len(folder.parts), reverse=True)
    for folder in deepest_first:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def run_plans(
    plans: Sequence[Plan], display: Display, on_start: Callable[[], None] | None = None
) -> dict[str, Summary]:
    """Run and evaluate what plans have left; return the summaries by the names of the runs.

    The caller has reserved the experiments. `on_start` is called once nothing can be rejected
    anymore.
    """
    config = plans[0].config
    check_earlier_jobs(config)
    with closing(make_executor(config)) as executor:
        executor_notes = executor.start(plans)
        if on_start is not None:
            on_start()
        calls = _save_configurations(plans)
        _begin_display(display, plans, executor_notes)
        budget = _make_budget(plans)
        try:
            with _sending_traces(plans, display):
                executor.run(plans, display, budget)
        finally:
            summaries = finish_despite_interrupts(
                lambda: _write_summaries(plans, calls, budget, executor.resource_use())
            )
            display.end()
        return summaries


def _save_configurations(plans: Iterable[Plan]) -> dict[str, int]:
    """Write config.json of runs, and the start of the call into their history.

    An evaluation keeps config.json; it marks features in verdicts that have turned out unsound.

    Returns:
        The number of calls of `run` so far, by the names of the runs.
    """
    store = ReferenceStore()
    calls: dict[str, int] = {}
    for plan in plans:
        config = plan.config
        if config.evaluate_only:
            for pair in plan.pairs:
                mark_unsound(config.paths.pair(pair, config.setting), pair, store)
        if config.run_name not in calls:
            calls[config.run_name] = _begin_call(plan)
    return calls


def _begin_call(plan: Plan) -> int:
    """Record the start of a call; return the number of calls of `run` with it."""
    config = plan.config
    if not config.evaluate_only:
        return config.save(plan.pairs, _count_reruns(plan))
    content = read_bytes(config.paths.config) or b""
    saved = records.read(config.paths.config, RunRecord)
    call = len(saved.invocations) if saved else 0
    record_start(config.paths, last_call=call, call=call, config=content)
    return call


def _count_reruns(plan: Plan) -> int:
    """Return how many pairs are run again although they have a result."""
    config = plan.config
    finished = [
        pair for pair in plan.to_run if is_finished(config.paths.pair(pair, config.setting))
    ]
    return len(finished)


def _begin_display(display: Display, plans: Sequence[Plan], executor_notes: Iterable[str]) -> None:
    to_run = sum(len(plan.to_run) for plan in plans)
    to_evaluate = sum(len(plan.to_evaluate) for plan in plans)
    if plans[0].config.auto_eval:
        to_evaluate += to_run
    display.begin(header_lines(plans), to_run=to_run, to_evaluate=to_evaluate)
    notes: dict[str, None] = {}
    for plan in plans:
        notes.update(dict.fromkeys(plan.notes))
    notes.update(dict.fromkeys(executor_notes))
    for note in notes:
        display.note(note)


def _sending_traces(plans: Sequence[Plan], display: Display) -> AbstractContextManager[None]:
    """Return a block during which traces are sent to the collector of `--otlp`."""
    url = plans[0].config.otlp
    if url is None:
        return nullcontext()
    from cooperbench.export.live_traces import TracedPair, sending_traces

    pairs: list[TracedPair] = []
    for plan in plans:
        config = plan.config
        in_this_call = dict.fromkeys([*plan.to_run, *plan.to_evaluate])
        pairs += [TracedPair(config.paths, config.setting, pair) for pair in in_this_call]
    return sending_traces(url, pairs, display.note)


def _make_budget(plans: Iterable[Plan]) -> Budget:
    plans = list(plans)
    limit = plans[0].config.max_cost
    if limit is None:
        return Budget(None)
    return Budget(limit, sum(spent_on_disk(plan.config.paths) for plan in plans))


def _write_summaries(
    plans: Iterable[Plan],
    calls: Mapping[str, int],
    budget: Budget,
    resource_use: ResourceUse | None,
) -> dict[str, Summary]:
    """Write history.jsonl and summary.json of each run.

    The resource use is recorded with the first one.
    """
    pairs_by_run: dict[str, dict[Setting, Sequence[Pair]]] = {}
    paths_by_run: dict[str, ExperimentPaths] = {}
    for plan in plans:
        name = plan.config.run_name
        paths_by_run[name] = plan.config.paths
        pairs_by_run.setdefault(name, {})[plan.config.setting] = plan.pairs
    summaries: dict[str, Summary] = {}
    for name, pairs in pairs_by_run.items():
        record_end(paths_by_run[name], calls[name])
        use = None if summaries else resource_use
        summaries[name] = save_summary(paths_by_run[name], pairs, budget.record(), use)
    return summaries
