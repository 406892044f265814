"""`run` and `eval` by jobs: the engine, what goes into orders, and the summary in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from cooperbench.backends.registry import check_options
from cooperbench.eval.batch.entry import pack_folder, pack_task
from cooperbench.processes import finished
from cooperbench.report.summary import save_summary, spent_on_disk
from cooperbench.runner.executors import Carried, key_of
from cooperbench.runner.executors.driver import Driver, read_record
from cooperbench.runner.plan import Budget

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.models import Pair, Setting
    from cooperbench.runner.display import Display
    from cooperbench.runner.executors import Engine, JobOrder, Placement, Work
    from cooperbench.storage import ExperimentPaths

WorkOff = Callable[
    [Sequence["Work"], "Display", "float | None", "Mapping[Setting, Iterable[Pair]]"], dict[str, Any]
]
"""Every pair in a job; takes also what all may cost, and what is expected on disk then. Gives the summary."""
_EVALUATION_SECONDS = 1800.0
"""For judging a pair, beside what its agents may take."""
_LONGEST_SECONDS = 24 * 3600.0


@contextmanager
def open_jobs(
    placement: Placement, order: JobOrder, dataset: Path, concurrency: int
) -> Iterator[WorkOff | None]:
    """What works off pairs by jobs, checked; None where they are worked on here, and by no job of an earlier call."""
    paths = order.judging.paths
    read_record(paths, placement.executor)
    if placement.is_local:
        yield None
        return
    check_options(order.backend, order.backend_options)
    workers, per_job = placement.workers or concurrency, placement.pairs_per_job or 1
    engine = _engine(placement, order, workers, per_job)
    configs = [path for path in order.config.assignment.config_paths if path] if order.config else []

    def work_off(
        work: Sequence[Work],
        display: Display,
        max_cost: float | None,
        expected: Mapping[Setting, Iterable[Pair]],
    ) -> dict[str, Any]:
        pack = _packer(engine, paths, configs)
        budget = Budget(max_cost, 0.0 if max_cost is None else spent_on_disk(paths))
        summary: dict[str, Any] = {}
        try:
            Driver(engine, order, pack, display, budget, workers, per_job).work_off(work)
        finally:
            summary |= finished(lambda: save_summary(paths, expected, budget.record()))
        return summary

    try:
        engine.check((paths.logs_dir, dataset, *configs), order.backend, order.backend_options)
        yield work_off
    finally:
        engine.close(keep_files=True)


def _engine(placement: Placement, order: JobOrder, workers: int, per_job: int) -> Engine:
    if placement.executor == "slurm":
        from cooperbench.runner.executors.slurm_engine import SlurmEngine

        agents = order.config and (order.config.time_limit_seconds or _LONGEST_SECONDS)
        minutes = round(((agents or 0) + _EVALUATION_SECONDS) * per_job / 60)
        return SlurmEngine(order.judging.paths, placement.slurm, workers, minutes)
    from cooperbench.runner.executors.ray_engine import RayEngine

    return RayEngine(placement.ray_address or "auto", placement.ray_resources, workers)


def _packer(
    engine: Engine, paths: ExperimentPaths, agent_configs: Iterable[Path]
) -> Callable[[Sequence[Work]], Carried]:
    """Packs what nodes do not see."""
    configs = {path: path.read_bytes() for path in agent_configs if not engine.sees(path)}
    logs = not engine.sees(paths.logs_dir)
    packed_task = cache(pack_task)

    def pack(work: Sequence[Work]) -> Carried:
        tasks = {pair.task for pair, _ in work if not engine.sees(pair.task.path)}
        results = {
            key_of(*one): pack_folder(paths.pair(*one).folder)
            for one in work
            if logs and paths.pair(*one).result.exists()
        }
        return Carried({task.label: packed_task(task) for task in tasks}, results, configs, logs)

    return pack
