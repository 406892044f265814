"""The folder of one Batch job in a bucket of Cloud Storage, as the harness uses it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.faults import faults
from cooperbench.errors import UserError
from cooperbench.eval.batch.job_record import TOP_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Client = Any
Bucket = Any
"""Google's, which have no types."""

THREADS = 8
KEPT_DAYS = 14
"""What a killed harness left is removed by the bucket itself after this."""


def open_bucket(client: Client, name: str, region: str) -> Bucket:
    """The bucket; made, with a rule that removes what is old, where there is none."""
    from google.api_core.exceptions import Conflict, Forbidden, NotFound

    with faults(f"opening the bucket {name}"):
        try:
            return client.get_bucket(name)
        except Forbidden:
            # Who may use its objects need not be allowed to look at the bucket.
            return client.bucket(name)
        except NotFound:
            pass
        bucket = client.bucket(name)
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.add_lifecycle_delete_rule(age=KEPT_DAYS, matches_prefix=[f"{TOP_FOLDER}/"])
        try:
            return client.create_bucket(bucket, location=region)
        except Conflict:
            raise UserError(
                f"the bucket name {name!r} is somebody else's: choose another with cooperbench config gcp or GCP_BUCKET"
            ) from None


class Folder:
    """Everything under one prefix."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix

    def put(self, objects: Mapping[str, bytes]) -> None:
        def upload(item: tuple[str, bytes]) -> None:
            name, data = item
            self._bucket.blob(f"{self._prefix}/{name}").upload_from_string(
                data, content_type="application/octet-stream", timeout=300
            )

        with faults("sending the inputs to Cloud Storage"), ThreadPoolExecutor(THREADS) as pool:
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
        from google.api_core.exceptions import NotFound

        found: dict[str, bytes] = {}

        def download(name: str) -> None:
            with suppress(NotFound):
                found[name] = self._bucket.blob(f"{self._prefix}/{folder}/{name}").download_as_bytes(
                    timeout=300
                )

        with faults("fetching results from Cloud Storage"), ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(download, names))
        return found

    def remove(self) -> None:
        from google.api_core.exceptions import NotFound

        def delete(name: str) -> None:
            with suppress(NotFound):
                self._bucket.blob(name).delete()

        with faults("removing the job's objects from Cloud Storage"), ThreadPoolExecutor(THREADS) as pool:
            blobs = self._bucket.client.list_blobs(self._bucket, prefix=f"{self._prefix}/")
            list(pool.map(delete, [blob.name for blob in blobs]))
