"""Objects in a bucket, as a task on a machine of somebody else's reaches them, and how that task begins.

Nothing but the standard library is needed, as nothing else is there yet: a task is started as `python3 -c` with the
text of this file, fetches the bundle with our package in it and goes on as `task`. Only a task uses this; the
harness has the client of its cloud.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import runpy
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile

ENDPOINT_VARIABLE = "COOPERBENCH_STORE_ENDPOINT"
BUCKET_VARIABLE = "COOPERBENCH_STORE_BUCKET"
PREFIX_VARIABLE = "COOPERBENCH_STORE_PREFIX"
BUNDLE_VARIABLE = "COOPERBENCH_BUNDLE"
REFERENCES = "references.json"
"""What is known of golden patches, beside the entries."""
_ENDPOINT = "https://storage.googleapis.com"
_TOKEN_URL = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105
_ATTEMPTS = 6
_CALL_SECONDS = 120
_PASSING = (408, 429, 500, 502, 503, 504)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def access_token() -> str:
    """Of the machine's service account, from the metadata server."""
    request = urllib.request.Request(_TOKEN_URL, headers={"Metadata-Flavor": "Google"})
    return str(json.loads(_ask(request))["access_token"])


class Store:
    """One folder of a bucket."""

    def __init__(self, endpoint: str, bucket: str, prefix: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._bucket = urllib.parse.quote(bucket, safe="")
        self._prefix = prefix

    @classmethod
    def from_environment(cls) -> Store:
        environment = os.environ
        return cls(
            environment.get(ENDPOINT_VARIABLE) or _ENDPOINT,
            environment[BUCKET_VARIABLE],
            environment[PREFIX_VARIABLE],
        )

    def get(self, name: str) -> bytes:
        path = f"/storage/v1/b/{self._bucket}/o/{self._quoted(name)}?alt=media"
        return _ask(self._request(path))

    def get_checked(self, folder: str, digest: str, ending: str) -> bytes:
        """What is named by its SHA-256, if that is what it is."""
        name = f"{folder}/{digest}{ending}"
        data = self.get(name)
        if sha256(data) != digest:
            raise ValueError(f"{name} is not what it was when it was sent")
        return data

    def put(self, name: str, data: bytes) -> None:
        """Whole or not at all; what was there is replaced."""
        path = f"/upload/storage/v1/b/{self._bucket}/o?uploadType=media&name={self._quoted(name)}"
        _ask(self._request(path, data))

    def _quoted(self, name: str) -> str:
        return urllib.parse.quote(f"{self._prefix}/{name}", safe="")

    def _request(self, path: str, data: bytes | None = None) -> urllib.request.Request:
        request = urllib.request.Request(self._endpoint + path, data=data)  # noqa: S310  # ours, from the job
        if data is not None:
            request.add_header("Content-Type", "application/octet-stream")
        # A token never goes over an open line: what has no TLS is a server for tests.
        if self._endpoint.startswith("https:"):
            request.add_header("Authorization", f"Bearer {access_token()}")
        return request


def _ask(request: urllib.request.Request) -> bytes:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(request, timeout=_CALL_SECONDS) as answer:  # noqa: S310
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code not in _PASSING or attempt == _ATTEMPTS:
                words = error.read(300).decode("utf-8", "replace")
                raise OSError(f"{request.full_url}: {error.code} {error.reason}: {words}") from error
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            if attempt == _ATTEMPTS:
                raise OSError(f"{request.full_url}: {error}") from error
        time.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable")


def begin() -> None:
    """Fetch the package and become it."""
    bundle = Store.from_environment().get_checked("bundle", os.environ[BUNDLE_VARIABLE], ".zip")
    with tempfile.TemporaryDirectory(prefix="cooperbench-bundle-") as folder:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            archive.extractall(folder)  # its digest is known
        sys.path.insert(0, folder)
        runpy.run_module("cooperbench.eval.batch.task", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    begin()
