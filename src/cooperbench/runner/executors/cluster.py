"""Pairs in the jobs of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from cooperbench.errors import UserError
from cooperbench.runner.budget import Budget
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.base import Executor
from cooperbench.runner.executors.job import Event, JobOrder
from cooperbench.runner.plan import Plan


class Cluster(Protocol):
    """A service that runs jobs on other machines: Slurm, Ray or Google Batch.

    It knows nothing about pairs. Its methods are called from one thread.
    """

    name: str
    poll_seconds: float
    attempts: int
    """Jobs that a pair is given to until one of them ends with an outcome."""
    max_jobs: int
    """Maximum number of jobs in one submission. `RunConfig.max_jobs` of them run at once."""

    def check(self, paths: Sequence[Path]) -> None:
        """Raise UserError for what is wrong; find out which paths the nodes see (logs first)."""
        ...

    def sees(self, path: Path) -> bool:
        """Return whether a path is the same file or folder on every node."""
        ...

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:
        """Submit a batch of jobs; UserError if the cluster rejects it."""
        ...

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        """Yield the events since the last call, and `lost` for jobs that ended without `done`."""
        ...

    def hold(self, jobs: Collection[str]) -> None:
        """Start no more pairs of these jobs; pairs that run continue."""
        ...

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs and return when they have ended."""
        ...

    def close(self, *, keep_files: bool) -> None:
        """Disconnect after all jobs have ended; keep the output of jobs if it is needed."""
        ...


def batch_ids(jobs: Iterable[str]) -> set[str]:
    """Return the batches that these jobs were submitted with."""
    return {job.partition(".")[0] for job in jobs}


def parse_options(text: str | None, option: str) -> dict[str, str]:
    """Parse `a=1,b=2`. A part without `=` belongs to the value before it (`nodelist=n1,n2`)."""
    values: dict[str, str] = {}
    last_name = ""
    for part in (text or "").split(","):
        part = part.strip()
        if not part:
            continue
        name, equals, value = part.partition("=")
        if equals and name:
            last_name = name.lstrip("-")
            values[last_name] = value
        elif last_name:
            values[last_name] += f",{part}"
        else:
            raise UserError(
                f"{option} {text!r} is not a list of key=value, e.g. partition=cpu,mem=16G"
            )
    return values


def connect_cluster(config: RunConfig) -> Cluster:
    """Return the cluster of `--executor`, connected and checked."""
    cluster: Cluster
    if config.executor == "slurm":
        from cooperbench.runner.executors.slurm_cluster import SlurmCluster

        cluster = SlurmCluster(config)
    else:
        from cooperbench.runner.executors.ray_cluster import RayCluster

        cluster = RayCluster(config)
    try:
        cluster.check((config.logs_dir, config.dataset_dir, *config.user_files))
    except BaseException:
        cluster.close(keep_files=True)
        raise
    return cluster


class ClusterExecutor(Executor):
    """Runs and evaluates pairs in jobs of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def run(self, plans: Sequence[Plan], display: Display, budget: Budget) -> None:
        """Give pairs to jobs and collect their results."""
        from cooperbench.runner.executors.driver import Driver

        Driver(self._cluster, plans, display, budget).run()

    def close(self) -> None:
        """Disconnect."""
        self._cluster.close(keep_files=True)
