"""Patches become trees, and trees become one: by git, in a throw-away object store on top of a task's base commit.

Nothing is checked out, and attributes do not count: an agent that adds `* merge=union` to `.gitattributes` changes
nothing. What of a patch may be tested is decided in `protected_files`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory, mkdtemp
from typing import Literal, NamedTuple, Self

from cooperbench.errors import UserError
from cooperbench.git import GitError, decode_path, encode_path, git, git_version, run_git
from cooperbench.models import REPO_DIR, MergeResult
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.settings import default_cache_dir
from cooperbench.storage import read_json, write_json
from cooperbench.temporary import owned_prefix

MAX_PATCH_BYTES = 64 * 1024**2
MAX_CHANGED_BYTES = 128 * 1024**2
"""What the files that a patch or a merge changes may have together."""
OLDEST_GIT = (2, 39)
"""The first one with `merge-tree --write-tree --stdin`."""
FILE = "100644"
LINK = "120000"
_GITLINK = "160000"
_NO_OBJECT = "0" * 40
_MAX_LINE_LENGTH = 500
_MAX_LINES = 50_000
_MAX_PATH_LENGTH = 4095
"""No file system takes a longer one."""
_CODE = re.compile(r"\.(?:pyi?|go|[cm]?[jt]sx?|rs)$")
_PREFIXED = re.compile(rb'^(?:diff --git|---|\+\+\+) "?[abciow]/', re.MULTILINE)
"""Paths with the prefixes of git; patches without them are rare."""
_ATTRIBUTES = (
    "merge text eol crlf diff filter ident working-tree-encoding conflict-marker-size whitespace"
)
_CONFIG = (
    "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tlooseCompression = 0\n\tfsync = none\n"
)
_PACK = "/tmp/cooperbench-base.pack"  # noqa: S108  # inside a sandbox
_READ_SECONDS = 600
_READ_BASE = """
set -euo pipefail
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_NO_REPLACE_OBJECTS=1
export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@x GIT_AUTHOR_DATE='946684800 +0000'
export GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@x GIT_COMMITTER_DATE='946684800 +0000'
cd "$1"
git() { command git -c safe.directory='*' -c core.fsmonitor=false -c commit.gpgSign=false "$@"; }
# The repository may not be ours to write to.
objects=$(cd "$(git rev-parse --git-path objects)" && pwd)
export GIT_ALTERNATE_OBJECT_DIRECTORIES=$objects GIT_OBJECT_DIRECTORY=$(mktemp -d)
commit=$(git commit-tree -m base 'HEAD^{tree}')
git pack-objects --revs --stdout --quiet <<<"$commit" >"$2"
rm -rf "$GIT_OBJECT_DIRECTORY"
echo "$commit"
find / -xdev -type d '(' -name site-packages -o -name dist-packages ')' -not -path '/proc/*' -exec ls {} ';' \
  2>/dev/null | sort -u || true
"""


@dataclass(frozen=True)
class Base:
    """A base commit in a repository on this machine, which is only read."""

    objects: Path
    """The object store with the commit."""
    commit: str
    installed_modules: frozenset[str] = field(default=frozenset(), repr=False)
    """Names of the Python modules in the image's site-packages."""
    index: list[bytes] = field(default_factory=list, repr=False, compare=False)
    """A git index of its tree, once there was one."""

    @cached_property
    def tree(self) -> str:
        return self._git("rev-parse", f"{self.commit}^{{tree}}").decode().strip()

    @cached_property
    def paths(self) -> frozenset[str]:
        """Those that are not UTF-8 carry surrogates."""
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", "--name-only", self.commit)
        return frozenset(decode_path(path) for path in listed.split(b"\0") if path)

    def _git(self, *args: str) -> bytes:
        return git(*args, git_dir=self.objects.parent)


def base_of_clone(git_dir: Path, commit: str) -> Base:
    """A commit of a clone on this machine."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    found = git(*words, git_dir=git_dir, check=False)
    if not found:
        raise UserError(
            f"commit {commit} is not in {git_dir}: fetch it there, e.g. `git fetch --unshallow`"
        )
    objects = git("rev-parse", "--git-path", "objects", git_dir=git_dir)
    return Base((git_dir / os.fsdecode(objects.rstrip(b"\n"))).absolute(), found.decode().strip())


def base_folder(image_digest: str) -> Path:
    """Where the base of the image with this digest is kept."""
    return default_cache_dir() / "bases" / hashlib.sha256(image_digest.encode()).hexdigest()[:32]


def load_base(folder: Path) -> Base | None:
    known = read_json(folder / "base.json")
    if known is None:
        return None
    return Base(folder / "git" / "objects", known["commit"], frozenset(known["installed_modules"]))


def read_base(sandbox: Sandbox, folder: Path) -> Base:
    """HEAD of a sandbox's repository, from now on in this folder."""
    argv = ["bash", "-c", _READ_BASE, "base", REPO_DIR, _PACK]
    commit, *modules = sandbox.run_checked(argv, f"{REPO_DIR} cannot be read", _READ_SECONDS).split(
        "\n"
    )
    pack = sandbox.read_file(_PACK)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        git("index-pack", "--stdin", git_dir=_make_git_dir(made / "git"), stdin=pack)
        names = sorted({name.partition(".")[0] for name in modules} - {""})
        write_json(made / "base.json", {"commit": commit, "installed_modules": names})
        made.rename(folder)
    except OSError:
        if not (folder / "base.json").is_file():
            raise  # otherwise another process was faster
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Base(folder / "git" / "objects", commit, frozenset(names))


def _make_git_dir(path: Path) -> Path:
    """By hand: `git init` costs a process and brings templates along. HEAD stays unborn."""
    for folder in ("objects/info", "objects/pack", "refs/heads", "info"):
        (path / folder).mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/unborn\n")
    (path / "config").write_text(_CONFIG)
    # info/attributes outranks every .gitattributes: this makes them all unspecified again.
    (path / "info" / "attributes").write_text(
        f"* {' '.join('!' + name for name in _ATTRIBUTES.split())}\n"
    )
    return path


class TreeEntry(NamedTuple):
    mode: str
    """100644, 100755, 120000 (a symbolic link) or 160000 (a submodule)."""
    object_id: str


class DroppedFile(NamedTuple):
    """A path whose changes are not judged."""

    path: str
    reason: str


@dataclass(frozen=True)
class Applied:
    """What became of a patch."""

    status: Literal["applied", "empty", "failed", "missing"]
    """`empty`: it changes nothing; `failed`: it does not apply, or is no patch; `missing`: there is none."""
    tree: str = ""
    """Empty where it does not apply: nothing of it is kept then."""
    error: str = ""
    """Unless it is applied."""
    patch: bytes = b""
    """From the base to `tree`, if it is judged."""
    dropped: tuple[DroppedFile, ...] = ()


class Change(NamedTuple):
    """One path that differs between two trees; None where it is absent."""

    before: TreeEntry | None
    after: TreeEntry | None


class TreeMerge(NamedTuple):
    """What git made of two trees."""

    tree: str
    """Empty on a conflict."""
    files: tuple[str, ...] = ()
    """The conflicting ones, sorted; a conflict about directories may have none."""
    message: str = ""
    """Git's first word about the conflict."""


class TreeStore:
    """Trees on top of one base, there as long as the `with` block."""

    def __init__(self, base: Base) -> None:
        if git_version() < OLDEST_GIT:
            raise UserError(
                "git on this machine is too old to merge patches: 2.39 or newer is needed"
            )
        self.base = base
        self._commits: dict[str, str] = {base.tree: base.commit}
        self._changes: dict[tuple[str, str], dict[str, Change]] = {}
        self._numbers = count()

    def __enter__(self) -> Self:
        self._place = TemporaryDirectory(prefix=owned_prefix("merge"))
        self._folder = Path(self._place.name)
        self._git_dir = _make_git_dir(self._folder / "store")
        alternates = self._git_dir / "objects" / "info" / "alternates"
        alternates.write_bytes(os.fsencode(self.base.objects) + b"\n")
        return self

    def __exit__(self, *error: object) -> None:
        self._place.cleanup()

    def apply(self, patch: bytes | None, onto: str = "") -> Applied:
        """Apply a patch to the base, or to another tree: the whole of it, byte for byte, or nothing."""
        onto = onto or self.base.tree
        if patch is None:
            return Applied("missing", error="no patch")
        nothing = Applied("empty", onto, "the patch changes nothing")
        if not patch.strip():
            return nothing
        failed = "the patch does not apply: "
        if len(patch) > MAX_PATCH_BYTES:
            return Applied(
                "failed", error=f"{failed}it has more than {MAX_PATCH_BYTES // 1024**2} MiB"
            )
        index = self._index_of(onto)
        strip = "-p1" if _PREFIXED.search(patch) else "-p0"
        options = ("--cached", "--binary", "--whitespace=nowarn", strip)
        done = self._run("apply", *options, index=index, stdin=patch)
        if done.returncode != 0:
            why = self.blamed(GitError("apply", done.returncode, done.stderr))
            return Applied("failed", error=failed + why)
        tree = self._write_tree(index)
        if problem := self._too_large(tree):
            return Applied("failed", error=failed + problem)
        return Applied("applied", tree) if tree != onto else nothing

    def blamed(self, error: GitError) -> str:
        """Why git cannot handle what agents wrote. Raises where it cannot handle the base either: that is our fault."""
        self.patch_of(self.edited(self.base.tree, {"x": b""}))
        return error.reason or "git would need more memory, disk or time than it may have"

    def changes(self, tree: str, since: str = "") -> Mapping[str, Change]:
        """What differs from the base, or from another tree, by path."""
        both = since or self.base.tree, tree
        if both in self._changes:
            return self._changes[both]
        words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index")
        fields = self._git(*words, *both).split(b"\0")
        found = self._changes[both] = {}
        for facts, path in zip(fields[::2], fields[1::2], strict=False):
            old_mode, new_mode, old_id, new_id, _ = facts.decode().lstrip(":").split(" ")
            before = None if old_id == _NO_OBJECT else TreeEntry(old_mode, old_id)
            after = None if new_id == _NO_OBJECT else TreeEntry(new_mode, new_id)
            found[decode_path(path)] = Change(before, after)
        return found

    def content(self, entry: TreeEntry | None) -> bytes | None:
        """Of a link its target, of a submodule its commit."""
        if entry is None or entry.mode == _GITLINK:
            return entry.object_id.encode() if entry else None
        return self._git("cat-file", "blob", entry.object_id)

    def lines_with(self, names: Iterable[str], tree: str) -> Iterator[tuple[str, str]]:
        """Path and text of lines of code with one of these names as a word, which may load what has that name."""
        words = [word for name in names for word in ("-e", name)]
        found = self._run("grep", "-I", "-z", "-F", "-w", *words, tree).stdout
        for line in found.split(b"\n", _MAX_LINES)[:_MAX_LINES]:
            name_of_tree_and_path, _, text = line.partition(b"\0")
            path = decode_path(name_of_tree_and_path.partition(b":")[2])
            if _CODE.search(path):
                yield path, text.decode("utf-8", "replace")[:_MAX_LINE_LENGTH]

    def edited(self, tree: str, entries: Mapping[str, TreeEntry | bytes | None]) -> str:
        """A tree with other entries, or other content of regular files, at some paths; None removes."""
        index = self._index_of(tree)
        lines = []
        for path, entry in entries.items():
            if isinstance(entry, bytes):
                entry = TreeEntry("100644", self._store("blob", entry))
            facts = f"{entry.mode} {entry.object_id}" if entry else f"0 {_NO_OBJECT}"
            lines.append(facts.encode() + b"\t" + encode_path(path) + b"\0")
        self._git("update-index", "-z", "--index-info", index=index, stdin=b"".join(lines))
        return self._write_tree(index)

    def patch_of(self, tree: str, since: str = "") -> bytes:
        """From the base to a tree, in the form that applies everywhere: full ids, binary, no renames."""
        form = ("--binary", "--full-index", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/")
        words = ("diff-tree", "-r", "-p", *form, "--diff-algorithm=myers")
        return self._git(*words, since or self.base.tree, tree)

    def merge(self, applied: Sequence[Applied]) -> MergeResult:
        """All that agents handed in as one; the status says if one of them has nothing to merge."""
        trees = [one.tree for one in applied if one.status == "applied"]
        missing = [
            f"agent {place}: {one.error}"
            for place, one in enumerate(applied, 1)
            if one.status != "applied"
        ]
        if not trees:
            return MergeResult("missing_input", "none", b"", (), "; ".join(missing))
        (merge,) = self.merge_groups([trees])
        if merge.tree and (problem := self._too_large(merge.tree)):
            merge = replace(merge, strategy="none", detail=problem, tree="")
        elif merge.tree:
            try:
                merge = replace(merge, patch=self.patch_of(merge.tree))
            except GitError as error:
                merge = replace(merge, strategy="none", detail=self.blamed(error), tree="")
        if missing:
            detail = "; ".join(filter(None, [*missing, merge.detail]))
            merge = replace(merge, status="missing_input", detail=detail)
        return merge

    def merge_groups(self, groups: Sequence[Sequence[str]]) -> list[MergeResult]:
        """The trees of each group, from the left: plainly, and conflicts again as unions. No patches."""
        merged = [group[0] for group in groups]
        conflicts: list[list[TreeMerge]] = [[] for _ in groups]
        for step in range(1, max(map(len, groups), default=0)):
            both = {
                at: (merged[at], group[step])
                for at, group in enumerate(groups)
                if merged[at] and len(group) > step
            }
            different = [*dict.fromkeys(both.values())]
            plain = dict(zip(different, self.merge_pairs(different), strict=True))
            again = [one for one in different if not plain[one].tree]
            unions = dict(zip(again, self.merge_pairs(again, union=True), strict=True))
            for at, one in both.items():
                conflicts[at] += [plain[one]] if one in unions else []
                merged[at] = unions.get(one, plain[one]).tree
        return [self._result(*of_group) for of_group in zip(groups, merged, conflicts, strict=True)]

    def _result(
        self, trees: Sequence[str], merged: str, conflicts: Sequence[TreeMerge]
    ) -> MergeResult:
        if conflicts:
            files = sorted({path for conflict in conflicts for path in conflict.files})
            strategy: Literal["union", "none"] = "union" if merged else "none"
            return MergeResult(
                "conflict", strategy, b"", tuple(files), conflicts[0].message, merged
            )
        same = len(trees) > 1 and set(trees) == {merged} and merged != self.base.tree
        return MergeResult("identical" if same else "clean", "plain", b"", tree=merged)

    def merge_pairs(
        self, pairs: Sequence[tuple[str, str]], *, union: bool = False
    ) -> list[TreeMerge]:
        """Merge two trees at a time, all in one process; `union` keeps both sides of textual conflicts."""
        if not pairs:
            return []
        commits = [(self._commit(ours), self._commit(theirs)) for ours, theirs in pairs]
        request = "".join(f"{ours} {theirs}\n" for ours, theirs in commits).encode()
        settings = ("-c", "merge.default=union") if union else ()
        try:
            answer = self._git(*settings, "merge-tree", "--write-tree", "--stdin", stdin=request)
            fields = iter(answer.split(b"\0"))
            return [_parse_merge(fields, *both) for both in commits]
        except GitError as error:
            if len(pairs) > 1:  # so that one does not stand for all
                return [self.merge_pairs([both], union=union)[0] for both in pairs]
            return [TreeMerge("", (), self.blamed(error))]

    def _too_large(self, tree: str) -> str:
        """Why a tree is not looked at any further; empty where it may be."""
        changes = self.changes(tree)
        if any(len(path) > _MAX_PATH_LENGTH for path in changes):
            return f"a path has more than {_MAX_PATH_LENGTH} characters"
        entries = [change.after for change in changes.values()]
        ids = [entry.object_id for entry in entries if entry and entry.mode != _GITLINK]
        sizes = self._git("cat-file", "--batch-check=%(objectsize)", stdin="\n".join(ids).encode())
        total = sum(map(int, sizes.split()))
        if total <= MAX_CHANGED_BYTES:
            return ""
        return f"the changed files have {total} bytes, more than {MAX_CHANGED_BYTES}"

    def _index_of(self, tree: str) -> Path:
        """An index of a tree, to be changed by its one user: a git that is killed leaves it locked."""
        index = self._folder / f"index-{next(self._numbers)}"
        kept = self.base.index if tree == self.base.tree else []
        if not kept:
            self._git("read-tree", tree, index=index)
            kept.append(index.read_bytes())
        index.write_bytes(kept[0])
        return index

    def _write_tree(self, index: Path) -> str:
        return self._git("write-tree", index=index).decode().strip()

    def _commit(self, tree: str) -> str:
        """Git merges commits: one for each tree, with the base as its parent."""
        if tree not in self._commits:
            who = "CooperBench <cooperbench@localhost> 946684800 +0000"
            lines = (
                f"tree {tree}\nparent {self.base.commit}\nauthor {who}\ncommitter {who}\n\ntree\n"
            )
            self._commits[tree] = self._store("commit", lines.encode())
        return self._commits[tree]

    def _store(self, kind: str, data: bytes) -> str:
        """A new object; its id."""
        return self._git("hash-object", "-t", kind, "-w", "--stdin", stdin=data).decode().strip()

    def _run(
        self, *args: str, index: Path | None = None, stdin: bytes = b""
    ) -> CompletedProcess[bytes]:
        return run_git(*args, git_dir=self._git_dir, index=index, stdin=stdin, bounded=True)

    def _git(self, *args: str, index: Path | None = None, stdin: bytes = b"") -> bytes:
        done = self._run(*args, index=index, stdin=stdin)
        if done.returncode != 0:
            raise GitError(" ".join(args)[:200], done.returncode, done.stderr)
        return done.stdout


def _parse_merge(fields: Iterator[bytes], ours: str, theirs: str) -> TreeMerge:
    """One answer of `merge-tree --stdin`: status, tree, stages, messages; a blank field ends each list."""
    status, tree = int(next(fields)), next(fields).decode()
    if status == 1:
        next(fields)
        return TreeMerge(tree)
    if status != 0:
        raise GitError("merge-tree", status, f"cannot merge {ours} and {theirs}".encode())
    # A stage is `mode id stage<TAB>path`; what git moved out of the way to `path~side` goes by its own name.
    aside = re.compile(f"~(?:{ours}|{theirs})(?:_[0-9]+)?$")
    stages = iter(lambda: next(fields), b"")
    files = {aside.sub("", decode_path(stage.partition(b"\t")[2])) for stage in stages}
    message = "CONFLICT"
    # Where submodules conflict, git puts an unframed word of advice in the blank's place.
    while (number := next(fields)).isdigit():
        for _ in range(int(number)):
            next(fields)
        kind, text = next(fields), next(fields)
        if kind.startswith(b"CONFLICT") and message == "CONFLICT":
            message = text.decode("utf-8", "replace").strip().partition("\n")[0]
    message = message.replace(ours, "one side").replace(theirs, "the other side")
    return TreeMerge("", tuple(sorted(files)), message.replace("in HEAD", "in one side"))
