"""The public dataset, from the Hugging Face Hub to a folder, by huggingface_hub (an extra).

Files come to a folder beside the destination, which a second call continues; a folder that is replaced is kept.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path, PurePosixPath

from cooperbench.dataset.discovery import DEMO, load_tasks
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.storage import read_json, utc_now, write_json
from cooperbench.temporary import remove_tree
from cooperbench.text import names_for_error, plural, printable

DEFAULT_DATASET_ID = "CodeConflict/cooperbench-dataset"
MARKER = ".cooperbench.json"
"""In the dataset's folder: where it came from."""


@dataclass(frozen=True)
class PreparedDataset:
    path: Path
    dataset_id: str
    revision: str
    """The commit on the Hub."""
    tasks: int
    pairs: int
    downloaded: bool = False
    """False: it was there already."""
    kept: Path | None = None
    """Where the folder is that was replaced."""


def prepare_dataset(
    dest: Path,
    *,
    dataset_id: str = DEFAULT_DATASET_ID,
    revision: str | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    endpoint: str | None = None,
) -> PreparedDataset:
    """Unless it is there. `revision`: a branch, tag or commit; `endpoint`: of the Hub, else $HF_ENDPOINT."""
    if str(dest) == DEMO:
        raise UserError("`demo` is the dataset in the package and needs no download")
    dest = dest.expanduser().resolve()  # a link stays a link: what it points to is replaced
    known = None if force else _known_revision(dest, dataset_id)
    if known and (revision is None or (len(revision) >= 7 and known.startswith(revision))):
        return _prepared(dest, dataset_id, known)
    with _hub_errors(dataset_id):
        from huggingface_hub import HfApi

        api = HfApi(endpoint=endpoint)
        commit = str(api.dataset_info(dataset_id, revision=revision, timeout=30).sha)
        if known == commit:
            return _prepared(dest, dataset_id, known)
        files = api.list_repo_files(dataset_id, repo_type="dataset", revision=commit)
    if unsafe := [
        name for name in files if name.startswith("/") or ".." in PurePosixPath(name).parts
    ]:
        raise UserError(
            f"dataset {dataset_id} has files outside of itself: {names_for_error(unsafe)}"
        )
    progress(f"downloading {dataset_id} at {commit[:12]}: {plural(len(files), 'file')}")
    with _staging(dest, commit) as staging:
        with _hub_errors(dataset_id):
            api.snapshot_download(
                dataset_id, repo_type="dataset", revision=commit, local_dir=staging
            )
        remove_tree(staging / ".cache")
        for script in staging.rglob("*.sh"):
            script.chmod(0o755)  # the Hub does not tell modes
        prepared = _prepared(staging, dataset_id, commit)
        about = {"dataset_id": dataset_id, "revision": commit, "downloaded_at": utc_now()}
        write_json(staging / MARKER, about)
        kept = None
        if not _is_free(dest):
            places = (dest.with_name(f"{dest.name}.replaced-{number}") for number in count(1))
            kept = next(place for place in places if not place.exists())
            dest.rename(kept)
        staging.rename(dest)
    return replace(prepared, path=dest, downloaded=True, kept=kept)


def _is_free(dest: Path) -> bool:
    return not dest.exists() or (dest.is_dir() and not any(dest.iterdir()))


def _known_revision(dest: Path, dataset_id: str) -> str | None:
    """Which commit of the dataset is there; UserError where there is something else."""
    if _is_free(dest):
        return None
    marker = read_json(dest / MARKER) or {}
    if marker.get("dataset_id") == dataset_id:
        return str(marker.get("revision"))
    what = "exists and was not made by `cooperbench prepare`"
    if "dataset_id" in marker:
        what = f"holds {printable(str(marker['dataset_id']))}, not {printable(dataset_id)}"
    raise UserError(
        f"{dest} {what}; replace it with --force (it is kept) or name another --dataset-dir"
    )


def _prepared(folder: Path, dataset_id: str, revision: str) -> PreparedDataset:
    try:
        tasks = load_tasks(folder)
    except UserError:
        raise UserError(
            f"dataset {printable(dataset_id)} at {revision[:12]} holds no tasks;"
            " check --dataset-id and --revision"
        ) from None
    return PreparedDataset(
        folder, dataset_id, revision, len(tasks), sum(len(task.pairs) for task in tasks)
    )


@contextmanager
def _staging(dest: Path, commit: str) -> Iterator[Path]:
    """The folder for downloads of one commit, used by one process at a time; it stays for the next call if this fails.

    The library would take a file of another commit for the wanted one if the Hub is away.
    """
    partial = dest.with_name(f".{dest.name}.partial")
    staging = partial / commit
    try:
        staging.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_RDONLY)
    except OSError as error:
        raise UserError(
            f"cannot write to {dest.parent}: {error.strerror}; set --dataset-dir"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for other in partial.iterdir():
            if other != staging:
                remove_tree(other)
        yield staging
        partial.rmdir()
    except BlockingIOError:
        raise UserError(
            f"another `cooperbench prepare` is downloading to {dest}; wait for it"
        ) from None
    finally:
        os.close(descriptor)


@contextmanager
def _hub_errors(dataset_id: str) -> Iterator[None]:
    """What the library, the network or the disk can do wrong, as one line."""
    try:
        from huggingface_hub import errors
    except ImportError:
        raise UserError(
            "downloading needs huggingface_hub: pip install 'cooperbench[hub]'"
        ) from None
    what = f"dataset {printable(dataset_id)}"
    try:
        yield
    except CooperBenchError:
        raise
    # Which library speaks HTTP, and what it raises, has changed with each major version.
    except Exception as error:
        hidden = isinstance(error, errors.LocalEntryNotFoundError)
        reason = error.__cause__ or error if hidden else error
        status = reason.response.status_code if isinstance(reason, errors.HfHubHTTPError) else None
        if status in (401, 403, 404) or isinstance(error, errors.HFValidationError):
            why = f"status {status}" if status else "its name looks like owner/name"
            raise UserError(
                f"{what} is not there, or not for you ({why}): check --dataset-id, --revision and HF_TOKEN"
            ) from error
        said = printable(str(reason).partition("\n")[0]) or type(reason).__name__
        raise InfraError(
            f"{what} cannot be downloaded: {said}; check network and disk, then run the same command again"
        ) from error
