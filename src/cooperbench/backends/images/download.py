"""Downloading blobs to files: checked against their digests, continued after an interruption."""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

from cooperbench.backends.images.model import DamagedImage, Descriptor, NoSuchImage
from cooperbench.backends.images.registry import (
    MAX_ATTEMPTS,
    NETWORK_ERRORS,
    ManifestReply,
    RegistryClient,
    RegistryUnavailable,
)
from cooperbench.backends.images.unpack import DiskFull, disk_full_message
from cooperbench.retry import backoff_seconds

T = TypeVar("T")
OnBytes = Callable[[int], None]
"""Called with the number of bytes that have arrived since the last call."""
_CHUNK_BYTES = 1 << 18


class RemoteRepository:
    """A repository of images, at a registry and perhaps at mirrors of it, which come first."""

    def __init__(self, clients: Sequence[RegistryClient], repository: str) -> None:
        self._clients = clients
        self._repository = repository

    def get_manifest(self, reference: str) -> ManifestReply:
        """Return a manifest or index from the first server that has it."""
        return self._ask(lambda client: client.get_manifest(self._repository, reference))

    def get_blob(self, blob: Descriptor) -> bytes:
        """Return a small blob from the first server that has it."""
        return self._ask(lambda client: client.get_blob(self._repository, blob))

    def save_blob(self, blob: Descriptor, path: Path, on_bytes: OnBytes) -> None:
        """Download a blob to a file; what is there of it already is not downloaded again.

        Raises:
            DamagedImage: What was downloaded has another digest. Nothing of it is kept.
            DiskFull: There is no room for it. Nothing of it is kept.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._ask(lambda client: self._download(client, blob, path, on_bytes))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                with suppress(OSError):
                    path.unlink()
                raise DiskFull(disk_full_message(path)) from None
            raise RegistryUnavailable(f"cannot save a download: {error}") from error

    def _ask(self, action: Callable[[RegistryClient], T]) -> T:
        """Return the result of the first server that can do it; raise the last one's error."""
        *mirrors, registry = self._clients
        for client in mirrors:
            with suppress(NoSuchImage, RegistryUnavailable, DamagedImage):
                return action(client)
        return action(registry)

    def _download(
        self, client: RegistryClient, blob: Descriptor, path: Path, on_bytes: OnBytes
    ) -> None:
        with path.open("ab+") as file:
            download = _Download(client, self._repository, blob, file, on_bytes)
            if not download.is_complete():
                download.run()
            if download.digest != blob.digest:
                path.unlink()
                raise DamagedImage(
                    f"{client.registry} sent a layer that does not match its digest {blob.digest};"
                    " it was damaged on the way or at the registry"
                )


class _Download:
    """One blob on its way into a file."""

    def __init__(
        self,
        client: RegistryClient,
        repository: str,
        blob: Descriptor,
        file: IO[bytes],
        on_bytes: OnBytes,
    ) -> None:
        """Read what is in the file already."""
        self._client = client
        self._repository = repository
        self._blob = blob
        self._file = file
        self._on_bytes = on_bytes
        self._hash = hashlib.sha256()
        self._position = 0
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            self._count(chunk)

    @property
    def digest(self) -> str:
        """The digest of what has arrived."""
        return f"sha256:{self._hash.hexdigest()}"

    def is_complete(self) -> bool:
        """Return whether everything has arrived, or even more."""
        return self._position >= self._blob.size

    def run(self) -> None:
        """Download what is missing; after a broken connection, continue on another one."""
        attempt = 0
        while not self.is_complete():
            position = self._position
            problem: BaseException = ConnectionError("the connection ended too early")
            try:
                self._receive()
            except NETWORK_ERRORS as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                problem = error
            if self.is_complete():
                return
            attempt = 1 if self._position > position else attempt + 1
            if attempt > MAX_ATTEMPTS:
                raise RegistryUnavailable(
                    f"{self._client.registry} does not send the layer {self._blob.digest}:"
                    f" {problem}"
                )
            time.sleep(backoff_seconds(attempt))

    def _receive(self) -> None:
        reply = self._client.open_blob(self._repository, self._blob.digest, self._position)
        with reply.response as response:
            if reply.offset != self._position:
                self._start_again()
            while not self.is_complete():
                chunk = response.read(_CHUNK_BYTES)
                if not chunk:
                    return
                self._file.write(chunk)
                self._count(chunk)

    def _count(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._position += len(chunk)
        self._on_bytes(len(chunk))

    def _start_again(self) -> None:
        self._file.truncate(0)
        self._on_bytes(-self._position)
        self._hash = hashlib.sha256()
        self._position = 0
