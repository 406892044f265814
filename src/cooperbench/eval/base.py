"""The base commit of a task, in a repository on this machine.

It is read once out of a fresh sandbox of the task's image and kept in the cache, so that patches can be applied,
inspected and merged here, where no agent has been. A clone on this machine serves as well.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from cooperbench.errors import SandboxError, UserError
from cooperbench.git import decode_path, git
from cooperbench.models import REPO_DIR
from cooperbench.settings import default_cache_dir
from cooperbench.storage import read_json, write_json

if TYPE_CHECKING:
    from cooperbench.sandbox.contract import RichSandbox

_ATTRIBUTES = "merge text eol crlf diff filter ident working-tree-encoding conflict-marker-size whitespace"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tlooseCompression = 0\n\tfsync = none\n"
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
    name = f"{commit}^{{commit}}"
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", name)
    found = git(*words, git_dir=git_dir, check=False)
    if not found:
        raise UserError(f"commit {commit} is not in {git_dir}: fetch it there, e.g. `git fetch --unshallow`")
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


def read_base(sandbox: RichSandbox, folder: Path) -> Base:
    """HEAD of a sandbox's repository, from now on in this folder."""
    done = sandbox.run(["bash", "-c", _READ_BASE, "base", REPO_DIR, _PACK], timeout_seconds=_READ_SECONDS)
    commit, *modules = done.stdout_read().split("\n")
    if done.returncode != 0:
        raise SandboxError(f"{REPO_DIR} cannot be read: {done.stderr_read().strip()[-300:]}")
    pack = sandbox.read_file(_PACK)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        git("index-pack", "--stdin", git_dir=make_git_dir(made / "git"), stdin=pack)
        names = sorted({name.partition(".")[0] for name in modules} - {""})
        write_json(made / "base.json", {"commit": commit, "installed_modules": names})
        made.rename(folder)
    except OSError:
        if not (folder / "base.json").is_file():
            raise  # otherwise another process was faster
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Base(folder / "git" / "objects", commit, frozenset(names))


def make_git_dir(path: Path) -> Path:
    """By hand: `git init` costs a process and brings templates along. HEAD stays unborn."""
    for folder in ("objects/info", "objects/pack", "refs/heads", "info"):
        (path / folder).mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/unborn\n")
    (path / "config").write_text(_CONFIG)
    # info/attributes outranks every .gitattributes: this makes them all unspecified again.
    (path / "info" / "attributes").write_text(f"* {' '.join('!' + name for name in _ATTRIBUTES.split())}\n")
    return path
