"""The driver by itself: thousands of pairs, 500 jobs at once that only sleep. Prints a table; run it by hand.

.venv/bin/python benchmarks/scale.py
"""

from __future__ import annotations

import heapq
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cooperbench.models import Task
from cooperbench.runner.budget import Budget
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.driver import Driver
from cooperbench.runner.executors.job import work_key
from cooperbench.runner.plan import Plan, plan_pairs
from cooperbench.storage import write_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from cooperbench.runner.executors.job import Event, JobOrder

WORKERS = 500
JOB_SECONDS = 0.5


class SleepingEngine:
    """Jobs that end by themselves: a heap of the moments when they do."""

    name = "sleep"
    poll_seconds = 0.01
    attempts = 1
    max_jobs = WORKERS

    def __init__(self) -> None:
        self._running: list[tuple[float, str, str]] = []

    def check(self, seen: Sequence[Path]) -> None: ...

    def sees(self, path: Path) -> bool:
        return bool(path)

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:  # noqa: ARG002
        until = time.monotonic() + JOB_SECONDS
        for order in orders:
            heapq.heappush(self._running, (until, order.job, work_key(*order.work[0])))

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:  # noqa: ARG002
        while self._running and self._running[0][0] <= time.monotonic():
            _, job, key = heapq.heappop(self._running)
            record: dict[str, Any] = {"status": "completed", "overall_success": True, "cost": 0.01}
            yield job, {"kind": "started", "pair": key}
            yield job, {"kind": "ended", "pair": key, "record": record, "files": None}
            yield job, {"kind": "done"}

    def hold(self, jobs: Collection[str]) -> None: ...

    def cancel(self, jobs: Collection[str]) -> None: ...

    def close(self, *, keep_files: bool) -> None: ...


def measure(pairs: int, folder: Path) -> None:
    tasks = [Task("many_task", number, folder, tuple(range(1, 6))) for number in range(pairs // 10)]
    work = [pair for task in tasks for pair in task.pairs]
    config = RunConfig(
        run_name=f"r{pairs}", dataset_dir=folder, logs_dir=folder / "logs", setting="coop", agent="nop", model=None,
        backend="local", auto_eval=False, workers=WORKERS, executor="slurm",
    )  # fmt: skip
    for pair in work[::2]:
        write_json(config.paths.pair(pair, "coop").result, {"status": "completed"})
    started = time.process_time()
    plan = plan_pairs(config, work)
    planning = time.process_time() - started
    with Path("/dev/null").open("w") as nowhere:
        every = [Plan(config, work, to_run=tuple(work))]
        driver = Driver(SleepingEngine(), every, Display(nowhere), Budget(None))
        wall, started = time.monotonic(), time.process_time()
        driver.run()
    gathering, wall = time.process_time() - started, time.monotonic() - wall
    ideal = len(work) / WORKERS * JOB_SECONDS
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert len(plan.to_run) == len(work) // 2
    milliseconds = f"{1000 * planning / len(work):.3f} | {1000 * gathering / len(work):.3f}"
    print(
        f"| {len(work)} | {milliseconds} | {wall:.1f} ({ideal:.1f} if it cost nothing) | {memory:.0f} |"
    )


def main() -> None:
    print("| pairs | ms to plan one | ms to give out and gather one | seconds in all | MB, peak |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for pairs in (1_000, 3_000, 10_000):
            measure(pairs, Path(folder))


if __name__ == "__main__":
    main()
