"""Patches as git trees: apply and merge them in a temporary object store on top of a base commit.

Nothing is checked out, and git attributes have no effect: an agent that adds `* merge=union` to
`.gitattributes` changes nothing. `protected_files` decides which files of a patch are evaluated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, Self

from cooperbench.errors import UserError
from cooperbench.eval.base_commit import Base, make_git_dir
from cooperbench.git import GitError, decode_path, encode_path, git_version, run_git
from cooperbench.models import MergeResult
from cooperbench.temporary import owned_prefix

MAX_PATCH_BYTES = 64 * 1024**2
MAX_CHANGED_BYTES = 128 * 1024**2
"""Maximum total size of the files that a patch or a merge changes."""
OLDEST_GIT = (2, 39)
"""The first version with `merge-tree --write-tree --stdin`."""
FILE = "100644"
LINK = "120000"
_SUBMODULE = "160000"
_NO_OBJECT = "0" * 40
_MAX_LINE_LENGTH = 500
_MAX_LINES = 50_000
_SPECIAL = re.compile(r"[\\^$.\[\]|()?*+{}]")
"""Characters with a meaning in extended regular expressions."""
_MAX_PATH_LENGTH = 4095
"""Maximum length of a path in any file system."""
CODE_FILE = re.compile(r"\.(?:pyi?|go|[cm]?[jt]sx?|rs)$")
_PREFIXED_PATH = re.compile(rb'^(?:diff --git|---|\+\+\+) "?[abciow]/', re.MULTILINE)
"""A path with one of git's prefixes; patches without them are rare."""
_SIGNATURE = "CooperBench <cooperbench@localhost> 946684800 +0000"
_PATCH_FORM = (
    *("diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=myers"),
)


class TreeEntry(NamedTuple):
    """A file in a git tree."""

    mode: str
    """100644, 100755, 120000 (a symbolic link) or 160000 (a submodule)."""
    object_id: str


class DroppedFile(NamedTuple):
    """A file of a patch whose changes are not evaluated."""

    path: str
    reason: str


@dataclass(frozen=True)
class Applied:
    """Result of applying a patch."""

    status: Literal["applied", "empty", "failed", "missing"]
    """`empty`: it changes nothing; `failed`: it does not apply; `missing`: there is no patch."""
    tree: str = ""
    """Id of the tree that the patch leads to; empty if it does not apply."""
    error: str = ""
    """One line; empty if it is applied."""
    patch: bytes = b""
    """Patch from the base commit to `tree`, in the form that is tested."""
    dropped: tuple[DroppedFile, ...] = ()


class Change(NamedTuple):
    """A file that differs between two trees; None if it does not exist in one of them."""

    before: TreeEntry | None
    after: TreeEntry | None


class TreeMerge(NamedTuple):
    """Result of merging two trees."""

    tree: str
    """Empty after a conflict."""
    files: tuple[str, ...] = ()
    """Conflicting files, sorted; a conflict about folders may have none."""
    message: str = ""
    """Git's first message about the conflict."""


@dataclass
class _Merge:
    """Merge of a sequence of trees that is in progress."""

    trees: Sequence[str]
    tree: str
    """Merge of the trees so far; empty if they cannot be merged."""
    conflicts: list[TreeMerge] = field(default_factory=list)


class TreeStore:
    """Trees on top of one base commit. They exist until the `with` block ends."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self._commits: dict[str, str] = {base.tree: base.commit}
        self._changes: dict[tuple[str, str], dict[str, Change]] = {}
        self._index_numbers = count()

    def __enter__(self) -> Self:
        if git_version() < OLDEST_GIT:
            raise UserError("git is too old to merge patches. Install git 2.39 or newer.")
        self._temporary = TemporaryDirectory(prefix=owned_prefix("merge"))
        self._folder = Path(self._temporary.name)
        self._git_dir = make_git_dir(self._folder / "store")
        alternates = self._git_dir / "objects" / "info" / "alternates"
        alternates.write_bytes(os.fsencode(self.base.objects) + b"\n")
        return self

    def __exit__(self, *error: object) -> None:
        self._temporary.cleanup()

    def apply(self, patch: bytes | None, onto: str = "") -> Applied:
        """Apply a patch to the base, or to the tree `onto`: byte for byte, or not at all."""
        onto = onto or self.base.tree
        if patch is None:
            return Applied("missing", error="no patch")
        tree = onto
        if patch.strip():
            if len(patch) > MAX_PATCH_BYTES:
                return _failed(f"it has more than {MAX_PATCH_BYTES // 1024**2} MiB")
            try:
                tree = self._apply_to_index(patch, onto)
            except GitError as error:
                return _failed(self.explain_patch_error(error))
            problem = self._size_problem(tree)
            if problem:
                return _failed(problem)
        if tree == onto:
            return Applied("empty", onto, "the patch changes nothing")
        return Applied("applied", tree)

    def _apply_to_index(self, patch: bytes, onto: str) -> str:
        index = self._make_index(onto)
        strip = "-p1" if _PREFIXED_PATH.search(patch) else "-p0"
        options = ("--cached", "--binary", "--whitespace=nowarn", strip)
        result = self._run("apply", *options, index=index, stdin=patch)
        if result.returncode != 0:
            raise GitError("apply", result.returncode, result.stderr)
        return self._write_tree(index)

    def explain_patch_error(self, error: GitError) -> str:
        """Return why git cannot handle an agent's patch.

        Raises:
            GitError: Git cannot handle the base either, so it is not the fault of the patch.
        """
        self.patch_of(self.edit(self.base.tree, {"x": b""}))
        return error.reason or "git would need more memory, disk or time than it may have"

    def changes(self, tree: str, since: str = "") -> Mapping[str, Change]:
        """Return the files that differ from the base, or from the tree `since`, by path."""
        trees = (since or self.base.tree, tree)
        if trees in self._changes:
            return self._changes[trees]
        argv = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index")
        fields = self._git(*argv, *trees).split(b"\0")
        changes: dict[str, Change] = {}
        for entries, path in zip(fields[::2], fields[1::2], strict=False):
            old_mode, new_mode, old_id, new_id, _ = entries.decode().lstrip(":").split(" ")
            before = None if old_id == _NO_OBJECT else TreeEntry(old_mode, old_id)
            after = None if new_id == _NO_OBJECT else TreeEntry(new_mode, new_id)
            changes[decode_path(path)] = Change(before, after)
        self._changes[trees] = changes
        return changes

    def content(self, entry: TreeEntry | None) -> bytes | None:
        """Return the content of a file, the target of a link, or the commit of a submodule."""
        if entry is None:
            return None
        if entry.mode == _SUBMODULE:
            return entry.object_id.encode()
        return self._git("cat-file", "blob", entry.object_id)

    def lines_with(
        self, names: Iterable[str], tree: str, files: re.Pattern[str] = CODE_FILE
    ) -> Iterator[tuple[str, str]]:
        """Yield path and text of the lines that contain one of these names as a word.

        `files` is found in the paths of the files to search, by default those of code.
        """
        pattern = _any_word(name for name in names if name and "\n" not in name)
        if not pattern:
            return
        output = self._run("grep", "-I", "-z", "-E", "-f", "-", tree, stdin=pattern).stdout
        for line in output.split(b"\n", _MAX_LINES)[:_MAX_LINES]:
            tree_and_path, _, text = line.partition(b"\0")
            path = decode_path(tree_and_path.partition(b":")[2])
            if files.search(path):
                yield path, text.decode("utf-8", "replace")[:_MAX_LINE_LENGTH]

    def attributes(
        self, tree: str, paths: Iterable[str], names: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Return these git attributes of paths, by the `.gitattributes` files of a tree."""
        index = self._make_index(tree)
        request = b"".join(encode_path(path) + b"\0" for path in paths)
        argv = ("check-attr", "--cached", "--stdin", "-z", *names)
        result = run_git(
            *argv, git_dir=self._attributes_dir, index=index, stdin=request, bounded=True
        )
        if result.returncode != 0:
            raise GitError("check-attr", result.returncode, result.stderr)
        fields = result.stdout.split(b"\0")
        attributes: dict[str, dict[str, str]] = {}
        for path, name, value in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
            by_name = attributes.setdefault(decode_path(path), {})
            by_name[name.decode()] = value.decode("utf-8", "surrogateescape")
        return attributes

    @cached_property
    def _attributes_dir(self) -> Path:
        """A git directory with the same objects in which attributes have their effect."""
        git_dir = make_git_dir(self._folder / "attributes")
        (git_dir / "info" / "attributes").unlink()
        alternates = git_dir / "objects" / "info" / "alternates"
        alternates.write_bytes(os.fsencode(self._git_dir / "objects") + b"\n")
        return git_dir

    def edit(self, tree: str, entries: Mapping[str, TreeEntry | bytes | None]) -> str:
        """Return a tree with some files replaced by other entries or contents; None removes one."""
        index = self._make_index(tree)
        lines = []
        for path, entry in entries.items():
            if isinstance(entry, bytes):
                entry = TreeEntry(FILE, self._store("blob", entry))
            fields = f"{entry.mode} {entry.object_id}" if entry else f"0 {_NO_OBJECT}"
            lines.append(fields.encode() + b"\t" + encode_path(path) + b"\0")
        self._git("update-index", "-z", "--index-info", index=index, stdin=b"".join(lines))
        return self._write_tree(index)

    def patch_of(self, tree: str, since: str = "") -> bytes:
        """Return the patch from the base, or from the tree `since`, to a tree.

        It has full object ids, binary files and no renames, so that it applies everywhere.
        """
        return self._git(*_PATCH_FORM, since or self.base.tree, tree)

    def merge(self, applied: Sequence[Applied]) -> MergeResult:
        """Merge the patches of all agents. The status says whether one has nothing to merge."""
        trees = [work.tree for work in applied if work.status == "applied"]
        missing = []
        for number, work in enumerate(applied, 1):
            if work.status != "applied":
                missing.append(f"agent {number}: {work.error}")
        if not trees:
            return MergeResult("missing_input", "none", b"", (), "; ".join(missing))
        merge = self._add_patch(self.merge_groups([trees])[0])
        if missing:
            if merge.detail:
                missing.append(merge.detail)
            merge = replace(merge, status="missing_input", detail="; ".join(missing))
        return merge

    def _add_patch(self, merge: MergeResult) -> MergeResult:
        """Return a merge with its patch, or without its tree if that is too large."""
        if not merge.tree:
            return merge
        problem = self._size_problem(merge.tree)
        if not problem:
            try:
                return replace(merge, patch=self.patch_of(merge.tree))
            except GitError as error:
                problem = self.explain_patch_error(error)
        return replace(merge, strategy="none", detail=problem, tree="")

    def merge_groups(self, groups: Sequence[Sequence[str]]) -> list[MergeResult]:
        """Merge the trees of each group from left to right, without making patches.

        After a conflict both sides are kept (union).
        """
        merges = [_Merge(group, group[0]) for group in groups]
        longest = max((len(group) for group in groups), default=0)
        # All groups add their next tree at the same time: one git process merges many pairs.
        for position in range(1, longest):
            unfinished = [merge for merge in merges if merge.tree and position < len(merge.trees)]
            self._add_trees(unfinished, position)
        return [self._merge_result(merge) for merge in merges]

    def _add_trees(self, merges: Sequence[_Merge], position: int) -> None:
        """Merge the tree at a position of each sequence into what is merged so far."""
        pairs = [(merge.tree, merge.trees[position]) for merge in merges]
        distinct_pairs = list(dict.fromkeys(pairs))
        plain = self._merge_by_pair(distinct_pairs)
        conflicting = [pair for pair in distinct_pairs if not plain[pair].tree]
        union = self._merge_by_pair(conflicting, union=True)
        for merge, pair in zip(merges, pairs, strict=True):
            if pair in union:
                merge.conflicts.append(plain[pair])
                merge.tree = union[pair].tree
            else:
                merge.tree = plain[pair].tree

    def _merge_by_pair(
        self, pairs: Sequence[tuple[str, str]], *, union: bool = False
    ) -> dict[tuple[str, str], TreeMerge]:
        return dict(zip(pairs, self.merge_pairs(pairs, union=union), strict=True))

    def _merge_result(self, merge: _Merge) -> MergeResult:
        if merge.conflicts:
            files: set[str] = set()
            for conflict in merge.conflicts:
                files.update(conflict.files)
            return MergeResult(
                status="conflict",
                strategy="union" if merge.tree else "none",
                patch=b"",
                conflicting_files=tuple(sorted(files)),
                detail=merge.conflicts[0].message,
                tree=merge.tree,
            )
        are_identical = len(merge.trees) > 1 and set(merge.trees) == {merge.tree}
        status: Literal["identical", "clean"] = "clean"
        if are_identical and merge.tree != self.base.tree:
            status = "identical"
        return MergeResult(status, "plain", b"", tree=merge.tree)

    def merge_pairs(
        self, pairs: Sequence[tuple[str, str]], *, union: bool = False
    ) -> list[TreeMerge]:
        """Merge pairs of trees in one process; `union` keeps both sides of textual conflicts."""
        if not pairs:
            return []
        commits = [(self._commit(ours), self._commit(theirs)) for ours, theirs in pairs]
        request = "".join(f"{ours} {theirs}\n" for ours, theirs in commits).encode()
        settings = ("-c", "merge.default=union") if union else ()
        try:
            answer = self._git(*settings, "merge-tree", "--write-tree", "--stdin", stdin=request)
            fields = iter(answer.split(b"\0"))
            return [_parse_merge(fields, ours, theirs) for ours, theirs in commits]
        except GitError as error:
            if len(pairs) == 1:
                return [TreeMerge("", (), self.explain_patch_error(error))]
            # Only one of them may have failed.
            return [self.merge_pairs([pair], union=union)[0] for pair in pairs]

    def _size_problem(self, tree: str) -> str:
        """Return why a tree is too large to be evaluated; empty if it is not."""
        changes = self.changes(tree)
        if any(len(path) > _MAX_PATH_LENGTH for path in changes):
            return f"a path has more than {_MAX_PATH_LENGTH} characters"
        entries = [change.after for change in changes.values() if change.after]
        ids = [entry.object_id for entry in entries if entry.mode != _SUBMODULE]
        sizes = self._git("cat-file", "--batch-check=%(objectsize)", stdin="\n".join(ids).encode())
        total = sum(int(size) for size in sizes.split())
        if total > MAX_CHANGED_BYTES:
            return f"the changed files have {total} bytes, more than {MAX_CHANGED_BYTES}"
        return ""

    def _make_index(self, tree: str) -> Path:
        """Make an index of a tree for one user: a git that is killed leaves it locked."""
        index = self._folder / f"index-{next(self._index_numbers)}"
        is_base = tree == self.base.tree
        if is_base and self.base.cached_index:
            index.write_bytes(self.base.cached_index[0])
            return index
        self._git("read-tree", tree, index=index)
        if is_base:
            self.base.cached_index.append(index.read_bytes())
        return index

    def _write_tree(self, index: Path) -> str:
        return self._git("write-tree", index=index).decode().strip()

    def _commit(self, tree: str) -> str:
        """Return a commit of a tree with the base as its parent: git merges commits, not trees."""
        if tree not in self._commits:
            commit = (
                f"tree {tree}\nparent {self.base.commit}\n"
                f"author {_SIGNATURE}\ncommitter {_SIGNATURE}\n\ntree\n"
            )
            self._commits[tree] = self._store("commit", commit.encode())
        return self._commits[tree]

    def _store(self, kind: str, data: bytes) -> str:
        """Store an object and return its id."""
        return self._git("hash-object", "-t", kind, "-w", "--stdin", stdin=data).decode().strip()

    def _run(
        self, *args: str, index: Path | None = None, stdin: bytes = b""
    ) -> CompletedProcess[bytes]:
        return run_git(*args, git_dir=self._git_dir, index=index, stdin=stdin, bounded=True)

    def _git(self, *args: str, index: Path | None = None, stdin: bytes = b"") -> bytes:
        result = self._run(*args, index=index, stdin=stdin)
        if result.returncode != 0:
            raise GitError(" ".join(args)[:200], result.returncode, result.stderr)
        return result.stdout


def _any_word(names: Iterable[str]) -> bytes:
    """Return an extended regular expression that finds any of these names as a word.

    With several patterns git needs time that grows with the square of a file's length.
    """
    alternatives = "|".join(_SPECIAL.sub(r"\\\g<0>", name) for name in names)
    if not alternatives:
        return b""
    return encode_path(f"(^|[^[:alnum:]_])({alternatives})($|[^[:alnum:]_])")


def _failed(reason: str) -> Applied:
    return Applied("failed", error=f"the patch does not apply: {reason}")


def _parse_merge(fields: Iterator[bytes], ours: str, theirs: str) -> TreeMerge:
    """Read one answer of `merge-tree --stdin`.

    It has a status, a tree, the conflicting stages and messages; an empty field ends each list.
    """
    status = int(next(fields))
    tree = next(fields).decode()
    if status == 1:
        next(fields)
        return TreeMerge(tree)
    if status != 0:
        raise GitError("merge-tree", status, f"cannot merge {ours} and {theirs}".encode())
    files = set()
    # Git moves files that are in the way to `path~side`.
    moved_suffix = re.compile(f"~(?:{ours}|{theirs})(?:_[0-9]+)?$")
    while stage := next(fields):  # `mode id stage<TAB>path`
        path = decode_path(stage.partition(b"\t")[2])
        files.add(moved_suffix.sub("", path))
    message = _read_conflict_message(fields)
    message = message.replace(ours, "one side").replace(theirs, "the other side")
    return TreeMerge("", tuple(sorted(files)), message.replace("in HEAD", "in one side"))


def _read_conflict_message(fields: Iterator[bytes]) -> str:
    """Read the messages of one answer; return the first line of the first about a conflict.

    A message is: number of paths, paths, kind, text. After conflicts of submodules git prints an
    unframed hint instead of the empty field, which also ends the list.
    """
    conflict_message = ""
    while (number_of_paths := next(fields)).isdigit():
        for _ in range(int(number_of_paths)):
            next(fields)
        kind = next(fields)
        text = next(fields)
        if kind.startswith(b"CONFLICT") and not conflict_message:
            conflict_message = text.decode("utf-8", "replace").strip().partition("\n")[0]
    return conflict_message or "CONFLICT"
