"""`cooperbench prepare --from`: installs a dataset that somebody shares, from a folder or a URL.

A dataset is installed only if every file has the checksum in dataset.json. Whoever publishes the
checksum of the dataset itself lets others verify that too: `URL#sha256=…`.
"""

from __future__ import annotations

import shutil
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, BinaryIO
from urllib.error import URLError
from urllib.parse import urlsplit

from cooperbench.dataset.discovery import DEMO, load_tasks
from cooperbench.dataset.download import MARKER, PreparedDataset, is_free, move_away
from cooperbench.dataset.manifest import DatasetManifest, read_manifest, verify_dataset
from cooperbench.errors import InfraError, UserError
from cooperbench.storage import read_json, utc_now, write_json
from cooperbench.temporary import owned_prefix, remove_tree
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 4 * 1024**3
"""Maximum size of an archive, and of the files in it."""
_TIMEOUT_SECONDS = 60
_BLOCK = 1024**2
_HASH_MARK = "#sha256="


@dataclass(frozen=True)
class _Source:
    """The location that a dataset comes from."""

    location: str
    """A folder, an archive or a URL."""
    sha256: str
    """The checksum that it must have; empty for any."""

    @property
    def is_url(self) -> bool:
        """Whether it has to be downloaded."""
        return urlsplit(self.location).scheme in ("http", "https")


def install_dataset(source: str, dest: Path, *, force: bool = False) -> PreparedDataset:
    """Install a shared dataset, unless it is there already.

    Args:
        source: A folder or a `.tar.gz` of `author pack`, or the URL of one; `#sha256=…` at its end
            is the checksum that the dataset must have.
        dest: The folder of the dataset.
        force: Replace another dataset; it is kept under another name.

    Raises:
        UserError: The source is not a dataset, or a checksum is wrong.
        InfraError: It cannot be downloaded.
    """
    if str(dest) == DEMO:
        raise UserError("`demo` is the dataset in the package; use another --dataset-dir")
    location, _, sha256 = source.partition(_HASH_MARK)
    origin = _Source(location, sha256.lower())
    dest = dest.expanduser().resolve()
    with _unpacked(origin) as folder:
        manifest = verify_dataset(folder)
        if origin.sha256 and origin.sha256 != manifest.sha256:
            raise UserError(
                f"{printable(location)} has the checksum {manifest.sha256}, not {origin.sha256}"
            )
        installed = _installed_sha256(dest)
        if installed == manifest.sha256 and not force:
            return _describe(dest, manifest)
        if installed is None and not is_free(dest) and not force:
            raise UserError(
                f"{dest} exists and was not installed from there; replace it with --force"
                " (it is kept), or use another --dataset-dir"
            )
        if installed not in (None, manifest.sha256) and not force:
            raise UserError(
                f"{dest} has another version, {str(installed)[:12]}; replace it with --force"
                " (it is kept)"
            )
        kept = _copy(folder, dest, manifest, printable(location))
    prepared = _describe(dest, manifest)
    return PreparedDataset(
        path=dest,
        dataset_id=prepared.dataset_id,
        revision=prepared.revision,
        tasks=prepared.tasks,
        pairs=prepared.pairs,
        downloaded=True,
        kept=kept,
    )


def _installed_sha256(dest: Path) -> str | None:
    """Return the checksum of the shared dataset in a folder; None if there is none."""
    marker = read_json(dest / MARKER, follow_link=True) or {}
    if not marker.get("packed"):
        return None
    try:
        return read_manifest(dest).sha256
    except UserError:
        return None


def _copy(folder: Path, dest: Path, manifest: DatasetManifest, location: str) -> Path | None:
    """Copy a verified dataset to its place; return the new path of what was there before."""
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(mkdtemp(prefix=f".{dest.name}.new-", dir=dest.parent))
    except OSError as error:
        raise UserError(
            f"cannot write to {dest.parent}: {error.strerror}; set --dataset-dir"
        ) from error
    try:
        shutil.copytree(folder, staging, dirs_exist_ok=True)
        for script in staging.rglob("*.sh"):
            script.chmod(0o755)
        verify_dataset(staging)
        origin = {"dataset_id": manifest.name, "revision": manifest.sha256, "packed": location}
        write_json(staging / MARKER, {**origin, "installed_at": utc_now()})
        staging.chmod(0o755)
        kept = move_away(dest)
        if dest.is_dir():
            dest.rmdir()
        staging.rename(dest)
    except BaseException:
        remove_tree(staging)
        raise
    return kept


def _describe(dest: Path, manifest: DatasetManifest) -> PreparedDataset:
    tasks = load_tasks(dest)
    pairs = sum(len(task.pairs) for task in tasks)
    return PreparedDataset(dest, manifest.name, manifest.sha256, len(tasks), pairs)


@contextmanager
def _unpacked(source: _Source) -> Iterator[Path]:
    """Yield the folder of a source, downloaded and unpacked if necessary."""
    path = Path(source.location).expanduser()
    if not source.is_url and path.is_dir():
        yield path.resolve()
        return
    if not source.is_url and not path.is_file():
        raise UserError(f"{printable(source.location)} is neither a folder, a file nor a URL")
    with TemporaryDirectory(prefix=owned_prefix("dataset")) as scratch:
        archive = path
        if source.is_url:
            archive = Path(scratch) / "dataset.tar.gz"
            _download(source.location, archive)
        folder = Path(scratch) / "dataset"
        folder.mkdir()
        _unpack(archive, folder, source.location)
        yield _top_folder(folder)


def _download(url: str, path: Path) -> None:
    from urllib.request import urlopen

    try:
        answer = urlopen(url, timeout=_TIMEOUT_SECONDS)  # noqa: S310  # checked by the caller
        with answer, path.open("wb") as file:
            _copy_bounded(answer, file, url)
    except URLError as error:
        raise InfraError(f"{printable(url)} cannot be downloaded: {error.reason}") from error
    except OSError as error:
        raise InfraError(f"{printable(url)} cannot be downloaded: {error}") from error


def _copy_bounded(source: BinaryIO, target: BinaryIO, name: str) -> None:
    size = 0
    while block := source.read(_BLOCK):
        size += len(block)
        if size > MAX_BYTES:
            raise UserError(f"{printable(name)} has more than {MAX_BYTES >> 30} GiB")
        target.write(block)


def _unpack(archive: Path, folder: Path, name: str) -> None:
    """Unpack the regular files of an archive; nothing is written outside the folder."""
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                is_safe = not path.is_absolute() and ".." not in path.parts
                if member.isdir() and is_safe:
                    continue
                if not member.isfile() or not is_safe:
                    raise UserError(
                        f"{printable(name)} contains {printable(member.name)}, which is not a"
                        " regular file inside it"
                    )
                total += member.size
                if total > MAX_BYTES:
                    raise UserError(f"{printable(name)} has more than {MAX_BYTES >> 30} GiB")
                content = tar.extractfile(member)
                assert content
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{printable(name)} is not a .tar.gz of a dataset: {error}") from error


def _top_folder(folder: Path) -> Path:
    """Return the folder in an archive that has the dataset: its top, or the only folder there."""
    entries = list(folder.iterdir())
    if len(entries) == 1 and entries[0].is_dir():
        return entries[0]
    return folder
