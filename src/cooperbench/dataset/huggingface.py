"""The Hugging Face Hub: which commit a revision is, what is in it, and its files.

The only module that imports huggingface_hub, which is an extra. What it, the network or the disk can do
wrong leaves here as a UserError or InfraError of one line. What becomes of the files is download's business.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.text import names_for_error, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NOTES_FOLDER = Path(".cache", "huggingface")
"""Where the library keeps its own account of a folder that it fills."""
AGAIN = "run the same command again to continue"
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


@dataclass(frozen=True)
class Snapshot:
    """A commit on the Hub, with each file's size and digest."""

    dataset_id: str
    revision: str
    sizes: Mapping[str, int]
    digests: Mapping[str, str]
    """`git:…` (a blob's id) or `sha256:…` by path."""


def look_up(dataset_id: str, revision: str | None, endpoint: str | None) -> Snapshot:
    """What a revision (a branch, tag or commit; None: the newest) is at this moment."""
    with _errors_explained(dataset_id, revision):
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        api = HfApi(endpoint=endpoint)
        commit = api.dataset_info(dataset_id, revision=revision, timeout=30).sha
        if not commit:
            raise InfraError(f"the Hub did not say which commit {dataset_id} is at; try again")
        listed = api.list_repo_tree(dataset_id, recursive=True, revision=commit, repo_type="dataset")
        files = [entry for entry in listed if isinstance(entry, RepoFile)]
    unsafe = [file.path for file in files if not _is_safe(file.path)]
    if unsafe:
        raise UserError(f"dataset {dataset_id} has files outside of itself: {names_for_error(unsafe)}")
    digests = {
        file.path: f"sha256:{file.lfs.sha256}" if file.lfs else f"git:{file.blob_id}" for file in files
    }
    return Snapshot(dataset_id, commit, {file.path: file.size for file in files}, digests)


def fetch(snapshot: Snapshot, folder: Path, endpoint: str | None) -> None:
    """Bring the files that are missing in a folder. It may still hold others, or stale ones: verify them."""
    with _errors_explained(snapshot.dataset_id, snapshot.revision):
        from huggingface_hub import snapshot_download

        snapshot_download(
            snapshot.dataset_id,
            repo_type="dataset",
            revision=snapshot.revision,
            local_dir=folder,
            endpoint=endpoint,
        )


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return inside and not path.is_relative_to(PurePosixPath(NOTES_FOLDER))


@contextmanager
def _errors_explained(dataset_id: str, revision: str | None) -> Iterator[None]:
    try:
        import huggingface_hub.errors
    except ImportError:
        raise UserError("downloading needs huggingface_hub: pip install 'cooperbench[hub]'") from None
    try:
        yield
    except CooperBenchError:
        raise
    # Which library speaks HTTP, and what it raises, has changed with each major version.
    except Exception as error:
        # A missing local file is what the library raises; why it is missing is the cause.
        hidden = isinstance(error, huggingface_hub.errors.LocalEntryNotFoundError)
        reason = error.__cause__ if hidden and error.__cause__ is not None else error
        raise _explained(reason, f"dataset {printable(dataset_id)}", revision) from error


def _explained(error: BaseException, what: str, revision: str | None) -> CooperBenchError:
    from huggingface_hub import errors

    if isinstance(error, errors.HFValidationError):
        return UserError(f"{what}: that is no name of a dataset, which looks like owner/name")
    if isinstance(error, errors.RevisionNotFoundError):
        return UserError(f"{what} has no revision {printable(str(revision))}; leave it out for the newest")
    if isinstance(error, errors.GatedRepoError):
        return UserError(f"{what} is given on request only: ask for access on its page, then set HF_TOKEN")
    if isinstance(error, errors.RepositoryNotFoundError):
        return UserError(
            f"{what} is not there, or not for you: check --dataset-id, set HF_TOKEN if it is private"
        )
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return UserError(f"{what}: the Hub refused it (status {status}); check HF_TOKEN and your proxy")
        return InfraError(f"{what}: the Hub answered with status {status}; {AGAIN}")
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return InfraError(f"{what} cannot be written: {error.strerror}; make room, then {AGAIN}")
    reason = printable(str(error).partition("\n")[0]) or type(error).__name__
    return InfraError(f"{what} cannot be downloaded: {reason}; check the network, then {AGAIN}")
