"""The repository of a pair on the host: every branch that was pushed, whole and checked.

What comes here was made by an agent and is hostile until checked: its size, memory and time are bounded, every object
is checked and must have all that it refers to, nothing is ever checked out, and no tree is ever listed (a small one can
have more files than there are atoms). No configuration or hook gets here: only packs do.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cooperbench.gitcall import GitError, encode_path, git, run_git
from cooperbench.storage import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_CALL_SECONDS = 120.0
_LARGEST_ALLOCATION = "512m"
_LARGEST_FILE_READ = 1_000_000
_MOST_BYTES_READ = 64_000_000
# The hub is gone when the pair is over: nothing in it need survive a crash of the machine.
_SETTINGS = ("-c", "core.fsync=none", "-c", "pack.threads=1", "-c", "core.bigFileThreshold=64m")


class Hub:
    """A bare repository in `folder`; `remove` it when the pair is over."""

    def __init__(self, folder: Path, base_commit: str, agent_ids: Sequence[str]) -> None:
        self._git_dir = folder
        self.base_commit = base_commit
        self.tips = dict.fromkeys(agent_ids, base_commit)
        """Where each agent's branch is."""
        self.has_base = False
        remove_tree(folder)
        git("init", "--quiet", "--bare", "--template=", str(folder), own_repository=True)

    def add_base(self, pack: bytes) -> None:
        """The commit that everybody started from, before anything else."""
        self.index(pack)
        if not self.has(self.base_commit):
            raise GitError("index-pack", 1, b"the base commit is not in what the sandbox gave")
        for branch in ("main", *self.tips):
            self._git("update-ref", f"refs/heads/{branch}", self.base_commit)
        self._git("symbolic-ref", "HEAD", "refs/heads/main")
        self.has_base = True

    def add(self, agent_id: str, commit: str, pack: bytes) -> int:
        """Take what an agent pushed and move its branch; the number of commits that nobody's branch had before."""
        if pack:
            self.index(pack)
        if not self.has(commit):
            raise GitError("index-pack", 1, b"the pushed commit is not in what the sandbox gave")
        known = [f"^{tip}" for tip in self.known_tips()]
        count = int(self._git("rev-list", "--count", commit, *known))
        self._git("update-ref", f"refs/heads/{agent_id}", commit)
        self.tips[agent_id] = commit
        return count

    def has(self, commit: str) -> bool:
        """Is there such a commit, and is it really a commit?"""
        said = self._git("cat-file", "--batch-check=%(objecttype)", stdin=f"{commit}\n".encode())
        return said == b"commit\n"

    def known_tips(self) -> list[str]:
        return list(dict.fromkeys((self.base_commit, *self.tips.values())))

    def pack_for(self, commit: str, known: Iterable[str]) -> bytes:
        """What somebody needs for a commit who has the `known` ones."""
        revisions = "".join(f"{line}\n" for line in (commit, *(f"^{tip}" for tip in known)))
        options = ("-q", "--revs", "--thin", "--stdout", "--delta-base-offset")
        return self._git("pack-objects", *options, stdin=revisions.encode())

    def write_bundle(self, path: Path) -> bool:
        """All branches as one file that can be cloned; nothing where nobody has pushed."""
        if not self.has_base:
            return False
        draft = self._git_dir / "final.bundle"
        branches = [f"refs/heads/{branch}" for branch in ("main", *self.tips)]
        self._git("bundle", "create", "--quiet", str(draft.absolute()), "HEAD", *branches)
        draft.replace(path)
        return True

    def blobs_at(self, places: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """The ids of files at (commit, path); "" where there is none."""
        # A line feed in a path cannot be asked for.
        places = [place for place in places if "\n" not in place[1]]
        lines = b"".join(b"%s:%s\n" % (commit.encode(), encode_path(path)) for commit, path in places)
        said = self._git("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=lines).splitlines()
        found = {}
        for place, line in zip(places, said, strict=True):
            name, _, kind = line.rpartition(b" ")
            found[place] = name.decode() if kind == b"blob" else ""
        return found

    def contents_of(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Of files that are not too large to look into."""
        wanted = list(dict.fromkeys(filter(None, blobs)))
        lines = "".join(f"{blob}\n" for blob in wanted).encode()
        sizes = self._git("cat-file", "--batch-check=%(objectsize)", stdin=lines).split()
        small, total = [], 0
        for blob, size in zip(wanted, map(int, sizes), strict=True):
            if size <= _LARGEST_FILE_READ and total + size <= _MOST_BYTES_READ:
                small.append((blob, size))
                total += size
        data = self._git("cat-file", "--batch=", stdin="".join(f"{blob}\n" for blob, _ in small).encode())
        found, at = {}, 0
        for blob, size in small:
            # An empty headline, the content, a line feed.
            found[blob] = data[at + 1 : at + 1 + size]
            at += size + 2
        return found

    def remove(self) -> None:
        remove_tree(self._git_dir)

    def index(self, pack: bytes) -> None:
        """Into the store, if every object in it is sound and nothing that it refers to is missing."""
        options = ("--stdin", "--fix-thin", "--strict", f"--max-input-size={len(pack) + 1}")
        output = run_git(
            *_SETTINGS,
            "index-pack",
            *options,
            git_dir=self._git_dir,
            stdin=pack,
            env={"GIT_ALLOC_LIMIT": _LARGEST_ALLOCATION},
            own_repository=True,
            timeout_seconds=_CALL_SECONDS,
        )
        if output.returncode != 0:
            for leftover in (self._git_dir / "objects" / "pack").glob("tmp_*"):
                with suppress(OSError):
                    leftover.unlink()
            raise GitError("index-pack", output.returncode, output.stderr)

    def _git(self, *args: str, stdin: bytes = b"") -> bytes:
        return git(
            *_SETTINGS,
            *args,
            git_dir=self._git_dir,
            stdin=stdin,
            env={"GIT_ALLOC_LIMIT": _LARGEST_ALLOCATION},
            own_repository=True,
            timeout_seconds=_CALL_SECONDS,
        )
