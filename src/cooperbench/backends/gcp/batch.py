"""Batch and Cloud Storage, as the harness uses them: one job and its folder in a bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.api import (
    BATCH_ENDPOINT_VARIABLE,
    STORAGE_ENDPOINT_VARIABLE,
    NotFound,
    client_options,
    faults,
    host_filter,
    is_leftover,
    patient,
)
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.cloud.batch_v1 import Job, Task

    from cooperbench.backends.gcp.settings import GcpSettings

Bucket = Any
"""Google's, which has no types."""
TOP_FOLDER = "cooperbench"
"""Of everything that we put into the bucket; each job has a folder of its name in it."""
_KEPT_DAYS = 14
"""What a killed harness left is removed by the bucket itself after this."""
_THREADS = 8
_CALL_SECONDS = 60.0


class BatchJobs:
    """Jobs of one region of a project; each is known by its whole name, `projects/…/locations/…/jobs/…`."""

    def __init__(self) -> None:
        with faults("connecting to Batch"):
            from google.cloud.batch_v1 import BatchServiceClient

            self._client = BatchServiceClient(**client_options(BATCH_ENDPOINT_VARIABLE), transport="rest")
            self._patiently: dict[str, Any] = {"timeout": _CALL_SECONDS, "retry": patient()}

    def create(self, name: str, job: Job) -> None:
        """One that is there already is ours: its name was made for it."""
        from google.api_core.exceptions import AlreadyExists
        from google.cloud.batch_v1 import CreateJobRequest

        parent, _, job_id = name.rpartition("/jobs/")
        request = CreateJobRequest(parent=parent, job_id=job_id, job=job)
        with faults("submitting the Batch job"), suppress(AlreadyExists):
            self._client.create_job(request, **self._patiently)

    def get(self, name: str) -> Job | None:
        """None for a job that is not there."""
        try:
            with faults(f"asking about the Batch job {name.rpartition('/')[2]}"):
                return self._client.get_job(name=name, **self._patiently)
        except NotFound:
            return None

    def tasks(self, name: str) -> list[Task]:
        """None of a job that is not there."""
        try:
            with faults(f"asking about the tasks of {name.rpartition('/')[2]}"):
                return list(self._client.list_tasks(parent=f"{name}/taskGroups/group0", **self._patiently))
        except NotFound:
            return []

    def delete(self, name: str) -> None:
        """Its machines go with it, if it still runs; that is not waited for."""
        from google.api_core import exceptions

        # Not there any more, or being deleted.
        gone = (exceptions.NotFound, exceptions.FailedPrecondition)
        with faults(f"deleting the Batch job {name.rpartition('/')[2]}"), suppress(*gone):
            self._client.delete_job(name=name, **self._patiently)

    def list_ours(self, settings: GcpSettings) -> list[Job]:
        """The jobs that this user has made from this machine."""
        from google.cloud.batch_v1 import ListJobsRequest

        parent = f"projects/{settings.project}/locations/{settings.region}"
        with faults("listing the Batch jobs"):
            return list(
                self._client.list_jobs(
                    ListJobsRequest(parent=parent, filter=host_filter()), **self._patiently
                )
            )


def failures_of(tasks: Iterable[Task]) -> dict[int, str]:
    """The tasks that Batch gave up, by index, with its words on each."""
    from google.cloud.batch_v1 import TaskStatus

    return {
        int(task.name.rpartition("/")[2]): task.status.status_events[-1].description
        for task in tasks
        if task.status.state == TaskStatus.State.FAILED and task.status.status_events
    }


def remove_leftover_jobs(settings: GcpSettings) -> list[str]:
    """Delete the jobs of this user's killed processes on this machine, and their objects; the jobs' names.

    For `cooperbench clean` alone: until then the same command can find its job again and take its results in.
    """
    jobs, bucket = BatchJobs(), storage_client(settings).bucket(settings.bucket)
    removed = []
    for job in jobs.list_ours(settings):
        if is_leftover(job.labels):
            jobs.delete(job.name)
            job_id = job.name.rpartition("/")[2]
            Folder(bucket, f"{TOP_FOLDER}/{job_id}").remove()
            removed.append(job_id)
    return removed


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

    def names(self, start: str = "") -> list[str]:
        """Of the objects whose names start like this."""
        prefix = f"{self._prefix}/"
        with faults("looking for results in Cloud Storage"):
            blobs = list(self._bucket.client.list_blobs(self._bucket, prefix=prefix + start))
        return [blob.name.removeprefix(prefix) for blob in blobs]

    def get(self, names: Iterable[str]) -> dict[str, bytes]:
        def download(name: str) -> tuple[str, bytes]:
            return name, self._bucket.blob(f"{self._prefix}/{name}").download_as_bytes(timeout=300)

        with faults("fetching results from Cloud Storage"), ThreadPoolExecutor(_THREADS) as pool:
            return dict(pool.map(download, names))

    def remove(self) -> None:
        from google.api_core import exceptions

        def delete(name: str) -> None:
            with suppress(exceptions.NotFound):
                self._bucket.blob(f"{self._prefix}/{name}").delete()

        with faults("removing the job's objects from Cloud Storage"), ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(delete, self.names()))
