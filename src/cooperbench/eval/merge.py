"""Patches become trees, and trees become one: by git, in an object store of our own, without a checkout.

A store (`PatchRepo`) holds only what the merge can depend on: the base content of the files that the patches
touch, and the files whose places could collide with theirs. Where a patch removes or renames a file, git may
conclude that a whole directory moved; then every other file of the base takes part too, under its own name,
with a placeholder as content. Git never looks into a file that no side touches, so the answer is that of a
merge in the full repository.

Attributes do not count: an agent that adds `* merge=union` to `.gitattributes` changes neither the merge nor
a byte of it.

Not for running anything, and not for deciding what of a patch may be tested (that is `hygiene`).
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, Self

from cooperbench.diff import PatchError, parse_diff
from cooperbench.errors import UserError
from cooperbench.eval.trees import (
    GITLINK,
    MERGE_TREE_VERSION,
    BaseFile,
    BaseTree,
    GitBaseTree,
    TreeMerge,
    make_git_dir,
    merge_commits,
    merge_in_work_tree,
    parse_tree,
    store_parent,
)
from cooperbench.git import decode_path, encode_path, git, git_version, last_lines, run_git
from cooperbench.models import MergeResult
from cooperbench.temporary import owned_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set
    from types import TracebackType

    from cooperbench.git import GitOutput

__all__ = [
    "GITLINK",
    "Applied",
    "BaseFile",
    "BaseTree",
    "GitBaseTree",
    "PatchRepo",
    "TreeMerge",
    "merge_patches",
]

_PLACEHOLDER = b"a file that no patch touches\n"
_PLACEHOLDER_COMMIT = "1" * 40
_BRANCH = "refs/heads/made"
_COMMIT = (
    f"commit {_BRANCH}\nmark :1\ncommitter CooperBench <cooperbench@localhost> 946684800 +0000\ndata 0\n"
)


@dataclass(frozen=True)
class Applied:
    """What became of a patch."""

    status: Literal["applied", "empty", "failed"]
    """`empty`: it changes nothing."""
    tree: str | None
    """None where it does not apply: nothing of it is kept then."""
    error: str = ""


class PatchRepo:
    """A throw-away store for one base and some patches, there as long as the `with` block.

    `patches` name every file that will ever be touched: what is applied later is one of them, or part of one.
    """

    def __init__(self, base: BaseTree, patches: Sequence[bytes], *, without_merge_tree: bool = False) -> None:
        self._base = base
        self._touched: set[str] = set()
        self._loses_files = False
        self._merges_in_work_tree = without_merge_tree or git_version() < MERGE_TREE_VERSION
        self._commits: dict[str, str] = {}
        self._clean_up = ExitStack()
        for patch in patches:
            self._take_paths(patch)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            place = TemporaryDirectory(prefix=owned_prefix("merge"), dir=store_parent())
            self._folder = Path(stack.enter_context(place))
            self._git_dir = make_git_dir(self._folder / "store")
            self._write_base()
            self._clean_up = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean_up.close()

    def apply(self, patch: bytes) -> Applied:
        """Apply a patch to the base: the whole of it, byte for byte, or nothing."""
        if not patch.strip():
            return Applied("empty", self.base_tree)
        try:
            sections = parse_diff(patch).files
        except PatchError as error:
            return Applied("failed", None, str(error))
        paths = {path for section in sections for path in section.paths}
        if not paths <= self._touched:
            raise ValueError(
                f"this store was made without {sorted(paths - self._touched)}, which the patch touches"
            )
        if paths.issuperset(path for section in sections for path in section.reachable_paths):
            return self._apply(patch, "-p1")
        # Other prefixes than a/ and b/, or none: right is what makes git change just what the headers name.
        tries = [self._apply(patch, strip) for strip in ("-p1", "-p0")]
        fitting = [one for one in tries if one.tree is not None and self._changed(one.tree) <= paths]
        reason = tries[0].error or "git finds other paths in it than its headers name"
        return fitting[0] if fitting else Applied("failed", None, reason)

    def file(self, tree: str, path: str) -> bytes | None:
        """A file's content in a tree of this store; None where there is none."""
        if path in self._listing and path not in self._touched:
            return self._base.read([path])[path].data
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", tree, "--", path)
        mode, oid = parse_tree(listed).get(path, ("", ""))
        if not oid or mode == GITLINK:
            return oid.encode() or None
        return self._git("cat-file", "blob", oid)

    def with_files(self, tree: str, files: Mapping[str, bytes]) -> str:
        """A tree with other contents in some of its files."""
        stream = [f"{_COMMIT}M 040000 {tree} \n".encode()]
        modes = parse_tree(self._git("ls-tree", "-r", "-z", "--full-tree", tree))
        for path, data in files.items():
            stream += [_change(modes[path][0], "inline", path), _data(data)]
        self._fast_import(b"".join(stream))
        return self._git("rev-parse", f"{_BRANCH}^{{tree}}").decode().strip()

    def patch_of(self, tree: str) -> bytes:
        """From the base to a tree, in the form that applies everywhere: full ids, binary, no renames."""
        form = ("--binary", "--full-index", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/")
        return self._git("diff-tree", "-r", "-p", *form, "--diff-algorithm=myers", self.base_tree, tree)

    def merge(self, trees: Sequence[str]) -> MergeResult:
        """Merge trees of this store from the left, with the base as the common ancestor of them all."""
        if not trees:
            raise ValueError("nothing to merge")
        merged = trees[0]
        if len(trees) > 1 and merged != self.base_tree and set(trees) == {merged}:
            return MergeResult("identical", "plain", self.patch_of(merged))
        files: set[str] = set()
        conflicts: list[str] = []
        for tree in trees[1:]:
            step = self.merge_pairs([(merged, tree)])[0]
            if step.tree is None:
                files.update(step.files)
                conflicts.append(step.message)
                step = self.merge_pairs([(merged, tree)], union=True)[0]
            if step.tree is None:
                return MergeResult("conflict", "none", b"", tuple(sorted(files)), conflicts[0])
            merged = step.tree
        if conflicts:
            return MergeResult("conflict", "union", self.patch_of(merged), tuple(sorted(files)), conflicts[0])
        return MergeResult("clean", "plain", self.patch_of(merged))

    def merge_applied(self, applied: Sequence[Applied | None]) -> MergeResult:
        """Merge what there is; the status says if an agent has nothing to merge (None: no patch at all)."""
        trees = [one.tree for one in applied if one and one.tree and one.status == "applied"]
        missing = [
            f"agent {place}: {_what_is_missing(one)}"
            for place, one in enumerate(applied, 1)
            if one is None or one.status != "applied"
        ]
        if not missing:
            return self.merge(trees)
        if not trees:
            return MergeResult("missing_input", "none", b"", (), "; ".join(missing))
        rest = self.merge(trees)
        detail = "; ".join([*missing, rest.detail] if rest.detail else missing)
        return MergeResult("missing_input", rest.strategy, rest.patch, rest.conflicting_files, detail)

    def merge_pairs(self, pairs: Sequence[tuple[str, str]], *, union: bool = False) -> list[TreeMerge]:
        """Merge two trees at a time, all in one process; `union` keeps both sides of textual conflicts."""
        if not pairs:
            return []
        self._make_commits({tree for pair in pairs for tree in pair} - self._commits.keys())
        commits = [(self._commits[ours], self._commits[theirs]) for ours, theirs in pairs]
        merge = merge_in_work_tree if self._merges_in_work_tree else merge_commits
        return merge(self._git_dir, commits, union=union)

    def _apply(self, patch: bytes, strip: str) -> Applied:
        index = self._folder / "index"
        shutil.copyfile(self._base_index, index)
        options = ("--cached", "--binary", "--whitespace=nowarn", strip)
        done = self._run("apply", *options, index=index, stdin=patch)
        if done.returncode != 0:
            return Applied("failed", None, last_lines(done.stderr))
        tree = self._git("write-tree", index=index).decode().strip()
        return Applied("applied" if tree != self.base_tree else "empty", tree)

    def _changed(self, tree: str) -> set[str]:
        listed = self._git("diff-tree", "-r", "-z", "--name-only", "--no-renames", self.base_tree, tree)
        return {decode_path(path) for path in listed.split(b"\0") if path}

    def _take_paths(self, patch: bytes) -> None:
        try:
            sections = parse_diff(patch).files
        except PatchError:
            return  # `apply` says so
        for section in sections:
            self._touched.update(section.paths)
            self._loses_files |= section.old_path is not None and section.old_path != section.new_path

    def _write_base(self) -> None:
        self._listing = self._base.listing()
        present = sorted(self._touched & self._listing.keys())
        files = self._base.read(present)
        if len(files) < len(present):
            raise UserError(
                f"the base lists {sorted(set(present) - files.keys())[0]!r}, but it cannot be read"
            )
        stream = [b"blob\nmark :2\n", _data(_PLACEHOLDER)]
        changes = []
        for mark, (path, file) in enumerate(sorted(files.items()), 3):
            if file.mode == GITLINK:
                changes.append(_change(file.mode, file.data.decode(), path))
                continue
            stream += [b"blob\nmark :%d\n" % mark, _data(file.data)]
            changes.append(_change(file.mode, f":{mark}", path))
        for path in self._bystanders():
            mode = self._listing[path]
            changes.append(_change(mode, _PLACEHOLDER_COMMIT if mode == GITLINK else ":2", path))
        self._fast_import(b"".join([*stream, _COMMIT.encode(), *changes]))
        ids = self._git("rev-parse", _BRANCH, f"{_BRANCH}^{{tree}}").decode().split()
        self._base_commit, self.base_tree = ids
        self._base_index = self._folder / "base-index"
        self._git("read-tree", self.base_tree, index=self._base_index)

    def _bystanders(self) -> list[str]:
        """Files that no patch touches, but whose presence may matter."""
        if self._loses_files:
            return sorted(self._listing.keys() - self._touched)
        above = {path[:place] for path in self._touched for place, letter in enumerate(path) if letter == "/"}
        below = tuple(f"{path}/" for path in self._touched - self._listing.keys())
        return sorted(
            {path for path in self._listing if path in above or path.startswith(below)} - self._touched
        )

    def _make_commits(self, trees: Set[str]) -> None:
        """Git merges commits: one for each tree, with the base as its parent."""
        stream = [
            f"{_COMMIT}from {self._base_commit}\nM 040000 {tree} \nget-mark :1\n" for tree in sorted(trees)
        ]
        made = self._fast_import("".join(stream).encode()).decode().split() if trees else []
        self._commits.update(zip(sorted(trees), made, strict=True))

    def _fast_import(self, stream: bytes) -> bytes:
        command = ("-c", "fastimport.unpackLimit=1", "fast-import", "--quiet", "--done", "--force")
        return self._git(*command, stdin=stream + b"done\n")

    def _run(self, *args: str, index: Path | None = None, stdin: bytes = b"") -> GitOutput:
        return run_git(*args, git_dir=self._git_dir, index=index, stdin=stdin, own_repository=True)

    def _git(self, *args: str, index: Path | None = None, stdin: bytes = b"") -> bytes:
        return git(*args, git_dir=self._git_dir, index=index, stdin=stdin, own_repository=True)


def merge_patches(
    base: BaseTree, patches: Sequence[bytes | None], *, without_merge_tree: bool = False
) -> MergeResult:
    """Apply each agent's patch to the base and merge the results; None: an agent without a patch."""
    given = [patch for patch in patches if patch is not None]
    with PatchRepo(base, given, without_merge_tree=without_merge_tree) as repo:
        return repo.merge_applied([None if patch is None else repo.apply(patch) for patch in patches])


def _what_is_missing(applied: Applied | None) -> str:
    if applied is None:
        return "no patch"
    if applied.status == "empty":
        return "the patch changes nothing"
    return f"the patch does not apply: {applied.error}"


def _data(data: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(data), data)


def _change(mode: str, target: str, path: str) -> bytes:
    """A line of `git fast-import`, whose quoted paths may hold anything."""
    quoted = "".join(
        f"\\{byte:03o}" if byte < 33 or byte > 126 or byte in b'"\\' else chr(byte)
        for byte in encode_path(path)
    )
    return f'M {mode} {target} "{quoted}"\n'.encode()
