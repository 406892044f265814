"""The base commit as far as merging needs it: which files there are, and what is in some of them.

`GitBaseTree` reads it from a clone on this machine. Whoever has it elsewhere, e.g. in a sandbox, brings the
same two methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cooperbench.errors import UserError
from cooperbench.gitcall import decode_path, git

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

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
