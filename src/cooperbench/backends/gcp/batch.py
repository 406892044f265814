"""Batch and Cloud Storage, as the harness uses them: a job and its folder in a bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.google_clients import (
    BATCH_ENDPOINT_VARIABLE,
    CALL_SECONDS,
    STORAGE_ENDPOINT_VARIABLE,
    ask,
    client_options,
    faults,
    host_filter,
    patient,
)
from cooperbench.backends.ownership import is_leftover
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.cloud.batch_v1 import BatchServiceClient, Job

    from cooperbench.backends.gcp.settings import GcpSettings

Bucket = Any
"""Google's, which has no types."""
TOP_FOLDER = "cooperbench"
"""Of everything that we put into the bucket; each job has a folder of its name in it."""
_KEPT_DAYS = 14
"""What a killed harness left is removed by the bucket itself after this."""
_THREADS = 8
_OBJECT_SECONDS = 300


class BatchJob:
    """One job, known by its whole name, `projects/…/locations/…/jobs/…`, and the objects in its folder."""

    def __init__(self, client: BatchServiceClient, bucket: Bucket, name: str) -> None:
        self._client = client
        self._bucket = bucket
        self._name = name
        self.job_id = name.rpartition("/")[2]
        self._prefix = f"{TOP_FOLDER}/{self.job_id}/"

    def create(self, job: Job) -> None:
        """One that is there already is ours: its name was made for it."""
        from google.api_core.exceptions import AlreadyExists

        parent = self._name.partition("/jobs/")[0]
        arguments: dict[str, Any] = {"parent": parent, "job_id": self.job_id, "job": job}
        with faults("submitting the Batch job"), suppress(AlreadyExists):
            self._client.create_job(**arguments, timeout=CALL_SECONDS, retry=patient())

    def get(self) -> Job | None:
        """None for a job that is not there."""
        return ask(
            f"asking about the Batch job {self.job_id}", self._client.get_job, name=self._name
        )

    def failures(self) -> dict[int, str]:
        """The tasks that Batch gave up, by index, with its words on each; none of a job that is not there."""
        from google.cloud.batch_v1 import TaskStatus

        def list_tasks(**call: Any) -> list[Any]:
            return list(self._client.list_tasks(parent=f"{self._name}/taskGroups/group0", **call))

        return {
            int(task.name.rpartition("/")[2]): task.status.status_events[-1].description
            for task in ask(f"asking about the tasks of {self.job_id}", list_tasks) or []
            if task.status.state == TaskStatus.State.FAILED and task.status.status_events
        }

    def remove(self) -> None:
        """Its machines go with it, if it still runs, which is not waited for; and its objects."""
        from google.api_core import exceptions

        # Not there any more, or being deleted.
        gone = (exceptions.NotFound, exceptions.FailedPrecondition)
        with faults(f"deleting the Batch job {self.job_id}"), suppress(*gone):
            self._client.delete_job(name=self._name, timeout=CALL_SECONDS, retry=patient())

        def delete(name: str) -> None:
            with suppress(exceptions.NotFound):
                self._bucket.blob(self._prefix + name).delete()

        self._each("removing the job's objects from Cloud Storage", delete, self.objects())

    def put(self, objects: Mapping[str, bytes]) -> None:
        def upload(name: str) -> None:
            blob = self._bucket.blob(self._prefix + name)
            kind = "application/octet-stream"
            blob.upload_from_string(objects[name], content_type=kind, timeout=_OBJECT_SECONDS)

        self._each("sending the inputs to Cloud Storage", upload, objects)

    def objects(self, start: str = "") -> list[str]:
        """The names of those that start like this."""
        with faults("looking for results in Cloud Storage"):
            blobs = list(self._bucket.client.list_blobs(self._bucket, prefix=self._prefix + start))
        return [blob.name.removeprefix(self._prefix) for blob in blobs]

    def fetch(self, names: Iterable[str]) -> dict[str, bytes]:
        def download(name: str) -> tuple[str, bytes]:
            return name, self._bucket.blob(self._prefix + name).download_as_bytes(
                timeout=_OBJECT_SECONDS
            )

        return dict(self._each("fetching results from Cloud Storage", download, names))

    def _each(self, doing: str, action: Callable[[str], Any], names: Iterable[str]) -> list[Any]:
        with faults(doing), ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(action, names))


def batch_client() -> BatchServiceClient:
    with faults("connecting to Batch"):
        from google.cloud.batch_v1 import BatchServiceClient

        return BatchServiceClient(**client_options(BATCH_ENDPOINT_VARIABLE), transport="rest")


def list_jobs(client: BatchServiceClient, settings: GcpSettings) -> list[Job]:
    """Those that this user has made from this machine, in the region of the settings."""
    from google.cloud.batch_v1 import ListJobsRequest

    parent = f"projects/{settings.project}/locations/{settings.region}"
    with faults("listing the Batch jobs"):
        request = ListJobsRequest(parent=parent, filter=host_filter())
        return list(client.list_jobs(request, timeout=CALL_SECONDS, retry=patient()))


def remove_leftover_jobs(settings: GcpSettings) -> list[str]:
    """The names of those deleted. Until `cooperbench clean` calls this, the same command can find its job again."""
    client, bucket = batch_client(), storage_client(settings).bucket(settings.bucket)
    left = [job for job in list_jobs(client, settings) if is_leftover(job.labels)]
    jobs = [BatchJob(client, bucket, job.name) for job in left]
    for job in jobs:
        job.remove()
    return [job.job_id for job in jobs]


def storage_client(settings: GcpSettings) -> Any:
    with faults("connecting to Cloud Storage"):
        credentials = client_options(STORAGE_ENDPOINT_VARIABLE).get("credentials")
        return import_module("google.cloud.storage").Client(
            project=settings.project, credentials=credentials
        )


def open_bucket(settings: GcpSettings, *, make: bool = True) -> Bucket:
    """The bucket; made, with a rule that removes what is old, where there is none. None where it is not to be made."""
    from google.api_core import exceptions

    client, name = storage_client(settings), settings.bucket
    with faults(f"opening the bucket {name}"):
        try:
            found = client.lookup_bucket(name)
        except exceptions.Forbidden:
            # Who may use its objects need not be allowed to look at the bucket.
            found = client.bucket(name)
        if found is not None or not make:
            return found
        bucket = client.bucket(name)
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.add_lifecycle_delete_rule(age=_KEPT_DAYS, matches_prefix=[f"{TOP_FOLDER}/"])
        try:
            return client.create_bucket(bucket, location=settings.region)
        except exceptions.Conflict:
            raise UserError(
                f"the bucket name {name!r} is taken: choose another with cooperbench config gcp or GCP_BUCKET"
            ) from None
