"""Batch and Cloud Storage, as the harness uses them: one job and its folder in a bucket, made, looked at and deleted.

What a job has used is derived from what Batch tells of its tasks. A machine counts from the moment when a task is
first given to it until its last one has ended; that it boots before and is deleted afterwards is not told.
Where Batch does not name machines, as many are counted as the tasks of each moment need.
"""

from __future__ import annotations

import math
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.backends.gcp.compute import client_options, host_filter, is_leftover
from cooperbench.backends.gcp.faults import NotFound, faults
from cooperbench.backends.gcp.settings import size_of
from cooperbench.errors import UserError
from cooperbench.sandbox.contract import ResourceUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from google.cloud.batch_v1 import Job, StatusEvent, Task

    from cooperbench.backends.gcp.settings import GcpSettings

Bucket = Any
"""Google's, which has no types."""
TOP_FOLDER = "cooperbench"
"""Of everything that we put into the bucket; each job has a folder of its name in it."""
BATCH_ENDPOINT_VARIABLE = "COOPERBENCH_GCP_BATCH_ENDPOINT"
STORAGE_ENDPOINT_VARIABLE = "STORAGE_EMULATOR_HOST"
"""The client's own variable."""
_KEPT_DAYS = 14
"""What a killed harness left is removed by the bucket itself after this."""
_THREADS = 8
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "DELETION_IN_PROGRESS")
_AT_WORK = ("ASSIGNED", "RUNNING")
_STATE_IN_WORDS = re.compile(r"\bto ([A-Z]+)\b")
_MACHINE_IN_WORDS = re.compile(r"\b(zones/[^/\s]+/instances/[A-Za-z0-9-]+)")


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


class BatchJobs:
    """Jobs of one region of a project; each is known by its whole name, `projects/…/locations/…/jobs/…`."""

    def __init__(self) -> None:
        with faults("connecting to Batch"):
            from google.cloud.batch_v1 import BatchServiceClient

            self._client = BatchServiceClient(**client_options(BATCH_ENDPOINT_VARIABLE), transport="rest")

    def create(self, name: str, job: Job) -> None:
        """One that is there already is ours: its name was made for it."""
        from google.api_core.exceptions import AlreadyExists
        from google.cloud.batch_v1 import CreateJobRequest

        parent, _, job_id = name.rpartition("/jobs/")
        with faults("submitting the Batch job"), suppress(AlreadyExists):
            self._client.create_job(CreateJobRequest(parent=parent, job_id=job_id, job=job), timeout=120)

    def look(self, name: str) -> JobView | None:
        """None for a job that is not there."""
        from google.cloud.batch_v1 import JobStatus

        job = self._get(name)
        if job is None:
            return None
        counts: dict[str, int] = {}
        for group in job.status.task_groups.values():
            for state, number in group.counts.items():
                counts[state] = counts.get(state, 0) + int(number)
        events = list(job.status.status_events)
        last = events[-1].description if events else ""
        return JobView(JobStatus.State(job.status.state).name, counts, last, job.uid)

    def failures(self, name: str) -> dict[int, str]:
        """The tasks that Batch gave up, by index, with its words on each."""
        from google.cloud.batch_v1 import TaskStatus

        found: dict[int, str] = {}
        for task in self._tasks(name):
            if task.status.state == TaskStatus.State.FAILED:
                events = list(task.status.status_events)
                words = events[-1].description if events else "the task failed"
                found[int(task.name.rpartition("/")[2])] = words
        return found

    def resource_use(self, name: str) -> ResourceUse | None:
        """Until now; None for a job that is not there."""
        job = self._get(name)
        return None if job is None else use_of(job, self._tasks(name), time.time())

    def delete(self, name: str) -> None:
        """Its machines go with it, if it still runs; that is not waited for."""
        from google.api_core import exceptions

        # Not there any more, or being deleted.
        gone = (exceptions.NotFound, exceptions.FailedPrecondition)
        with faults(f"deleting the Batch job {name.rpartition('/')[2]}"), suppress(*gone):
            self._client.delete_job(name=name, timeout=60)

    def list_ours(self, settings: GcpSettings) -> list[tuple[str, dict[str, str]]]:
        """The jobs that this user has made from this machine: name and labels."""
        from google.cloud.batch_v1 import ListJobsRequest

        request = ListJobsRequest(
            parent=f"projects/{settings.project}/locations/{settings.region}", filter=host_filter()
        )
        with faults("listing the Batch jobs"):
            jobs = list(self._client.list_jobs(request, timeout=60))
        return [(job.name, dict(job.labels)) for job in jobs]

    def _get(self, name: str) -> Job | None:
        try:
            with faults(f"asking about the Batch job {name.rpartition('/')[2]}"):
                return self._client.get_job(name=name, timeout=60)
        except NotFound:
            return None

    def _tasks(self, name: str) -> list[Task]:
        """None of a job that is not there."""
        try:
            with faults(f"asking about the tasks of {name.rpartition('/')[2]}"):
                return list(self._client.list_tasks(parent=f"{name}/taskGroups/group0", timeout=60))
        except NotFound:
            return []


def remove_leftover_jobs(settings: GcpSettings) -> list[str]:
    """Delete the jobs of this user's killed processes on this machine, and their objects; the jobs' names.

    For `cooperbench clean` alone: until then the same command can find its job again and take its results in.
    """
    jobs, bucket = BatchJobs(), storage_client(settings).bucket(settings.bucket)
    removed = []
    for name, labels in jobs.list_ours(settings):
        if is_leftover(labels):
            jobs.delete(name)
            job_id = name.rpartition("/")[2]
            Folder(bucket, f"{TOP_FOLDER}/{job_id}").remove()
            removed.append(job_id)
    return removed


def storage_endpoint() -> str:
    """Empty for Google's own."""
    return os.environ.get(STORAGE_ENDPOINT_VARIABLE, "")


def storage_client(settings: GcpSettings) -> Any:
    with faults("connecting to Cloud Storage"):
        credentials = client_options(STORAGE_ENDPOINT_VARIABLE).get("credentials")
        return import_module("google.cloud.storage").Client(project=settings.project, credentials=credentials)


def open_bucket(settings: GcpSettings) -> Bucket:
    """The bucket; made, with a rule that removes what is old, where there is none."""
    from google.api_core import exceptions

    client, name = storage_client(settings), settings.bucket
    with faults(f"opening the bucket {name}"):
        try:
            return client.get_bucket(name)
        except exceptions.Forbidden:
            # Who may use its objects need not be allowed to look at the bucket.
            return client.bucket(name)
        except exceptions.NotFound:
            pass
        bucket = client.bucket(name)
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.add_lifecycle_delete_rule(age=_KEPT_DAYS, matches_prefix=[f"{TOP_FOLDER}/"])
        try:
            return client.create_bucket(bucket, location=settings.region)
        except exceptions.Conflict:
            raise UserError(
                f"the bucket name {name!r} is somebody else's: choose another with cooperbench config gcp or GCP_BUCKET"
            ) from None


class Folder:
    """Everything under one prefix of a bucket."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix

    def put(self, objects: Mapping[str, bytes]) -> None:
        def upload(item: tuple[str, bytes]) -> None:
            name, data = item
            blob = self._bucket.blob(f"{self._prefix}/{name}")
            blob.upload_from_string(data, content_type="application/octet-stream", timeout=300)

        with faults("sending the inputs to Cloud Storage"), ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(upload, objects.items()))

    def versions(self, folder: str) -> dict[str, str]:
        """The objects in a folder by name, each with what changes when it is replaced."""
        start = f"{self._prefix}/{folder}/"
        with faults("looking for results in Cloud Storage"):
            blobs = list(self._bucket.client.list_blobs(self._bucket, prefix=start))
        return {
            blob.name.removeprefix(start): f"{blob.generation} {blob.updated} {blob.md5_hash}"
            for blob in blobs
        }

    def get(self, folder: str, names: Iterable[str]) -> dict[str, bytes]:
        """Those of them that are there."""
        from google.api_core import exceptions

        found: dict[str, bytes] = {}

        def download(name: str) -> None:
            blob = self._bucket.blob(f"{self._prefix}/{folder}/{name}")
            with suppress(exceptions.NotFound):
                found[name] = blob.download_as_bytes(timeout=300)

        with faults("fetching results from Cloud Storage"), ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(download, names))
        return found

    def remove(self) -> None:
        from google.api_core import exceptions

        def delete(name: str) -> None:
            with suppress(exceptions.NotFound):
                self._bucket.blob(name).delete()

        with faults("removing the job's objects from Cloud Storage"), ThreadPoolExecutor(_THREADS) as pool:
            blobs = self._bucket.client.list_blobs(self._bucket, prefix=f"{self._prefix}/")
            list(pool.map(delete, [blob.name for blob in blobs]))


class Attempt(NamedTuple):
    """One at a task, on one machine."""

    machine: str
    """Its zone and id; empty where Batch did not tell."""
    began: float
    ended: float


def use_of(job: Job, tasks: Iterable[Task], now: float) -> ResourceUse:
    """`now`: in seconds since 1970; until then whatever has not ended has run."""
    found = [attempt for task in tasks for attempt in attempts_of(task.status.status_events, now)]
    count, seconds = machine_time(found, tasks_on_a_machine(job))
    size = size_of(_machine_type(job))
    return ResourceUse(count, "machine", seconds, seconds * size.vcpus, seconds * size.gib)


def attempts_of(events: Sequence[StatusEvent], now: float) -> list[Attempt]:
    """Of one task. It may be given to several machines, one after the other."""
    found: list[Attempt] = []
    began, machine = 0.0, ""
    for event in sorted(events, key=_time_of):
        state = _state_of(event)
        named = _MACHINE_IN_WORDS.search(event.description)
        if state in _AT_WORK and not began:
            began, machine = _time_of(event), ""
        if named:
            machine = named[1]
        if began and state and state not in _AT_WORK:
            found.append(Attempt(machine, began, _time_of(event)))
            began = 0.0
    if began:
        found.append(Attempt(machine, began, max(began, now)))
    return found


def machine_time(attempts: Sequence[Attempt], on_a_machine: int) -> tuple[int, float]:
    """How many machines there were, about, and for how many seconds in all."""
    spans: dict[str, tuple[float, float]] = {}
    unnamed = [attempt for attempt in attempts if not attempt.machine]
    for name, began, ended in attempts:
        if name:
            first, last = spans.get(name, (began, ended))
            spans[name] = (min(first, began), max(last, ended))
    seconds = sum(last - first for first, last in spans.values())
    most, running, before = 0, 0, 0.0
    for moment, change in sorted([(one.began, 1) for one in unnamed] + [(one.ended, -1) for one in unnamed]):
        seconds += math.ceil(running / on_a_machine) * (moment - before)
        running, before = running + change, moment
        most = max(most, math.ceil(running / on_a_machine))
    return len(spans) + most, seconds


def tasks_on_a_machine(job: Job) -> int:
    """As Batch tells, else as many as there is room for."""
    told = [int(one.task_pack) for group in job.status.task_groups.values() for one in group.instances]
    if told and told[0] > 0:
        return told[0]
    size, need = size_of(_machine_type(job)), job.task_groups[0].task_spec.compute_resource
    if not (size.vcpus and size.gib and need.cpu_milli and need.memory_mib):
        return 1
    return max(1, min(int(size.vcpus * 1000 // need.cpu_milli), int(size.gib * 1024 // need.memory_mib)))


def _machine_type(job: Job) -> str:
    """Of the machines that the job got, else of those that it asked for."""
    got = [one.machine_type for group in job.status.task_groups.values() for one in group.instances]
    return (got[0] if got else "") or job.allocation_policy.instances[0].policy.machine_type


def _time_of(event: StatusEvent) -> float:
    """Google's type for times is a datetime with nanoseconds."""
    return float(event.event_time.timestamp()) if event.event_time else 0.0


def _state_of(event: StatusEvent) -> str:
    """Older events only say it in words."""
    if event.task_state:
        return str(event.task_state.name)
    words = _STATE_IN_WORDS.search(event.description)
    return words[1] if words else ""
