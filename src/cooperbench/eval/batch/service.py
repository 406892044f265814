"""Batch, as the harness uses it: making one job, looking at it, deleting it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.backends.gcp.faults import faults
from cooperbench.backends.gcp.labels import host_filter
from cooperbench.eval.batch.costs import cost_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.cloud.batch_v1 import BatchServiceClient, Job, Task

    from cooperbench.eval.batch.job_record import JobRecord
    from cooperbench.sandbox.contract import Estimate

_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "DELETION_IN_PROGRESS")


@dataclass(frozen=True)
class JobView:
    """A job at one moment."""

    state: str
    counts: Mapping[str, int]
    """How many tasks are in which state."""
    last_event: str
    uid: str

    @property
    def ended(self) -> bool:
        return self.state in _ENDED


class BatchService:
    def __init__(self, client: BatchServiceClient) -> None:
        self._client = client

    def create(self, record: JobRecord, job: Job) -> None:
        """One that is there already is ours: its name was made for it."""
        from google.api_core.exceptions import AlreadyExists
        from google.cloud.batch_v1 import CreateJobRequest

        parent = f"projects/{record.project}/locations/{record.region}"
        request = CreateJobRequest(parent=parent, job_id=record.job, job=job)
        with faults("submitting the Batch job"):
            try:
                self._client.create_job(request, timeout=120)
            except AlreadyExists:
                return

    def look(self, record: JobRecord) -> JobView | None:
        """None for a job that is not there."""
        from google.api_core.exceptions import NotFound
        from google.cloud.batch_v1 import JobStatus

        with faults(f"asking about the Batch job {record.job}"):
            try:
                job = self._client.get_job(name=_name(record), timeout=60)
            except NotFound:
                return None
        status = job.status
        counts: dict[str, int] = {}
        for group in status.task_groups.values():
            for state, number in group.counts.items():
                counts[state] = counts.get(state, 0) + int(number)
        events = list(status.status_events)
        last = events[-1].description if events else ""
        return JobView(JobStatus.State(status.state).name, counts, last, job.uid)

    def failures(self, record: JobRecord) -> dict[str, str]:
        """The tasks that Batch gave up, by entry, with its words on each."""
        from google.cloud.batch_v1 import TaskStatus

        found: dict[str, str] = {}
        for task in self._tasks(record):
            index = int(task.name.rpartition("/")[2])
            if task.status.state == TaskStatus.State.FAILED and index < len(record.tasks):
                events = list(task.status.status_events)
                found[record.entry_ids[index]] = events[-1].description if events else "the task failed"
        return found

    def cost(self, record: JobRecord) -> Estimate | None:
        """What a job has cost so far, roughly; None for one that is not there."""
        from google.api_core.exceptions import NotFound

        with faults(f"asking about the Batch job {record.job}"):
            try:
                job = self._client.get_job(name=_name(record), timeout=60)
            except NotFound:
                return None
        return cost_of(job, self._tasks(record), time.time())

    def _tasks(self, record: JobRecord) -> list[Task]:
        """None of a job that is not there."""
        from google.api_core.exceptions import NotFound

        with faults(f"asking about the tasks of {record.job}"):
            try:
                return list(self._client.list_tasks(parent=f"{_name(record)}/taskGroups/group0", timeout=60))
            except NotFound:
                return []

    def delete(self, record: JobRecord) -> None:
        """Its machines go with it, if it still runs; that is not waited for."""
        self.delete_named(_name(record))

    def delete_named(self, name: str) -> None:
        from google.api_core.exceptions import FailedPrecondition, NotFound

        with faults(f"deleting the Batch job {name.rpartition('/')[2]}"):
            try:
                self._client.delete_job(name=name, timeout=60)
            except (NotFound, FailedPrecondition):
                # Not there any more, or being deleted.
                return

    def list_ours(self, project: str, region: str) -> list[tuple[str, dict[str, str]]]:
        """The jobs that this user has made from this machine: name and labels."""
        from google.cloud.batch_v1 import ListJobsRequest

        parent = f"projects/{project}/locations/{region}"
        with faults("listing the Batch jobs"):
            jobs = list(
                self._client.list_jobs(ListJobsRequest(parent=parent, filter=host_filter()), timeout=60)
            )
        return [(job.name, dict(job.labels)) for job in jobs]


def _name(record: JobRecord) -> str:
    return f"projects/{record.project}/locations/{record.region}/jobs/{record.job}"
