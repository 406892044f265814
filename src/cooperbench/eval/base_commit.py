"""Base commits of tasks: read from an image once and cached, or found in a clone."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from cooperbench.errors import UserError
from cooperbench.git import decode_path, git
from cooperbench.models import REPO_DIR
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.settings import default_cache_dir
from cooperbench.storage import read_bytes, write_bytes

_ATTRIBUTES = (
    *("merge", "text", "eol", "crlf", "diff", "filter", "ident", "working-tree-encoding"),
    *("conflict-marker-size", "whitespace"),
)
"""Git attributes that could change how patches are applied and merged."""
_GIT_CONFIG = """\
[core]
	repositoryformatversion = 0
	bare = true
	looseCompression = 0
	fsync = none
"""
_PACK = "/tmp/cooperbench-base.pack"  # noqa: S108  # a path inside a sandbox
_READ_SECONDS = 600
_READ_BASE = """
set -euo pipefail
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_NO_REPLACE_OBJECTS=1
export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@x GIT_AUTHOR_DATE='946684800 +0000'
export GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@x GIT_COMMITTER_DATE='946684800 +0000'
cd "$1"
git() { command git -c safe.directory='*' -c core.fsmonitor=false -c commit.gpgSign=false "$@"; }
# The repository may be read-only for this user.
objects=$(cd "$(git rev-parse --git-path objects)" && pwd)
export GIT_ALTERNATE_OBJECT_DIRECTORIES=$objects GIT_OBJECT_DIRECTORY=$(mktemp -d)
commit=$(git commit-tree -m base 'HEAD^{tree}')
git pack-objects --revs --stdout --quiet <<<"$commit" >"$2"
rm -rf "$GIT_OBJECT_DIRECTORY"
echo "$commit"
find / -xdev -type d '(' -name site-packages -o -name dist-packages ')' -not -path '/proc/*' \
  -exec ls {} ';' 2>/dev/null | sort -u || true
"""
"""Script that packs the tree of HEAD as a commit without history.

It prints the id of the commit, then the names of all files in site-packages folders.
"""


@dataclass(frozen=True)
class Base:
    """A base commit in a repository on this machine, which is only read."""

    objects: Path
    """Object store that contains the commit."""
    commit: str
    installed_modules: frozenset[str] = field(default=frozenset(), repr=False)
    """Names of the Python modules in the image's site-packages."""
    cached_index: list[bytes] = field(default_factory=list, repr=False, compare=False)
    """At most one element: a git index of the tree, made by the first `TreeStore`."""

    @cached_property
    def tree(self) -> str:
        """Id of the commit's tree."""
        return self._git("rev-parse", f"{self.commit}^{{tree}}").decode().strip()

    @cached_property
    def paths(self) -> frozenset[str]:
        """Paths of all files. Bytes that are not UTF-8 become surrogates."""
        names = self._git("ls-tree", "-r", "-z", "--full-tree", "--name-only", self.commit)
        return frozenset(decode_path(path) for path in names.split(b"\0") if path)

    def _git(self, *args: str) -> bytes:
        return git(*args, git_dir=self.objects.parent)


class BaseInfo(msgspec.Struct, frozen=True):
    """base.json in the cache folder of a base commit."""

    commit: str
    installed_modules: list[str]


def base_of_clone(git_dir: Path, commit: str) -> Base:
    """Return a commit of a clone on this machine."""
    argv = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    full_commit = git(*argv, git_dir=git_dir, check=False)
    if not full_commit:
        raise UserError(
            f"commit {commit} is not in {git_dir}. Fetch it, e.g. with `git fetch --unshallow`."
        )
    objects = git("rev-parse", "--git-path", "objects", git_dir=git_dir)
    objects_dir = git_dir / os.fsdecode(objects.rstrip(b"\n"))
    return Base(objects_dir.absolute(), full_commit.decode().strip())


def base_folder(image_digest: str) -> Path:
    """Return the cache folder for the base commit of the image with this digest."""
    return default_cache_dir() / "bases" / hashlib.sha256(image_digest.encode()).hexdigest()[:32]


def load_base(folder: Path) -> Base | None:
    """Return the base commit in a cache folder; None if there is none."""
    data = read_bytes(folder / "base.json")
    if data is None:
        return None
    try:
        info = msgspec.json.decode(data, type=BaseInfo)
    except msgspec.MsgspecError:
        return None  # damaged; it is read from the image again
    return Base(folder / "git" / "objects", info.commit, frozenset(info.installed_modules))


def read_base(sandbox: Sandbox, folder: Path) -> Base:
    """Read HEAD of a sandbox's repository, and store it in a cache folder."""
    argv = ["bash", "-c", _READ_BASE, "base", REPO_DIR, _PACK]
    output = sandbox.run_checked(argv, f"{REPO_DIR} cannot be read", _READ_SECONDS)
    commit, *installed_files = output.split("\n")
    modules = {name.partition(".")[0] for name in installed_files}
    info = BaseInfo(commit, sorted(modules - {""}))
    pack = sandbox.read_file(_PACK)

    folder.parent.mkdir(parents=True, exist_ok=True)
    new_folder = Path(mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        git_dir = make_git_dir(new_folder / "git")
        git("index-pack", "--stdin", git_dir=git_dir, stdin=pack)
        write_bytes(new_folder / "base.json", msgspec.json.encode(info) + b"\n")
        new_folder.rename(folder)
    except OSError:
        was_faster = (folder / "base.json").is_file()  # another process
        if not was_faster:
            raise
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)
    return Base(folder / "git" / "objects", commit, frozenset(info.installed_modules))


def make_git_dir(path: Path) -> Path:
    """Make an empty bare repository that ignores all attributes.

    `git init` would need a process and copy templates. HEAD stays unborn.
    """
    for folder in ("objects/info", "objects/pack", "refs/heads", "info"):
        (path / folder).mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/unborn\n")
    (path / "config").write_text(_GIT_CONFIG)
    # It takes precedence over every .gitattributes. `!` makes an attribute unspecified.
    unspecified = " ".join(f"!{name}" for name in _ATTRIBUTES)
    (path / "info" / "attributes").write_text(f"* {unspecified}\n")
    return path
