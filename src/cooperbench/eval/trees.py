"""Trees of git: the base commit of a task, in a clone or in a sandbox, and merging two of them."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from cooperbench.errors import SandboxError, UserError
from cooperbench.git import GitError, decode_path, git, run_git
from cooperbench.models import REPO_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cooperbench.git import GitOutput
    from cooperbench.sandbox.contract import RichSandbox

GITLINK = "160000"


@dataclass(frozen=True)
class BaseFile:
    """A file of the base commit."""

    mode: str
    """100644, 100755, 120000 (a symbolic link) or 160000 (a submodule)."""
    data: bytes
    """The content; of a link its target, of a submodule its commit in hex."""


class BaseTree(Protocol):
    """A base commit. Paths that are not UTF-8 carry surrogates."""

    def listing(self) -> Mapping[str, str]:
        """Path and mode of every file."""
        ...

    def read(self, paths: Sequence[str]) -> Mapping[str, BaseFile]:
        """These files; what is not a file of the base is left out."""
        ...


class CommitTree:
    """A `BaseTree` over anything that can run git: `call(words, stdin)` gives what git prints."""

    def __init__(self, commit: str, where: str, call: Callable[[Sequence[str], bytes], bytes]) -> None:
        """`where` is named in errors."""
        self._where = where
        self._call = call
        self._entries = parse_tree(call(["ls-tree", "-r", "-z", "--full-tree", commit], b""))

    def listing(self) -> Mapping[str, str]:
        return {path: mode for path, (mode, _) in self._entries.items()}

    def read(self, paths: Sequence[str]) -> Mapping[str, BaseFile]:
        entries = {path: self._entries[path] for path in paths if path in self._entries}
        blobs = sorted({oid for mode, oid in entries.values() if mode != GITLINK})
        contents = dict(zip(blobs, self._contents(blobs), strict=True)) if blobs else {}
        return {
            path: BaseFile(mode, oid.encode() if mode == GITLINK else contents[oid])
            for path, (mode, oid) in entries.items()
        }

    def _contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        request = "".join(f"{oid}\n" for oid in blobs).encode()
        output = self._call(["cat-file", "--batch"], request)
        position = 0
        for oid in blobs:
            end = output.index(b"\n", position)
            words = output[position:end].split()
            if words[-1] == b"missing":
                raise UserError(
                    f"object {oid} is missing in {self._where}: a partial clone must be made whole"
                )
            size = int(words[2])
            yield output[end + 1 : end + 1 + size]
            position = end + size + 2


class GitBaseTree(CommitTree):
    """A commit of a clone on this machine, which is only read, never written to."""

    def __init__(self, git_dir: Path, commit: str) -> None:
        def call(words: Sequence[str], stdin: bytes, *, check: bool = True) -> bytes:
            # No command here could run a filter or a driver: the clone's config need not be searched for any.
            return git(*words, git_dir=git_dir, stdin=stdin, check=check, own_repository=True)

        name = f"{commit}^{{commit}}"
        found = call(["rev-parse", "--verify", "--quiet", "--end-of-options", name], b"", check=False)
        if not found:
            raise UserError(
                f"commit {commit} is not in {git_dir}: fetch it there, e.g. `git fetch --unshallow`"
            )
        super().__init__(found.decode().strip(), str(git_dir), call)


def parse_tree(listed: bytes) -> dict[str, tuple[str, str]]:
    """Mode and object id by path, of what `git ls-tree -z` prints."""
    entries = {}
    for line in listed.split(b"\0"):
        if line:
            facts, _, path = line.partition(b"\t")
            mode, _, oid = facts.decode().split(" ")
            entries[decode_path(path)] = (mode, oid)
    return entries


_SCRATCH = "/tmp/cooperbench-base"  # noqa: S108  # inside a sandbox
_SECONDS = 300
_GIT = (
    "GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null "
    f"git -c safe.directory='*' -c core.fsmonitor=false -C {REPO_DIR}"
)


class SandboxBaseTree(CommitTree):
    """HEAD of a sandbox's repository. It is listed at once; files are read when asked for."""

    def __init__(self, sandbox: RichSandbox) -> None:
        def call(words: Sequence[str], stdin: bytes) -> bytes:
            # By way of a file: what a command prints is capped, a file is not.
            script = f"{_GIT} {shlex.join(words)} >{_SCRATCH}"
            done = sandbox.run(["bash", "-c", script], stdin=stdin, timeout_seconds=_SECONDS)
            if done.returncode != 0:
                raise SandboxError(f"{REPO_DIR} cannot be read: {done.stderr_read().strip()[-300:]}")
            output = sandbox.read_file(_SCRATCH)
            sandbox.run(["rm", "-f", _SCRATCH], timeout_seconds=60)
            return output

        super().__init__("HEAD", REPO_DIR, call)


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
