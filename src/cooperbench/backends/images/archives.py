"""Images as files: archives of `docker save` and OCI layouts, read and written.

For machines without a registry: `images export` writes an OCI layout as a tar file on one machine,
and `images import` reads it on another.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple, Protocol

from cooperbench.backends.images.download import RemoteRepository
from cooperbench.backends.images.model import (
    ContainerConfig,
    DamagedImage,
    Descriptor,
    ManifestDocument,
    choose_manifest,
    digest_of,
    parse_config,
    parse_manifest,
    parse_reference,
    parse_saved_images,
)
from cooperbench.backends.images.pull import (
    Progress,
    find_remote,
    layers_of,
    repository_of,
)
from cooperbench.backends.images.registry import MAX_MANIFEST_BYTES
from cooperbench.backends.images.settings import ImageSettings
from cooperbench.backends.images.store import ImageStore, StoredImage
from cooperbench.errors import UserError
from cooperbench.temporary import owned_prefix
from cooperbench.text import printable

_NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
"""Annotations with the name of an image in an OCI layout, the most complete one first."""
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_DOCKER_HUB_PREFIXES = ("docker.io/library/", "docker.io/")
_MAX_NESTED = 3


class ArchiveFiles(Protocol):
    """The files of an archive or a folder."""

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if there is none."""

    def copy(self, name: str, path: Path) -> None:
        """Copy a file; DamagedImage if there is none."""


class ArchivedImage(NamedTuple):
    """An image in an archive."""

    name: str
    """Empty if the archive does not say it."""
    digest: str
    config_data: bytes
    layer_names: Sequence[str]
    """Names of files, the lowest layer first."""


class _TarFiles:
    """The files of a tar file."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if there is none."""
        file = self._open(name)
        return None if file is None else file.read(MAX_MANIFEST_BYTES)

    def copy(self, name: str, path: Path) -> None:
        """Copy a file; DamagedImage if there is none."""
        file = self._open(name)
        if file is None:
            raise DamagedImage(f"the archive has no file {printable(name)[:100]}")
        with path.open("wb") as target:
            shutil.copyfileobj(file, target, 1 << 20)

    def _open(self, name: str) -> IO[bytes] | None:
        """Open a file, which some programs call ./NAME; None if there is none."""
        for member_name in (name, f"./{name}"):
            try:
                return self._archive.extractfile(member_name)
            except KeyError:
                continue
            except RecursionError:  # tarfile follows links
                message = f"the archive has links in a circle at {printable(name)[:100]}"
                raise DamagedImage(message) from None
        return None


class _FolderFiles:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if there is none."""
        path = self._folder / name
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(MAX_MANIFEST_BYTES)

    def copy(self, name: str, path: Path) -> None:
        """Copy a file; DamagedImage if there is none."""
        if not (self._folder / name).is_file():
            raise DamagedImage(f"{self._folder} has no file {printable(name)[:100]}")
        shutil.copyfile(self._folder / name, path)


def import_images(
    store: ImageStore, path: Path, name: str | None, progress: Progress
) -> list[StoredImage]:
    """Add the images of an archive (of `docker save`, or an OCI layout) or of a folder.

    Args:
        store: Where to add them.
        path: The archive, or the folder of an OCI layout.
        name: Name for the only image of an archive; by default the archive says it.
        progress: Notified of bytes.

    Raises:
        UserError: The file is not such an archive, or the name of an image is not known.
        DamagedImage: The archive is damaged.
    """
    try:
        with _open_files(path) as files, store.adding():
            images = _named(_find_images(files, str(path)), name, path)
            return [_import_image(store, files, image, progress) for image in images]
    except (tarfile.TarError, EOFError) as error:
        reason = printable(str(error).partition("\n")[0]).rstrip(" :")
        raise UserError(
            f"{path} is not an archive of images (docker save, or an OCI layout): {reason}"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be imported: {error.strerror or error}") from error


def export_images(
    names: Sequence[str], path: Path, settings: ImageSettings, progress: Progress
) -> None:
    """Write images from their registries to an archive, an OCI layout; it appears when complete."""
    try:
        with TemporaryDirectory(prefix=owned_prefix("export"), dir=path.parent) as folder:
            staging = Path(folder, "archive")
            with tarfile.open(staging, "w") as archive:
                export = _Export(archive, Path(folder), settings, progress)
                export.add_bytes("oci-layout", _LAYOUT)
                entries = [export.add_image(name) for name in names]
                index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": entries}
                export.add_bytes("index.json", json.dumps(index).encode())
            staging.rename(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


# Reading.


@contextmanager
def _open_files(path: Path) -> Iterator[ArchiveFiles]:
    if path.is_dir():
        yield _FolderFiles(path)
        return
    with tarfile.open(path, "r:*") as archive:
        yield _TarFiles(archive)


def _find_images(files: ArchiveFiles, source: str) -> list[ArchivedImage]:
    """Return the images of an archive that are for this machine."""
    index = files.read("index.json")
    docker_manifest = files.read("manifest.json")
    images: list[ArchivedImage] = []
    if index is not None:
        images = _find_oci_images(files, index, source)
    if docker_manifest is not None and not any(image.name for image in images):
        images = _find_docker_images(files, docker_manifest, source)
    if not images:
        raise UserError(
            f"{source} has no images: it is neither an archive of `docker save` nor an OCI layout"
        )
    return images


def _find_docker_images(files: ArchiveFiles, data: bytes, source: str) -> list[ArchivedImage]:
    images: list[ArchivedImage] = []
    for saved in parse_saved_images(data, source):
        config_data = files.read(saved.config) or b""
        digest = digest_of(config_data)
        images += [
            ArchivedImage(_short(name), digest, config_data, saved.layers)
            for name in saved.names or [""]
        ]
    return images


def _find_oci_images(files: ArchiveFiles, data: bytes, source: str) -> list[ArchivedImage]:
    images = []
    for descriptor in parse_manifest(data, source).manifests:
        name = ""
        for annotation in _NAME_ANNOTATIONS:
            name = name or descriptor.annotations.get(annotation, "")
        manifest = _read_manifest(files, descriptor, name or source)
        if manifest.config is None:
            continue
        config_data = _read_blob(files, manifest.config)
        layers = [_blob_name(layer.digest) for layer in manifest.layers]
        images.append(ArchivedImage(_short(name), descriptor.digest, config_data, layers))
    return images


def _read_manifest(files: ArchiveFiles, descriptor: Descriptor, name: str) -> ManifestDocument:
    """Return the manifest that a descriptor leads to, perhaps through indexes."""
    manifest = parse_manifest(_read_blob(files, descriptor), name)
    for _ in range(_MAX_NESTED):
        if manifest.manifests:
            descriptor = choose_manifest(manifest, name)
            manifest = parse_manifest(_read_blob(files, descriptor), name)
    return manifest


def _read_blob(files: ArchiveFiles, descriptor: Descriptor) -> bytes:
    data = files.read(_blob_name(descriptor.digest))
    if data is None or digest_of(data) != descriptor.digest:
        raise DamagedImage(f"the archive does not have {descriptor.digest}, or it is damaged")
    return data


def _named(images: list[ArchivedImage], name: str | None, path: Path) -> list[ArchivedImage]:
    """Return the images with the name that the user wants, or with their own."""
    if name is not None:
        parse_reference(name)
        if len({image.digest for image in images}) > 1:
            raise UserError(f"{path} has several images, so --name does not fit")
        return [images[0]._replace(name=name)]
    for image in images:
        # A tag alone is a name inside of a layout, but not one to run.
        if "/" not in image.name and ":" not in image.name:
            raise UserError(f"{path} does not name its image: use --name NAME")
        parse_reference(image.name)
    return images


def _import_image(
    store: ImageStore, files: ArchiveFiles, image: ArchivedImage, progress: Progress
) -> StoredImage:
    config = parse_config(image.config_data, image.name)
    diff_ids = config.rootfs.diff_ids
    if len(diff_ids) != len(image.layer_names):
        raise DamagedImage(f"{image.name} has {len(image.layer_names)} layers, not {len(diff_ids)}")
    progress.start(image.name, 0)
    for diff_id, layer_name in zip(diff_ids, image.layer_names, strict=True):
        with store.layer_lock(diff_id):
            if store.has_layer(diff_id):
                continue
            path = store.download_path(diff_id)
            try:
                files.copy(layer_name, path)
                store.add_layer(diff_id, path)
            finally:
                path.unlink(missing_ok=True)
    stored = StoredImage(
        name=image.name,
        digest=image.digest,
        image_id=digest_of(image.config_data),
        layers=diff_ids,
        config=config.config or ContainerConfig(),
        architecture=config.architecture,
        added_at=time.time(),
    )
    store.add_image(stored)
    return stored


def _short(name: str) -> str:
    """Return the name of an image without Docker Hub's, as tasks have it."""
    for prefix in _DOCKER_HUB_PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


# Writing.


class _Export:
    """An archive that is being written."""

    def __init__(
        self, archive: tarfile.TarFile, folder: Path, settings: ImageSettings, progress: Progress
    ) -> None:
        self._archive = archive
        self._folder = folder
        self._settings = settings
        self._progress = progress
        self._written: set[str] = set()
        """Digests of blobs that are in the archive."""

    def add_image(self, name: str) -> dict[str, Any]:
        """Write the blobs of an image that are not written yet; return its entry of the index."""
        reference = parse_reference(name)
        repository = repository_of(reference, self._settings)
        remote = find_remote(name, reference, repository)
        for data in (*[document.data for document in remote.documents], remote.config_data):
            if digest_of(data) not in self._written:
                self.add_bytes(_blob_name(digest_of(data)), data)
                self._written.add(digest_of(data))
        blobs = {blob.digest: blob for blob in layers_of(remote).values()}
        missing = [blob for digest, blob in blobs.items() if digest not in self._written]
        self._progress.start(name, sum(blob.size for blob in missing))
        for blob in missing:
            self._add_blob(repository, blob)
        top = remote.documents[0]
        return {
            "mediaType": top.media_type,
            "digest": top.digest,
            "size": len(top.data),
            "annotations": dict.fromkeys(_NAME_ANNOTATIONS, name),
        }

    def add_bytes(self, name: str, data: bytes) -> None:
        """Write a small file."""
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        entry.mtime = int(time.time())
        self._archive.addfile(entry, io.BytesIO(data))

    def _add_blob(self, repository: RemoteRepository, blob: Descriptor) -> None:
        path = self._folder / blob.digest
        repository.save_blob(blob, path, self._progress.add_bytes)
        self._archive.add(path, _blob_name(blob.digest))
        path.unlink()
        self._written.add(blob.digest)


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
