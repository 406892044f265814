"""The public dataset, from the Hugging Face Hub to a folder: whole, verified, or not at all.

Files gather in a staging folder beside the destination, which a second run continues; only when every one has
the content that the Hub lists is the folder moved into place. An earlier folder is replaced by renaming, so
that none is lost when something fails, and is kept where it holds anything that was not downloaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.dataset.discovery import DEMO, load_tasks
from cooperbench.dataset.huggingface import AGAIN, NOTES_FOLDER, fetch, look_up
from cooperbench.errors import InfraError, UserError
from cooperbench.storage import read_json, utc_now, write_json
from cooperbench.text import names_for_error, plural, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cooperbench.dataset.huggingface import Snapshot

DEFAULT_DATASET_ID = "CodeConflict/cooperbench-dataset"
MARKER = ".cooperbench.json"
"""In the dataset's folder: where it came from, and what was downloaded."""


@dataclass(frozen=True)
class PreparedDataset:
    """A dataset in its place."""

    path: Path
    dataset_id: str
    revision: str
    """The commit on the Hub."""
    tasks: int
    pairs: int
    downloaded: bool
    """False: it was there already."""
    kept: Path | None = None
    """Where the folder is that was replaced, if it held anything that had not been downloaded."""


@dataclass(frozen=True)
class _Marker:
    dataset_id: str
    revision: str
    digests: Mapping[str, str]


def _silent(_line: str) -> None:
    pass


def prepare_dataset(
    dest: Path,
    *,
    dataset_id: str = DEFAULT_DATASET_ID,
    revision: str | None = None,
    force: bool = False,
    progress: Callable[[str], None] = _silent,
    endpoint: str | None = None,
) -> PreparedDataset:
    """Download a dataset unless it is there.

    `revision` is a branch, tag or commit; `endpoint` the Hub's address, $HF_ENDPOINT unless given.
    """
    dest = _destination(dest)
    if _previous(dest).is_dir():
        with _staging(dest):
            _settle(dest)
    marker = _read_marker(dest)
    if not force:
        _refuse_to_replace(dest, marker, dataset_id)
    wanted_again = force or marker is None or any(not (dest / name).is_file() for name in marker.digests)
    if (
        marker is not None
        and not wanted_again
        and (revision is None or _is_commit(marker.revision, revision))
    ):
        return _prepared(dest, marker, downloaded=False)
    with _staging(dest) as staging:
        snapshot = look_up(dataset_id, revision, endpoint)
        if marker is not None and not wanted_again and marker.revision == snapshot.revision:
            return _prepared(dest, marker, downloaded=False)
        _check_space(staging, snapshot)
        megabytes = sum(snapshot.sizes.values()) / 1e6
        files = plural(len(snapshot.sizes), "file")
        progress(f"downloading {dataset_id} at {snapshot.revision[:12]}: {files}, {megabytes:.1f} MB")
        fetch(snapshot, staging, endpoint)
        _verify(staging, snapshot)
        new_marker = _Marker(dataset_id, snapshot.revision, snapshot.digests)
        _prepared(staging, new_marker, downloaded=True)
        _write_marker(staging, new_marker)
        kept = _put_in_place(staging, dest)
    return _prepared(dest, new_marker, downloaded=True, kept=kept)


def _prepared(
    folder: Path, marker: _Marker, *, downloaded: bool, kept: Path | None = None
) -> PreparedDataset:
    try:
        tasks = load_tasks(folder)
    except UserError:
        raise UserError(
            f"dataset {printable(marker.dataset_id)} at {printable(marker.revision[:12])} holds no tasks;"
            " check --dataset-id and --revision"
        ) from None
    pairs = sum(len(task.pairs) for task in tasks)
    return PreparedDataset(folder, marker.dataset_id, marker.revision, len(tasks), pairs, downloaded, kept)


def _destination(dest: Path) -> Path:
    if str(dest) == DEMO:
        raise UserError(
            "`demo` is the dataset in the package and needs no download; name another --dataset-dir"
        )
    # A link stays a link: what it points to is replaced.
    folder = Path(os.path.realpath(dest.expanduser()))
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{dest} is not a folder; name another --dataset-dir")
    here = Path.cwd()
    if folder == here or folder in here.parents:
        raise UserError(f"{dest} holds the folder you are in; name one below it, e.g. --dataset-dir dataset")
    return folder


def _refuse_to_replace(dest: Path, marker: _Marker | None, dataset_id: str) -> None:
    if marker is not None and marker.dataset_id != dataset_id:
        raise UserError(
            f"{dest} holds {printable(marker.dataset_id)}, not {printable(dataset_id)};"
            " replace it with --force or name another --dataset-dir"
        )
    if marker is None and dest.is_dir() and any(dest.iterdir()):
        raise UserError(
            f"{dest} exists and was not made by `cooperbench prepare`;"
            " replace it with --force (it is kept beside) or name another --dataset-dir"
        )


def _is_commit(commit: str, revision: str) -> bool:
    """Whether a revision can only mean this commit."""
    return re.fullmatch(r"[0-9a-f]{7,40}", revision) is not None and commit.startswith(revision)


def _read_marker(folder: Path) -> _Marker | None:
    content = read_json(folder / MARKER) or {}
    dataset_id, revision, files = (content.get(key) for key in ("dataset_id", "revision", "files"))
    if not (isinstance(dataset_id, str) and isinstance(revision, str) and isinstance(files, dict)):
        return None
    return _Marker(dataset_id, revision, {str(name): str(digest) for name, digest in files.items()})


def _write_marker(folder: Path, marker: _Marker) -> None:
    content = {
        "dataset_id": marker.dataset_id,
        "revision": marker.revision,
        "downloaded_at": utc_now(),
        "files": dict(marker.digests),
    }
    write_json(folder / MARKER, content)


@contextmanager
def _staging(dest: Path) -> Iterator[Path]:
    """The folder where files gather, ours alone; it stays for the next run unless there is nothing in it."""
    staging = dest.with_name(f".{dest.name}.partial")
    try:
        staging.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(staging, os.O_RDONLY)
    except OSError as error:
        raise UserError(
            f"cannot write to {dest.parent}: {error.strerror}; name another --dataset-dir"
        ) from None
    try:
        _lock(descriptor, dest)
        yield staging
    finally:
        os.close(descriptor)
        with suppress(OSError):
            staging.rmdir()


def _lock(descriptor: int, dest: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another `cooperbench prepare` is downloading to {dest}; wait for it") from None


def _check_space(staging: Path, snapshot: Snapshot) -> None:
    needed = sum(size for name, size in snapshot.sizes.items() if not (staging / name).exists())
    free = shutil.disk_usage(staging).free
    if needed > free:
        raise InfraError(
            f"not enough space in {staging.parent}: {needed / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free;"
            " make room or name another --dataset-dir"
        )


def _verify(staging: Path, snapshot: Snapshot) -> None:
    """Leave in the folder exactly what the Hub lists.

    The library itself does not: it takes older files for new ones when the Hub is away, and leaves strangers.
    """
    wrong = [name for name, digest in snapshot.digests.items() if _digest(staging / name, digest) != digest]
    for name in wrong:
        (staging / name).unlink(missing_ok=True)
    if wrong:
        raise InfraError(
            f"{plural(len(wrong), 'file')} did not arrive whole: {names_for_error(wrong, limit=3)}; {AGAIN}"
        )
    for path in _files(staging):
        if str(path) not in snapshot.digests:
            (staging / path).unlink()
        elif path.suffix == ".sh":
            (staging / path).chmod(0o755)  # the Hub does not tell modes


def _digest(path: Path, like: str) -> str:
    """The digest of a file, of the same kind as another; empty where there is no such file."""
    kind = like.partition(":")[0]
    try:
        with path.open("rb") as file:
            if kind == "sha256":
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            size = os.fstat(file.fileno()).st_size
            blob = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            while chunk := file.read(1 << 20):
                blob.update(chunk)
            return f"git:{blob.hexdigest()}"
    except OSError:
        return ""


def _files(folder: Path) -> list[Path]:
    """All files below a folder, relative to it, but for our marker and the library's notes."""
    found = (Path(parent, name).relative_to(folder) for parent, _, names in os.walk(folder) for name in names)
    return [path for path in found if path != Path(MARKER) and not path.is_relative_to(NOTES_FOLDER)]


def _put_in_place(staging: Path, dest: Path) -> Path | None:
    """Swap the folders by renaming; gives back where the old one is, if it had to be kept."""
    previous = _previous(dest)
    if dest.exists():
        dest.rename(previous)
    try:
        staging.rename(dest)
    except OSError:
        _settle(dest)
        raise
    shutil.rmtree(dest / NOTES_FOLDER, ignore_errors=True)
    with suppress(OSError):
        (dest / NOTES_FOLDER).parent.rmdir()
    return _settle(dest)


def _previous(dest: Path) -> Path:
    return dest.with_name(f".{dest.name}.previous")


def _settle(dest: Path) -> Path | None:
    """Finish a swap, also one that was cut off: the old folder comes back, goes, or is kept."""
    previous = _previous(dest)
    if not previous.is_dir():
        return None
    if not dest.exists():
        previous.rename(dest)
        return None
    if not _has_own_files(previous):
        shutil.rmtree(previous, ignore_errors=True)
        return None
    places = (dest.with_name(f"{dest.name}.replaced-{number}") for number in count(1))
    kept = next(place for place in places if not place.exists())
    previous.rename(kept)
    return kept


def _has_own_files(folder: Path) -> bool:
    """Whether anything in it was not downloaded, or was changed since."""
    marker = _read_marker(folder)
    known = {} if marker is None else marker.digests
    return any(
        str(path) not in known or _digest(folder / path, known[str(path)]) != known[str(path)]
        for path in _files(folder)
    )
