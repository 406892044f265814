"""The git remote `team` that the agents of a pair share: the harness carries commits between their sandboxes.

It works on any backend and without a network. An agent can only ever move its own branch, and is limited in what it
pushes.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from cooperbench.errors import InfraError
from cooperbench.git import TIMED_OUT, GitError, git
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.team.sandbox_rpc import Response, script_text
from cooperbench.temporary import remove_tree

TEAM_GIT_DIR = "/cooperbench/team.git"
_DRAFTS_DIR = "/cooperbench/drafts"
QUOTA_BYTES = 100_000_000
"""What one agent may push, packed, in all its pushes together."""
MAX_PUSHES = 1_000
"""Of one agent."""
_MAX_BASE_BYTES = 250_000_000
_MAX_ALLOCATION = "512m"
_CALL_SECONDS = 120.0
_DELIVERY_SECONDS = 60.0
_SCRIPT_SECONDS = 240.0
_PAUSES = (0.5, 2.0, 0.0)
"""After each try of a push that may have failed by the host: that it is short of file descriptors, memory or disk."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
# The repository on the host is gone when the pair is over: nothing in it need survive a crash of the machine.
_SETTINGS = ("-c", "core.fsync=none", "-c", "pack.threads=1", "-c", "core.bigFileThreshold=64m")


class GitRemote:
    """Of one pair. Called from the threads of several agents.

    Each sandbox has a bare repository of its own at `TEAM_GIT_DIR`. A push runs a hook there that calls the harness,
    which takes the new commits out as a pack, checks them in the pair's repository on the host, and puts them into
    every other sandbox before the push returns. What comes out of an agent's sandbox only becomes that agent's branch.
    """

    def __init__(self, folder: Path, agent_ids: Sequence[str]) -> None:
        """`folder`: where the pair's repository on the host may be."""
        self._agent_ids = tuple(agent_ids)
        self._lock = threading.Lock()
        self._sandboxes: dict[str, Sandbox] = {}
        """Of the agents that are at work and take what they are given."""
        self._repository = BareRepository(folder, agent_ids)
        names = ("pushes", "refused", "commits", "bytes")
        self.counts = {name: dict.fromkeys(agent_ids, 0) for name in names}
        """By name and agent, for result.json."""

    def attach(
        self,
        agent_id: str,
        sandbox: Sandbox,
        *,
        repo_dir: str,
        base_commit: str,
        base_git_dir: str,
    ) -> None:
        """Give the repository in a sandbox the remote `team`."""
        words = (base_git_dir, base_commit, repo_dir, agent_id, *self._agent_ids)
        failed = "the team's git repository could not be made in the sandbox"
        sandbox.run_checked(_script("install", *words), failed, _SCRIPT_SECONDS)
        sandbox.write_file(f"{TEAM_GIT_DIR}/hooks/update", script_text("update").encode(), 0o755)
        with self._lock:
            self._repository.base_commit = base_commit
            self._sandboxes[agent_id] = sandbox
            for other, pushes in self.counts["pushes"].items():
                if pushes:
                    self._deliver(agent_id, other, [base_commit])

    def push(self, agent_id: str, commit: str) -> Response:
        """The hook in a sandbox asks: move the agent's branch and deliver it to its teammates, or say why not."""
        for pause in _PAUSES:
            try:
                # Not under the lock: what is slow in one agent's sandbox is no reason for the others to wait.
                pack = self._fetch(agent_id, commit)
                with self._lock:
                    before = self._repository.known_tips()
                    self.counts["commits"][agent_id] += self._repository.add(agent_id, commit, pack)
                    self.counts["bytes"][agent_id] += len(pack)
                    self.counts["pushes"][agent_id] += 1
                    # The order of pushes is the same for everybody.
                    others = [other for other in self._agent_ids if other != agent_id]
                    notes = [self._deliver(other, agent_id, before) for other in others]
                return Response(0, "".join(f"{note}\n" for note in notes if note))
            except (_Refused, FileNotFoundError) as refusal:
                reason: object = refusal
                break
            except (InfraError, OSError) as fault:
                reason = fault
                if isinstance(fault, GitError):
                    reason = fault.reason
                    if fault.returncode == TIMED_OUT:
                        break
            time.sleep(pause)
        self.counts["refused"][agent_id] += 1
        return Response(1, f"refused: {reason}\n")

    def detach(self, agent_id: str) -> None:
        """An agent is done: its sandbox will be gone, its branch stays."""
        # Not under the lock: a push on its way into this sandbox is no reason to keep the agent.
        self._sandboxes.pop(agent_id, None)

    def write_bundle(self, path: Path) -> bool:
        """The final branches as a file that can be cloned; False where nobody has pushed."""
        return self._repository.write_bundle(path)

    def close(self) -> None:
        with self._lock:
            self._repository.remove()

    def _fetch(self, agent_id: str, commit: str) -> bytes:
        """What the host does not have of a commit yet."""
        sandbox = self._sandboxes.get(agent_id)
        if sandbox is None or not _COMMIT.fullmatch(commit):
            raise _Refused("the harness was asked for something that is no push")
        if self.counts["pushes"][agent_id] >= MAX_PUSHES:
            raise _Refused(f"you have pushed {MAX_PUSHES} times, and may not push more often")
        repository = self._repository
        if not repository.created:
            pack = _read_pack(sandbox, repository.base_commit, _MAX_BASE_BYTES)
            with self._lock:
                repository.create(pack)
        if repository.has(commit):
            return b""
        left_bytes = QUOTA_BYTES - self.counts["bytes"][agent_id]
        return _read_pack(sandbox, commit, left_bytes, repository.known_tips())

    def _deliver(self, agent_id: str, branch: str, known: Iterable[str]) -> str:
        """Put a branch into an agent's sandbox; a note for its pusher where that did not work."""
        sandbox, commit, reason = self._sandboxes.get(agent_id), self._repository.tips[branch], ""
        if sandbox is None:
            return f"{agent_id} has finished and will not see this"
        # The agent may have removed what it was given before: then everything once more.
        for there in (known, [self._repository.base_commit]):
            try:
                file = f"{TEAM_GIT_DIR}/incoming-{secrets.token_hex(8)}.pack"
                sandbox.write_file(file, self._repository.pack_for(commit, there))
                argv = _script("take", file, branch, commit)
                done = sandbox.run(argv, timeout_seconds=_DELIVERY_SECONDS)
            except (InfraError, OSError) as error:
                reason = str(error)
                time.sleep(_PAUSES[0])
                continue
            if done.returncode == 0:
                return ""
            reason = done.stderr_read().strip()[-200:]
            if done.timed_out:
                # Whatever it has done to its git, it may hold up its teammates once.
                self._sandboxes.pop(agent_id, None)
                break
        return f"{agent_id} could not be given this: {reason}"


class BareRepository:
    """Of one pair on the host: every branch that was pushed, complete and checked.

    What comes here was made by an agent and is hostile until checked: its size, memory and time are bounded, every
    object is checked and must have all that it refers to, nothing is ever checked out, and no tree is ever listed (a
    small one can have more files than there are atoms). No configuration or hook gets here: only packs do.
    """

    def __init__(self, folder: Path, agent_ids: Sequence[str]) -> None:
        """`folder` is there from `create`, at the first push, until `remove`."""
        self._git_dir = folder
        self.base_commit = ""
        self.tips = dict.fromkeys(agent_ids, "")
        """Where each agent's branch is."""
        self.created = False

    def create(self, pack: bytes) -> None:
        """With the base commit, which is recognised by its id; all branches start from it. Once is enough."""
        if self.created:
            return
        self.remove()
        git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(self._git_dir))
        self._index(pack, self.base_commit)
        for branch in ("main", *self.tips):
            self._git("update-ref", f"refs/heads/{branch}", self.base_commit)
        self.tips = dict.fromkeys(self.tips, self.base_commit)
        self.created = True

    def add(self, agent_id: str, commit: str, pack: bytes) -> int:
        """Take a push and move the agent's branch: how many commits are new. GitError where it is not sound."""
        self._index(pack, commit)
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

    def write_bundle(self, path: Path) -> bool:
        if not self.created:
            return False
        draft = self._git_dir / "final.bundle"
        branches = [f"refs/heads/{branch}" for branch in ("main", *self.tips)]
        self._git("bundle", "create", "--quiet", str(draft.absolute()), "HEAD", *branches)
        draft.replace(path)
        return True

    def remove(self) -> None:
        remove_tree(self._git_dir)

    def _index(self, pack: bytes, commit: str) -> None:
        """Store a pack, if every object in it is valid, nothing that it refers to is missing, and it has the commit."""
        options = ("--stdin", "--fix-thin", "--strict", f"--max-input-size={len(pack) + 1}")
        packs = self._git_dir / "objects" / "pack"
        before = set(packs.iterdir())
        try:
            if pack:
                self._git("index-pack", *options, stdin=pack)
        except BaseException:
            # Among them the whole pack, where it is sound and what its files say is not: no second push may find it.
            for leftover in set(packs.iterdir()) - before:
                with suppress(OSError):
                    leftover.unlink()
            raise
        if not self.has(commit):
            raise GitError("index-pack", 1, f"{commit} is not in what the sandbox gave".encode())

    def _git(self, *args: str, stdin: bytes = b"") -> bytes:
        limit = {"GIT_ALLOC_LIMIT": _MAX_ALLOCATION}
        words = (*_SETTINGS, *args)
        return git(
            *words, git_dir=self._git_dir, stdin=stdin, env=limit, timeout_seconds=_CALL_SECONDS
        )


class _Refused(Exception):
    """Why a push is not taken, as it can be said to an agent."""


def _script(command: str, *words: str) -> list[str]:
    return ["bash", "-c", script_text("git_remote.sh"), "git_remote", command, TEAM_GIT_DIR, *words]


def _read_pack(sandbox: Sandbox, commit: str, limit_bytes: int, known: Iterable[str] = ()) -> bytes:
    """What a commit in a sandbox has beyond the known ones."""
    file = f"{_DRAFTS_DIR}/outgoing-{secrets.token_hex(8)}.pack"
    argv = _script("pack", str(limit_bytes), file, commit, *known)
    done = sandbox.run(argv, timeout_seconds=_SCRIPT_SECONDS)
    size = done.stdout_read().strip()
    if done.returncode != 0 or not size.isdigit():
        raise _Refused(f"git could not pack it: {done.stderr_read().strip()[-200:]}")
    pack = b"" if int(size) > limit_bytes else sandbox.read_file(file)
    sandbox.run(["rm", "-f", "--", file], timeout_seconds=60)
    if int(size) > limit_bytes or len(pack) > limit_bytes:
        raise _Refused(f"too large: only {limit_bytes} more bytes (packed) may be pushed")
    return pack
