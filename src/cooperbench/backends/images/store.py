"""The images of this machine's cache: a folder per layer, shared by all images that have it.

`$COOPERBENCH_CACHE_DIR/images/`
- `layers/<digest>/fs`: an unpacked layer; `layer.json` beside it
- `images/<hash of the name>.json`: an image, with the digests of its layers
- `tasks/<key>/`: what a backend has made of an image (see `backends/local/image_tasks.py`)
- `downloads/`: blobs that are being downloaded
- `locks/`: files that processes lock

A layer or an image appears by a rename, so that it is there whole or not at all. Whoever adds
layers holds a shared lock on the store, and whoever removes some an exclusive one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TypeVar

import msgspec

from cooperbench.backends.images.model import ContainerConfig, DamagedImage, is_digest
from cooperbench.backends.images.unpack import unpack_layer
from cooperbench.backends.ownership import locked
from cooperbench.errors import UserError
from cooperbench.storage import read_bytes, write_bytes
from cooperbench.temporary import is_abandoned, owned_prefix, remove_tree

_FORMAT = 1
"""Increase it when unpacked layers change: older ones are then unpacked again."""


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of the store."""

    name: str
    digest: str
    """Digest that its name had in the registry; without one, the image's id."""
    image_id: str
    """Digest of its configuration."""
    layers: list[str]
    """Digests of its uncompressed layers, the lowest first."""
    config: ContainerConfig
    architecture: str = ""
    added_at: float = 0.0
    format: int = _FORMAT


class PreparedImage(msgspec.Struct, frozen=True, kw_only=True):
    """The file `prepared.json` of what a backend has made of an image."""

    image: StoredImage


class LayerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The file `layer.json` of an unpacked layer."""

    size: int
    entries: int


class ImageStore:
    """The images in a folder of the cache. Processes and threads may use it at the same time."""

    def __init__(self, folder: Path, max_layer_bytes: int) -> None:
        """Keep the settings; nothing is created before something is added."""
        self.folder = folder
        self._max_layer_bytes = max_layer_bytes

    # Reading.

    def find(self, name: str) -> StoredImage | None:
        """Return the image with a name; None if the store does not have it completely."""
        image = _read_image(self._record_path(name))
        if image is None or not all(self.has_layer(diff_id) for diff_id in image.layers):
            return None
        return image

    def images(self) -> list[StoredImage]:
        """Return all images, by name."""
        paths = sorted((self.folder / "images").glob("*.json"))
        images = [image for image in map(_read_image, paths) if image is not None]
        return sorted(images, key=lambda image: image.name)

    def has_layer(self, diff_id: str) -> bool:
        """Return whether a layer is there."""
        return (self._layer(diff_id) / "layer.json").exists()

    def layer_folders(self, image: StoredImage) -> tuple[Path, ...]:
        """Return the folders of an image's layers, the top one first."""
        # An overlay cannot have a layer twice. The upper one hides the lower one anyway.
        top_first = dict.fromkeys(reversed(image.layers))
        return tuple(self._layer(diff_id) / "fs" for diff_id in top_first)

    def layer_size(self, diff_id: str) -> int:
        """Return the bytes of a layer's files."""
        record = _decode(read_bytes(self._layer(diff_id) / "layer.json"), LayerRecord)
        return 0 if record is None else record.size

    def last_use(self, image: StoredImage) -> float:
        """Return the time at which a sandbox of an image was last started or it was added."""
        try:
            return self.use_lock(image.name).stat().st_mtime
        except OSError:
            return image.added_at

    # Adding.

    def add_layer(self, diff_id: str, archive: Path) -> None:
        """Unpack a layer; nothing of it stays if that fails.

        Raises:
            DamagedImage: The archive is damaged, hostile or not the layer.
            UserError: There is no room, or the file system cannot hold layers.
        """
        layer = self._layer(diff_id)
        staging = Path(mkdtemp(prefix=owned_prefix("layer"), dir=self._made("layers")))
        try:
            unpacked = unpack_layer(archive, staging / "fs", self._max_layer_bytes)
            if unpacked.diff_id != diff_id:
                raise DamagedImage(
                    f"a layer has the digest {unpacked.diff_id} and should have {diff_id}"
                )
            record = LayerRecord(size=unpacked.size, entries=unpacked.entries)
            (staging / "layer.json").write_bytes(msgspec.json.encode(record))
            staging.rename(layer)
        finally:
            remove_tree(staging)

    def add_image(self, image: StoredImage) -> None:
        """Add an image whose layers are there, or replace the one with its name."""
        write_bytes(self._record_path(image.name), msgspec.json.encode(image))
        self.use_lock(image.name).touch()

    @contextmanager
    def layer_lock(self, diff_id: str) -> Iterator[None]:
        """Let one process and thread at a time add a layer."""
        with locked(self._made("locks") / f"layer-{_checked(diff_id)}"):
            yield

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Keep others from removing layers that no image refers to yet."""
        self.remove_leftovers()
        with shared_lock(self.lock):
            yield

    @property
    def lock(self) -> Path:
        """The file that processes lock while they add or remove images."""
        return self._made("locks") / "store"

    def download_path(self, digest: str) -> Path:
        """Return the path for a blob that is being downloaded."""
        return self._made("downloads") / _checked(digest)

    def temporary_folder(self) -> TemporaryDirectory[str]:
        """Return a folder for large files, as a context manager that removes it."""
        return TemporaryDirectory(prefix=owned_prefix("archive"), dir=self._made("downloads"))

    def use_lock(self, name: str) -> Path:
        """Return the file that processes lock (shared) while they use an image."""
        return self._made("locks") / f"image-{_hash(name)}"

    def task_folder(self, key: str) -> Path:
        """Return the folder for what is made of an image; see `backends/local`."""
        return self._made("tasks") / key

    # Removing.

    def layers(self) -> list[str]:
        """Return the digests of all layers."""
        suffix = f"-{_FORMAT}"
        names = [path.name for path in (self.folder / "layers").glob(f"*{suffix}")]
        digests = [f"sha256:{name.removesuffix(suffix)}" for name in names]
        return sorted(digest for digest in digests if is_digest(digest))

    def task_folders(self) -> list[Path]:
        """Return the folders of what was made of images."""
        folders = (self.folder / "tasks").glob("*")
        return sorted(path for path in folders if not path.name.startswith("cooperbench-"))

    def forget(self, name: str) -> None:
        """Remove an image; its layers stay."""
        self._record_path(name).unlink(missing_ok=True)

    def remove_layer(self, diff_id: str) -> None:
        """Remove a layer that no image has."""
        layer = self._layer(diff_id)
        (layer / "layer.json").unlink(missing_ok=True)
        remove_tree(layer)

    def remove_downloads(self) -> None:
        """Remove what was downloaded in part."""
        for path in (self.folder / "downloads").glob("*"):
            if path.is_file():
                path.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove what killed processes left half unpacked."""
        for kind in ("layers", "tasks", "downloads"):
            for folder in (self.folder / kind).glob("cooperbench-*"):
                if is_abandoned(folder):
                    remove_tree(folder)

    def _layer(self, diff_id: str) -> Path:
        return self.folder / "layers" / f"{_checked(diff_id)}-{_FORMAT}"

    def _record_path(self, name: str) -> Path:
        return self.folder / "images" / f"{_hash(name)}.json"

    def _made(self, name: str) -> Path:
        """Return a folder of the store, which only this user can enter; create it."""
        folder = self.folder / name
        try:
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                self.folder.chmod(0o700)
        except OSError as error:
            raise UserError(
                f"cannot write to the cache folder {self.folder}: {error.strerror}. "
                "Set COOPERBENCH_CACHE_DIR to another folder"
            ) from error
        return folder


@contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Hold a lock that several can have at a time, but not together with an exclusive one."""
    fd = lock_shared(path)
    try:
        yield
    finally:
        os.close(fd)


def lock_shared(path: Path) -> int:
    """Take a shared lock; closing the descriptor that is returned ends it."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def exclusive_lock(path: Path) -> Iterator[bool]:
    """Try to take a lock for oneself; yield whether nobody else has it."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        is_free = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_free = False
        yield is_free
    finally:
        os.close(fd)


def _read_image(path: Path) -> StoredImage | None:
    image = _decode(read_bytes(path), StoredImage)
    if image is None or image.format != _FORMAT:
        return None
    return image


def read_prepared(folder: Path) -> PreparedImage | None:
    """Return the record of what was made of an image; None if it is missing or damaged."""
    return _decode(read_bytes(folder / "prepared.json"), PreparedImage)


RecordT = TypeVar("RecordT", StoredImage, PreparedImage, LayerRecord)


def _decode(data: bytes | None, kind: type[RecordT]) -> RecordT | None:
    """Return a record; None if its file is missing or damaged, for example by a crash."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _checked(digest: str) -> str:
    """Return the hexadecimal part of a digest, which becomes a file name."""
    if not is_digest(digest):
        raise DamagedImage(f"{digest[:80]!r} is not a SHA-256 digest")
    return digest.removeprefix("sha256:")


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:24]
