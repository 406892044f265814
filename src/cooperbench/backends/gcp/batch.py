"""Batch jobs and their folders in a Cloud Storage bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.google_clients import (
    BATCH_ENDPOINT_VARIABLE,
    CALL_SECONDS,
    STORAGE_ENDPOINT_VARIABLE,
    call,
    client_options,
    host_filter,
    retry_policy,
    translated_errors,
)
from cooperbench.backends.ownership import is_leftover
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.cloud.batch_v1 import BatchServiceClient, Job

    from cooperbench.backends.gcp.settings import GcpSettings

Bucket = Any
"""A bucket object of Google's client, which has no type annotations."""
TOP_FOLDER = "cooperbench"
"""Folder of all our objects in the bucket; each job has a subfolder with its name."""
_KEPT_DAYS = 14
"""Age at which the bucket removes objects that a killed harness has left."""
_THREADS = 8
_OBJECT_SECONDS = 300


class BatchJob:
    """One job (`projects/…/locations/…/jobs/…`) and the objects in its folder."""

    def __init__(self, client: BatchServiceClient, bucket: Bucket, name: str) -> None:
        self._client = client
        self._bucket = bucket
        self._name = name
        self.job_id = name.rpartition("/")[2]
        self._prefix = f"{TOP_FOLDER}/{self.job_id}/"

    def create(self, job: Job) -> None:
        """Submit the job. If it exists, an earlier attempt has submitted it: names are unique."""
        from google.api_core.exceptions import AlreadyExists

        parent = self._name.partition("/jobs/")[0]
        with translated_errors("submitting the Batch job"), suppress(AlreadyExists):
            self._client.create_job(
                parent=parent,
                job_id=self.job_id,
                job=job,
                timeout=CALL_SECONDS,
                retry=retry_policy(),
            )

    def get(self) -> Job | None:
        """Return the job; None if it does not exist."""
        return call(f"reading the Batch job {self.job_id}", self._client.get_job, name=self._name)

    def failures(self) -> dict[int, str]:
        """Return Batch's messages about failed tasks, by task index."""
        from google.cloud.batch_v1 import TaskStatus

        def _list_tasks(**options: Any) -> list[Any]:
            parent = f"{self._name}/taskGroups/group0"
            return list(self._client.list_tasks(parent=parent, **options))

        failures = {}
        for task in call(f"listing the tasks of {self.job_id}", _list_tasks) or []:
            if task.status.state == TaskStatus.State.FAILED and task.status.status_events:
                index = int(task.name.rpartition("/")[2])
                failures[index] = task.status.status_events[-1].description
        return failures

    def remove(self) -> None:
        """Delete the job, with its machines, without waiting for it; and its objects."""
        from google.api_core import exceptions

        # The job does not exist any more, or is being deleted.
        deleted = (exceptions.NotFound, exceptions.FailedPrecondition)
        with translated_errors(f"deleting the Batch job {self.job_id}"), suppress(*deleted):
            self._client.delete_job(name=self._name, timeout=CALL_SECONDS, retry=retry_policy())

        def _delete(name: str) -> None:
            with suppress(exceptions.NotFound):
                self._bucket.blob(self._prefix + name).delete()

        self._for_each("removing the job's objects from Cloud Storage", _delete, self.objects())

    def put(self, objects: Mapping[str, bytes]) -> None:
        """Upload objects by name."""

        def _upload(name: str) -> None:
            blob = self._bucket.blob(self._prefix + name)
            kind = "application/octet-stream"
            blob.upload_from_string(objects[name], content_type=kind, timeout=_OBJECT_SECONDS)

        self._for_each("sending the inputs to Cloud Storage", _upload, objects)

    def objects(self, start: str = "") -> list[str]:
        """Return the names of all objects that start with a prefix."""
        with translated_errors("looking for results in Cloud Storage"):
            blobs = list(self._bucket.client.list_blobs(self._bucket, prefix=self._prefix + start))
        return [blob.name.removeprefix(self._prefix) for blob in blobs]

    def fetch(self, names: Iterable[str]) -> dict[str, bytes]:
        """Download objects by name."""

        def _download(name: str) -> tuple[str, bytes]:
            return name, self._bucket.blob(self._prefix + name).download_as_bytes(
                timeout=_OBJECT_SECONDS
            )

        return dict(self._for_each("fetching results from Cloud Storage", _download, names))

    def _for_each(
        self, doing: str, action: Callable[[str], Any], names: Iterable[str]
    ) -> list[Any]:
        """Run an action for each name, several at once, and return the results."""
        with translated_errors(doing), ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(action, names))


def batch_client() -> BatchServiceClient:
    """Return a client of Batch."""
    with translated_errors("connecting to Batch"):
        from google.cloud.batch_v1 import BatchServiceClient

        return BatchServiceClient(**client_options(BATCH_ENDPOINT_VARIABLE), transport="rest")


def list_jobs(client: BatchServiceClient, settings: GcpSettings) -> list[Job]:
    """Return the jobs of this user from this machine, in the region of the settings."""
    from google.cloud.batch_v1 import ListJobsRequest

    parent = f"projects/{settings.project}/locations/{settings.region}"
    with translated_errors("listing the Batch jobs"):
        request = ListJobsRequest(parent=parent, filter=host_filter())
        return list(client.list_jobs(request, timeout=CALL_SECONDS, retry=retry_policy()))


def remove_leftover_jobs(settings: GcpSettings) -> list[str]:
    """Delete the jobs of dead processes and return their names.

    Only `cooperbench clean` does this, because a rerun of the same command finds its job again.
    """
    client = batch_client()
    bucket = storage_client(settings).bucket(settings.bucket)
    removed = []
    for job in list_jobs(client, settings):
        if is_leftover(job.labels):
            batch_job = BatchJob(client, bucket, job.name)
            batch_job.remove()
            removed.append(batch_job.job_id)
    return removed


def storage_client(settings: GcpSettings) -> Any:
    """Return a client of Cloud Storage."""
    with translated_errors("connecting to Cloud Storage"):
        credentials = client_options(STORAGE_ENDPOINT_VARIABLE).get("credentials")
        return import_module("google.cloud.storage").Client(
            project=settings.project, credentials=credentials
        )


def open_bucket(settings: GcpSettings, *, create: bool = True) -> Bucket:
    """Return the bucket; if it does not exist, create it with a rule that removes old objects.

    Returns None if it does not exist and `create` is False.
    """
    from google.api_core import exceptions

    client = storage_client(settings)
    name = settings.bucket
    with translated_errors(f"opening the bucket {name}"):
        try:
            existing = client.lookup_bucket(name)
        except exceptions.Forbidden:
            # The account may be allowed to use objects but not to read the bucket's metadata.
            existing = client.bucket(name)
        if existing is not None or not create:
            return existing
        bucket = client.bucket(name)
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.add_lifecycle_delete_rule(age=_KEPT_DAYS, matches_prefix=[f"{TOP_FOLDER}/"])
        try:
            return client.create_bucket(bucket, location=settings.region)
        except exceptions.Conflict:
            raise UserError(
                f"the bucket name {name!r} is taken:"
                " choose another one with cooperbench config gcp or GCP_BUCKET"
            ) from None
