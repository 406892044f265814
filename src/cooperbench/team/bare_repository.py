"""The bare repository of a pair on the host: every branch that was pushed, complete and checked.

What comes here was made by an agent and is hostile until checked: its size, memory and time are bounded, every object
is checked and must have all that it refers to, nothing is ever checked out, and no tree is ever listed (a small one can
have more files than there are atoms). No configuration or hook gets here: only packs do.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cooperbench.git import GitError, git
from cooperbench.temporary import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_CALL_SECONDS = 120.0
_LARGEST_ALLOCATION = "512m"
# The repository is gone when the pair is over: nothing in it need survive a crash of the machine.
_SETTINGS = ("-c", "core.fsync=none", "-c", "pack.threads=1", "-c", "core.bigFileThreshold=64m")


class BareRepository:
    """Of one pair; `folder` is there from `create`, at the first push, until `remove`."""

    def __init__(self, folder: Path, agent_ids: Sequence[str]) -> None:
        self._git_dir = folder
        self.base_commit = ""
        self.tips = dict.fromkeys(agent_ids, "")
        """Where each agent's branch is."""
        self.created = False

    def create(self, pack: bytes) -> None:
        """With the base commit, which is recognised by its id; all branches start from it. Once is enough."""
        if self.created:
            return
        remove_tree(self._git_dir)
        try:
            git("init", "--quiet", "--bare", "--template=", str(self._git_dir))
            self.index(pack)
            if not self.has(self.base_commit):
                raise GitError("index-pack", 1, b"the base commit is not in what the sandbox gave")
            for branch in ("main", *self.tips):
                self._git("update-ref", f"refs/heads/{branch}", self.base_commit)
            self._git("symbolic-ref", "HEAD", "refs/heads/main")
        except BaseException:
            self.remove()
            raise
        self.tips = dict.fromkeys(self.tips, self.base_commit)
        self.created = True

    def add(self, agent_id: str, commit: str, pack: bytes) -> int:
        """Take a push and move the agent's branch: how many commits are new. GitError where it is not sound."""
        if pack:
            self.index(pack)
        if not self.has(commit):
            raise GitError("index-pack", 1, b"the pushed commit is not in what the sandbox gave")
        known = [f"^{tip}" for tip in self.known_tips()]
        new_commits = int(self._git("rev-list", "--count", commit, *known))
        self._git("update-ref", f"refs/heads/{agent_id}", commit)
        self.tips[agent_id] = commit
        return new_commits

    def has(self, commit: str) -> bool:
        """Is there such a commit, and is it really a commit?"""
        said = self._git("cat-file", "--batch-check=%(objecttype)", stdin=f"{commit}\n".encode())
        return said == b"commit\n"

    def known_tips(self) -> list[str]:
        return list(dict.fromkeys((self.base_commit, *self.tips.values())))

    def pack_for(self, commit: str, known: Iterable[str]) -> bytes:
        """What a commit has beyond the known ones."""
        revisions = "".join(f"{line}\n" for line in (commit, *(f"^{tip}" for tip in known)))
        options = ("-q", "--revs", "--thin", "--stdout", "--delta-base-offset")
        return self._git("pack-objects", *options, stdin=revisions.encode())

    def index(self, pack: bytes) -> None:
        """Store it, if every object in it is valid and nothing that it refers to is missing."""
        options = ("--stdin", "--fix-thin", "--strict", f"--max-input-size={len(pack) + 1}")
        try:
            self._git("index-pack", *options, stdin=pack)
        except GitError:
            for leftover in (self._git_dir / "objects" / "pack").glob("tmp_*"):
                with suppress(OSError):
                    leftover.unlink()
            raise

    def write_bundle(self, path: Path) -> bool:
        """All branches as one file that can be cloned; False where nobody has pushed."""
        if not self.created:
            return False
        draft = self._git_dir / "final.bundle"
        branches = [f"refs/heads/{branch}" for branch in ("main", *self.tips)]
        self._git("bundle", "create", "--quiet", str(draft.absolute()), "HEAD", *branches)
        draft.replace(path)
        return True

    def remove(self) -> None:
        remove_tree(self._git_dir)

    def _git(self, *args: str, stdin: bytes = b"") -> bytes:
        return git(
            *_SETTINGS,
            *args,
            git_dir=self._git_dir,
            stdin=stdin,
            env={"GIT_ALLOC_LIMIT": _LARGEST_ALLOCATION},
            timeout_seconds=_CALL_SECONDS,
        )
