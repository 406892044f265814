"""Questions about the repository that tasks are made from: what a task cannot contain.

Git is run without the configuration of the repository's author, hooks and filters (`git`).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from cooperbench.author.split import find_git_dir, is_shallow, resolve_commit
from cooperbench.eval.base_commit import base_of_clone
from cooperbench.git import decode_path, git, run_git
from cooperbench.storage import read_bytes
from cooperbench.text import names_for_error, plural

_LFS_ATTRIBUTE = "filter=lfs"
_LFS_POINTER = "version https://git-lfs.github.com/spec/"
_VERSION = re.compile(r"[^\d]*(\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?)")


def describe_limits(repo: Path, commit: str) -> list[str]:
    """Return a note for each thing that a task made from this commit will lack."""
    git_dir = find_git_dir(repo)
    commit_id = resolve_commit(git_dir, commit)
    notes = []
    if _is_dirty(repo, git_dir):
        notes.append(
            f"{repo} has uncommitted changes, which are not in the task; commit them first if"
            " they matter"
        )
    if is_shallow(git_dir):
        notes.append(
            f"{repo} is a shallow clone: features of older commits need"
            " `git fetch --unshallow` first"
        )
    submodules = _submodules(git_dir, commit_id)
    if submodules:
        notes.append(
            f"the submodule {names_for_error(submodules)} is empty in the task; if tests need it,"
            " copy its files into the repository and commit them"
        )
    stored_elsewhere = _lfs_files(git_dir, commit_id)
    if stored_elsewhere:
        notes.append(
            f"the task has only pointers for {plural(len(stored_elsewhere), 'file')} of Git LFS"
            f" ({names_for_error(stored_elsewhere, limit=3)}); if tests need the content, commit"
            " it without LFS (`git lfs migrate export`)"
        )
    return notes


def _is_dirty(repo: Path, git_dir: Path) -> bool:
    """Whether tracked files differ from HEAD. Filters of the repository are not run."""
    if not (repo / ".git").exists():
        return False  # a bare repository
    top = ("-C", str(repo), "--work-tree=.")
    staged = (*top, "diff-index", "--cached", "--quiet", "--ignore-submodules", "HEAD")
    if run_git(*staged, git_dir=git_dir).returncode == 1:
        return True
    output = run_git(*top, "diff-files", "-z", "--ignore-submodules", git_dir=git_dir).stdout
    fields = output.split(b"\0")[:-1]
    return any(
        _has_other_content(repo, entry.decode(), decode_path(path))
        for entry, path in zip(fields[::2], fields[1::2], strict=True)
    )


def _has_other_content(repo: Path, entry: str, path: str) -> bool:
    """Whether a file differs from the index; git also lists files with just another time.

    Args:
        repo: The clone.
        entry: What `git diff-files` prints about the file.
        path: The file's path in the clone.
    """
    old_mode, new_mode, object_id, _, _ = entry.removeprefix(":").split(" ")
    file = repo / path
    if old_mode != new_mode or file.is_symlink():
        return True
    content = read_bytes(file) or b""
    algorithm = "sha256" if len(object_id) == 64 else "sha1"
    digest = hashlib.new(algorithm, b"blob %d\0" % len(content), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest() != object_id


def _submodules(git_dir: Path, commit: str) -> list[str]:
    entries = git("ls-tree", "-r", "-z", "--full-tree", commit, git_dir=git_dir)
    submodules = [entry for entry in entries.split(b"\0") if entry.startswith(b"160000 ")]
    return [entry.partition(b"\t")[2].decode("utf-8", "replace") for entry in submodules]


def _lfs_files(git_dir: Path, commit: str) -> list[str]:
    """Return the paths of the files that are pointers of Git LFS."""
    attributes = [
        path for path in base_of_clone(git_dir, commit).paths if path.endswith(".gitattributes")
    ]
    uses_lfs = False
    for path in attributes:
        content = git("cat-file", "blob", f"{commit}:{path}", git_dir=git_dir)
        uses_lfs = uses_lfs or _LFS_ATTRIBUTE.encode() in content
    if not uses_lfs:
        return []
    argv = ("grep", "-I", "-l", "-z", "-F", "-e", _LFS_POINTER, commit)
    output = run_git(*argv, git_dir=git_dir, bounded=True).stdout.decode("utf-8", "replace")
    names = [name.partition(":")[2] for name in output.split("\0") if name]
    return sorted(name for name in names if not name.endswith(".gitattributes"))


def find_version(repo: Path, commit: str) -> str:
    """Return the version in the newest tag before a commit; empty if there is none."""
    git_dir = find_git_dir(repo)
    argv = ("describe", "--tags", "--abbrev=0", resolve_commit(git_dir, commit))
    tag = git(*argv, git_dir=git_dir, check=False).decode("utf-8", "replace").strip()
    match = _VERSION.fullmatch(tag)
    return match[1] if match else ""
