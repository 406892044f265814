"""Two commits become one tree: `git merge-tree`, or with an old git a real merge in a temporary work tree.

The answers are the same. Both work on a bare git directory of ours, whose attributes outrank those in the
trees. Which commits are merged, and what follows from a conflict, is decided in `merge`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cooperbench.gitcall import GitError, decode_path, git, run_git

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cooperbench.gitcall import GitOutput

MERGE_TREE_VERSION = (2, 39)
"""The first git with `merge-tree --write-tree --stdin`."""
_ATTRIBUTES = "merge text eol crlf diff filter ident working-tree-encoding conflict-marker-size whitespace"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tlooseCompression = 0\n\tfsync = none\n"
_MEMORY = Path("/dev/shm")  # noqa: S108  # only as the parent of private folders
_PLENTY_BYTES = 512 * 1024 * 1024
_UNION = ("-c", "merge.default=union")


@dataclass(frozen=True)
class TreeMerge:
    """What git made of two trees."""

    tree: str | None
    """None on a conflict."""
    files: tuple[str, ...] = ()
    """The conflicting ones, sorted; a conflict about directories may have none."""
    message: str = ""
    """Git's first word about the conflict."""


def store_parent() -> Path | None:
    """Where to put a store: in memory where there is plenty, for it is many tiny files; None: the usual place."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return None
    space = os.statvfs(_MEMORY)
    return _MEMORY if space.f_bavail * space.f_frsize >= _PLENTY_BYTES else None


def make_git_dir(path: Path) -> Path:
    """By hand: `git init` costs a process and brings templates along. HEAD stays unborn."""
    for folder in ("objects/info", "refs/heads", "info"):
        (path / folder).mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/unborn\n")
    (path / "config").write_text(_CONFIG)
    # info/attributes outranks every .gitattributes: this makes them all unspecified again.
    (path / "info" / "attributes").write_text(f"* {' '.join('!' + name for name in _ATTRIBUTES.split())}\n")
    return path


def merge_commits(git_dir: Path, commits: Sequence[tuple[str, str]], *, union: bool) -> list[TreeMerge]:
    """Merge two commits at a time, all of them in one process."""
    request = "".join(f"{ours} {theirs}\n" for ours, theirs in commits).encode()
    command = (*(_UNION if union else ()), "merge-tree", "--write-tree", "--stdin")
    fields = iter(git(*command, git_dir=git_dir, stdin=request, own_repository=True).split(b"\0"))
    return [_parse_merge(fields, *both) for both in commits]


def merge_in_work_tree(git_dir: Path, commits: Sequence[tuple[str, str]], *, union: bool) -> list[TreeMerge]:
    """The same for a git that cannot merge trees."""
    return [_merge_in_work_tree(git_dir, *both, settings=_UNION if union else ()) for both in commits]


def _parse_merge(fields: Iterator[bytes], ours: str, theirs: str) -> TreeMerge:
    """One answer of `merge-tree --stdin`: status, tree, stages, messages; a blank field ends each list."""
    status, tree = int(next(fields)), next(fields).decode()
    if status == 1:
        next(fields)
        return TreeMerge(tree)
    if status != 0:
        raise GitError("merge-tree", status, f"cannot merge {ours} and {theirs}".encode())
    files = _conflicting_files(iter(lambda: next(fields), b""), ours, theirs)
    message = ""
    # Where submodules conflict, git puts an unframed word of advice in the blank's place.
    while (count := next(fields)).isdigit():
        for _ in range(int(count)):
            next(fields)
        kind, text = next(fields), next(fields)
        if kind.startswith(b"CONFLICT") and not message:
            message = text.decode("utf-8", "replace")
    return TreeMerge(None, files, _readable(message or "CONFLICT", ours, theirs))


def _merge_in_work_tree(store: Path, ours: str, theirs: str, settings: Sequence[str]) -> TreeMerge:
    with TemporaryDirectory(prefix="work-", dir=store) as folder:
        git_dir, work_tree = make_git_dir(Path(folder) / "git"), Path(folder) / "tree"
        work_tree.mkdir()
        places = {"GIT_WORK_TREE": str(work_tree), "GIT_OBJECT_DIRECTORY": str(store / "objects")}

        def here(*args: str) -> GitOutput:
            return run_git(*args, cwd=work_tree, git_dir=git_dir, env=places, own_repository=True)

        _checked(here("update-ref", "--no-deref", "HEAD", ours))
        _checked(here("reset", "--quiet", "--hard"))
        done = here(*settings, "merge", "--no-ff", "--no-commit", "--no-stat", theirs)
        if done.returncode == 0:
            return TreeMerge(_checked(here("write-tree")).decode().strip())
        said = done.stdout.decode("utf-8", "replace").splitlines()
        conflicts = [line for line in said if line.startswith("CONFLICT")]
        unmerged = _checked(here("ls-files", "--unmerged", "-z"))
        if not conflicts and not unmerged:
            raise GitError("merge", done.returncode, done.stderr)
        files = _conflicting_files(filter(None, unmerged.split(b"\0")), "HEAD", theirs)
        return TreeMerge(None, files, _readable([*conflicts, "CONFLICT"][0], ours, theirs))


def _conflicting_files(stages: Iterable[bytes], ours: str, theirs: str) -> tuple[str, ...]:
    """The paths of `mode id stage<TAB>path`; what git moved out of the way to `path~side` by its own name."""
    aside = re.compile(f"~(?:{ours}|{theirs})(?:_[0-9]+)?$")
    return tuple(sorted({aside.sub("", decode_path(stage.partition(b"\t")[2])) for stage in stages}))


def _readable(message: str, ours: str, theirs: str) -> str:
    line = message.strip().partition("\n")[0]
    return line.replace(ours, "one side").replace(theirs, "the other side").replace("in HEAD", "in one side")


def _checked(output: GitOutput) -> bytes:
    if output.returncode != 0:
        raise GitError("merge", output.returncode, output.stderr)
    return output.stdout
