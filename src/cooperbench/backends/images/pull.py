"""Pulling an image: its manifest from a registry, and those of its layers that are not there."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NamedTuple, Protocol

from cooperbench.backends.images.download import OnBytes, RemoteRepository
from cooperbench.backends.images.model import (
    ConfigDocument,
    ContainerConfig,
    DamagedImage,
    Descriptor,
    ImageReference,
    ManifestDocument,
    choose_manifest,
    digest_of,
    parse_config,
    parse_manifest,
    parse_reference,
)
from cooperbench.backends.images.registry import ManifestReply, clients_for
from cooperbench.backends.images.settings import ImageSettings
from cooperbench.backends.images.store import ImageStore, StoredImage
from cooperbench.retry import run_in_daemon_threads

_MAX_INDEXES = 3
"""Indexes that may lead to a manifest, one to the next."""


class Progress(Protocol):
    """An observer of downloads; called from several threads."""

    def start(self, image: str, total_bytes: int) -> None:
        """Begin with an image, of which so many bytes have to be downloaded."""

    def add_bytes(self, count: int) -> None:
        """Count bytes that have arrived; a negative number if some arrive again."""


class NoProgress:
    """A progress display that shows nothing."""

    def start(self, image: str, total_bytes: int) -> None:
        """Do nothing."""

    def add_bytes(self, count: int) -> None:
        """Do nothing."""


class RemoteImage(NamedTuple):
    """An image in a registry."""

    name: str
    digest: str
    """Digest that the name stands for: of the index, if there is one."""
    documents: list[ManifestReply]
    """The index, if there is one, and the manifest."""
    manifest: ManifestDocument
    config: ConfigDocument
    config_data: bytes


def pull_image(
    store: ImageStore, name: str, settings: ImageSettings, progress: Progress
) -> StoredImage:
    """Pull an image into the store; layers that are there are not downloaded again.

    Raises:
        NoSuchImage: The registry does not have it, or not for this machine.
        RegistryUnavailable: The registry cannot be reached, or refuses more requests for now.
        DamagedImage: What it sent is not the image.
        UserError: The disk is full, a setting is wrong, or the name is not valid.
    """
    reference = parse_reference(name)
    repository = repository_of(reference, settings)
    remote = find_remote(name, reference, repository)
    with store.adding():
        blobs = layers_of(remote)
        missing = [diff_id for diff_id in blobs if not store.has_layer(diff_id)]
        progress.start(name, sum(blobs[diff_id].size for diff_id in missing))

        def add(diff_id: str) -> None:
            _add_layer(store, repository, diff_id, blobs[diff_id], progress.add_bytes)

        # Not a pool: Python would wait for its threads when the user interrupts a download.
        futures, _ = run_in_daemon_threads(add, missing, settings.jobs, "layer")
        try:
            for future in futures.values():
                future.result()
        finally:
            for future in futures.values():
                future.cancel()
        image = StoredImage(
            name=name,
            digest=remote.digest,
            image_id=digest_of(remote.config_data),
            layers=remote.config.rootfs.diff_ids,
            config=remote.config.config or ContainerConfig(),
            architecture=remote.config.architecture,
            added_at=time.time(),
        )
        store.add_image(image)
    return image


def repository_of(reference: ImageReference, settings: ImageSettings) -> RemoteRepository:
    """Return the repository of an image, with the mirrors from the settings."""
    clients = clients_for(reference.registry, settings)
    return RemoteRepository(clients, reference.repository)


def find_remote(name: str, reference: ImageReference, repository: RemoteRepository) -> RemoteImage:
    """Read manifest and configuration of an image for this machine."""
    documents = [repository.get_manifest(reference.reference)]
    manifest = parse_manifest(documents[0].data, name)
    for _ in range(_MAX_INDEXES):
        if not manifest.manifests:
            break
        documents.append(repository.get_manifest(choose_manifest(manifest, name).digest))
        manifest = parse_manifest(documents[-1].data, name)
    if manifest.config is None:
        raise DamagedImage(f"{name} has a manifest without a configuration: it is not an image")
    config_data = repository.get_blob(manifest.config)
    config = parse_config(config_data, name)
    return RemoteImage(name, documents[0].digest, documents, manifest, config, config_data)


def layers_of(remote: RemoteImage) -> dict[str, Descriptor]:
    """Return the compressed layers of an image by the digests of the uncompressed ones."""
    blobs, diff_ids = remote.manifest.layers, remote.config.rootfs.diff_ids
    if len(blobs) != len(diff_ids):
        raise DamagedImage(
            f"{remote.name} has {len(blobs)} layers and the digests of {len(diff_ids)}"
        )
    return dict(zip(diff_ids, blobs, strict=True))


def _add_layer(
    store: ImageStore,
    repository: RemoteRepository,
    diff_id: str,
    blob: Descriptor,
    on_bytes: OnBytes,
) -> None:
    with store.layer_lock(diff_id):
        if store.has_layer(diff_id):
            on_bytes(blob.size)
            return
        path = store.download_path(blob.digest)
        repository.save_blob(blob, path, on_bytes)
        try:
            store.add_layer(diff_id, path)
        finally:
            with suppress(OSError):
                path.unlink()
