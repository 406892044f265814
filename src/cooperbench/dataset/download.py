"""Downloads the public dataset from the Hugging Face Hub, with huggingface_hub (an extra).

Files are downloaded to a folder beside the destination, which a second call continues. A folder
that is replaced is kept under another name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path, PurePosixPath

from cooperbench.dataset.discovery import DEMO, load_tasks
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.storage import read_json, utc_now, write_json
from cooperbench.temporary import remove_tree
from cooperbench.text import names_for_error, plural, printable

DEFAULT_DATASET_ID = "CodeConflict/cooperbench-dataset"
_MIN_COMMIT_PREFIX = 7
_NOT_ACCESSIBLE = (401, 403, 404)
MARKER = ".cooperbench.json"
"""File in the dataset's folder with its origin."""


@dataclass(frozen=True)
class PreparedDataset:
    """A dataset on this machine."""

    path: Path
    dataset_id: str
    revision: str
    """The commit on the Hub."""
    tasks: int
    pairs: int
    downloaded: bool = False
    """False if it was on this machine already."""
    kept: Path | None = None
    """New path of the folder that was replaced."""


def prepare_dataset(  # noqa: PLR0913  # the documented signature
    dest: Path,
    *,
    dataset_id: str = DEFAULT_DATASET_ID,
    revision: str | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    endpoint: str | None = None,
) -> PreparedDataset:
    """Download a dataset, unless it is on this machine already.

    Args:
        dest: The folder of the dataset.
        dataset_id: The name of the dataset on the Hub, `owner/name`.
        revision: A branch, tag or commit; by default the newest commit.
        force: Download even if the dataset is there, and replace the folder.
        progress: Called with a line for people.
        endpoint: The URL of the Hub; by default $HF_ENDPOINT.
    """
    if str(dest) == DEMO:
        raise UserError("`demo` is the dataset in the package and needs no download")
    dest = dest.expanduser().resolve()  # a symbolic link stays: its target is replaced
    installed = None if force else _known_revision(dest, dataset_id)
    if installed and (revision is None or _is_commit_prefix(revision, installed)):
        return _describe(dest, dataset_id, installed)
    with _hub_errors(dataset_id):
        from huggingface_hub import HfApi

        api = HfApi(endpoint=endpoint)
        commit = str(api.dataset_info(dataset_id, revision=revision, timeout=30).sha)
        if installed == commit:
            return _describe(dest, dataset_id, installed)
        files = api.list_repo_files(dataset_id, repo_type="dataset", revision=commit)
    _check_file_names(files, dataset_id)
    progress(f"downloading {dataset_id} at {commit[:12]}: {plural(len(files), 'file')}")
    with _staging_folder(dest, commit) as staging:
        with _hub_errors(dataset_id):
            api.snapshot_download(
                dataset_id, repo_type="dataset", revision=commit, local_dir=staging
            )
        remove_tree(staging / ".cache")
        for script in staging.rglob("*.sh"):
            script.chmod(0o755)  # the Hub does not store modes
        prepared = _describe(staging, dataset_id, commit)
        origin = {"dataset_id": dataset_id, "revision": commit, "downloaded_at": utc_now()}
        write_json(staging / MARKER, origin)
        kept = move_away(dest)
        staging.rename(dest)
    return replace(prepared, path=dest, downloaded=True, kept=kept)


def _is_commit_prefix(revision: str, commit: str) -> bool:
    return len(revision) >= _MIN_COMMIT_PREFIX and commit.startswith(revision)


def _check_file_names(names: Iterable[str], dataset_id: str) -> None:
    """Raise UserError if a file would be written outside the dataset's folder."""
    unsafe = [name for name in names if name.startswith("/") or ".." in PurePosixPath(name).parts]
    if unsafe:
        raise UserError(
            f"dataset {dataset_id} has files outside its folder: {names_for_error(unsafe)}"
        )


def move_away(dest: Path) -> Path | None:
    """Rename an existing folder and return its new path; None if there is nothing to keep."""
    if is_free(dest):
        return None
    for number in count(1):
        kept = dest.with_name(f"{dest.name}.replaced-{number}")
        if not kept.exists():
            dest.rename(kept)
            return kept
    raise AssertionError("unreachable")


def is_free(dest: Path) -> bool:
    """Whether nothing is lost if a dataset is written there."""
    return not dest.exists() or (dest.is_dir() and not any(dest.iterdir()))


def _known_revision(dest: Path, dataset_id: str) -> str | None:
    """Return the commit of the dataset in a folder; UserError if it contains something else."""
    if is_free(dest):
        return None
    marker = read_json(dest / MARKER, follow_link=True) or {}
    if marker.get("dataset_id") == dataset_id:
        return str(marker.get("revision"))
    problem = "exists and was not made by `cooperbench prepare`"
    if "dataset_id" in marker:
        problem = f"contains {printable(str(marker['dataset_id']))}, not {printable(dataset_id)}"
    raise UserError(
        f"{dest} {problem}; replace it with --force (it is kept), or use another --dataset-dir"
    )


def _describe(folder: Path, dataset_id: str, revision: str) -> PreparedDataset:
    try:
        tasks = load_tasks(folder)
    except UserError:
        raise UserError(
            f"dataset {printable(dataset_id)} at {revision[:12]} contains no tasks;"
            " check --dataset-id and --revision"
        ) from None
    pairs = sum(len(task.pairs) for task in tasks)
    return PreparedDataset(folder, dataset_id, revision, len(tasks), pairs)


@contextmanager
def _staging_folder(dest: Path, commit: str) -> Iterator[Path]:
    """Lock and yield the folder for downloads of one commit; after a failure it stays.

    Each commit has its own folder. If the Hub is not reachable, huggingface_hub would otherwise use
    files of another commit.
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
    """Turn errors of the library, the network or the disk into one line."""
    if find_spec("huggingface_hub") is None:
        raise UserError("downloading needs huggingface_hub: pip install 'cooperbench[hub]'")
    dataset = f"dataset {printable(dataset_id)}"
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:  # each major version of the library raises other HTTP errors
        raise _download_error(dataset, error) from error


def _download_error(dataset: str, error: Exception) -> CooperBenchError:
    from huggingface_hub import errors

    reason: BaseException = error
    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:
        reason = error.__cause__
    status = reason.response.status_code if isinstance(reason, errors.HfHubHTTPError) else None
    if status in _NOT_ACCESSIBLE or isinstance(error, errors.HFValidationError):
        problem = f"status {status}" if status else "a name looks like owner/name"
        return UserError(
            f"{dataset} does not exist or is not accessible ({problem}):"
            " check --dataset-id, --revision and HF_TOKEN"
        )
    message = printable(str(reason).partition("\n")[0]) or type(reason).__name__
    return InfraError(
        f"{dataset} cannot be downloaded: {message};"
        " check network and disk, then rerun the same command"
    )
