"""jobs.json and batch.json: the jobs of a run on a cluster, written before they are submitted."""

from __future__ import annotations

from typing import ClassVar

from cooperbench.records.files import Record


class JobsRecord(Record, kw_only=True, frozen=True):
    """The jobs that may exist, so that the next call finds those of a killed one."""

    SCHEMA: ClassVar[str] = "cooperbench.jobs/1"

    engine: str
    """`slurm`, `ray` or `batch`."""
    jobs: dict[str, list[str]]
    """The pairs of each job, by the job's name."""
