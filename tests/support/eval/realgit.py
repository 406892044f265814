"""A reference for merges: full trees in a real clone, merged by plain `git merge`, with none of our code."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.eval.base_commit import base_of_clone
from cooperbench.eval.trees import TreeStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.eval.base_commit import Base
    from cooperbench.models import MergeResult


_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass(frozen=True)
class BaseFile:
    """A file of a commit."""

    mode: str
    data: bytes
    """Of a link its target, of a submodule its commit."""


Files = dict[str, BaseFile]


def base_with(folder: Path, files: Files) -> Base:
    """A base commit of just these files."""
    repo = RealRepo(folder / os.urandom(4).hex())
    return base_of_clone(repo.path / ".git", repo.commit(files))


def merge_patches(base: Base, patches: Sequence[bytes | None]) -> MergeResult:
    """Apply each agent's patch to the base and merge the results; None: an agent without a patch."""
    with TreeStore(base) as store:
        return store.merge([store.apply(patch) for patch in patches])


def file_in(store: TreeStore, tree: str, path: str) -> bytes | None:
    """A file's content in a tree; None where there is none."""
    change = store.changes(tree, _EMPTY_TREE).get(path)
    return store.content(change.after) if change else None


def text(content: str | bytes, mode: str = "100644") -> BaseFile:
    return BaseFile(mode, content.encode() if isinstance(content, str) else content)


@dataclass(frozen=True)
class RealMerge:
    """What `git merge` left behind."""

    clean: bool
    conflicting_files: tuple[str, ...]
    tree: str | None


class RealRepo:
    """A repository with a work tree, and git as a user would run it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q")

    def git(self, *args: str, stdin: bytes = b"", check: bool = True) -> bytes:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_DATE": "1000000000 +0000",
            "GIT_COMMITTER_DATE": "1000000000 +0000",
        }
        settings = (
            "-c",
            "user.name=test",
            "-c",
            "user.email=test@localhost",
            "-c",
            "advice.detachedHead=false",
        )
        done = subprocess.run(
            ["git", *settings, *args],
            cwd=self.path,
            env=environment,
            input=stdin,
            capture_output=True,
            check=check,
        )
        return done.stdout

    def commit(self, files: Files, parent: str | None = None) -> str:
        """A commit of exactly these files."""
        stream = [
            b"commit refs/heads/made\nmark :1\ncommitter t <t@localhost> 1 +0000\ndata 1\nx\n"
        ]
        stream += [f"from {parent}\n".encode()] if parent else []
        stream += [b"deleteall\n"]
        for path, file in files.items():
            name = "".join(f"\\{byte:03o}" for byte in path.encode("utf-8", "surrogateescape"))
            if file.mode == "160000":
                stream += [f'M 160000 {file.data.decode()} "{name}"\n'.encode()]
            else:
                stream += [
                    f'M {file.mode} inline "{name}"\n'.encode(),
                    b"data %d\n%b\n" % (len(file.data), file.data),
                ]
        stream += [b"get-mark :1\n", b"done\n"]
        return (
            self.git("fast-import", "--quiet", "--done", "--force", stdin=b"".join(stream))
            .decode()
            .strip()
        )

    def tree(self, commit: str) -> str:
        return self.git("rev-parse", f"{commit}^{{tree}}").decode().strip()

    def diff(self, base: str, side: str, *options: str) -> bytes:
        return self.git("diff", "--binary", *options, base, side)

    def merge(self, ours: str, theirs: str) -> RealMerge:
        self.git("checkout", "-q", "-f", "--detach", ours)
        self.git("clean", "-qfdx")
        done = subprocess.run(
            [
                "git",
                "-c",
                "user.name=t",
                "-c",
                "user.email=t@localhost",
                "merge",
                "-q",
                "--no-edit",
                theirs,
            ],
            cwd=self.path,
            capture_output=True,
            check=False,
        )
        unmerged = self.git("ls-files", "-u", "-z").split(b"\0")
        paths = {
            line.partition(b"\t")[2].decode("utf-8", "surrogateescape") for line in unmerged if line
        }
        files = {re.sub(rf"~(HEAD|{theirs})(_\d+)?$", "", path) for path in paths}
        tree = self.tree("HEAD") if done.returncode == 0 else None
        self.git("merge", "--abort", check=False)
        return RealMerge(done.returncode == 0, tuple(sorted(files)), tree)

    def tree_with(self, base: str, patch: bytes) -> str:
        """The tree that a patch makes of the full base."""
        self.git("read-tree", base)
        if patch:
            self.git("apply", "--cached", "--whitespace=nowarn", "-", stdin=patch)
        return self.git("write-tree").decode().strip()
