"""The git remote `team` that the agents of a pair share.

The harness carries commits between the sandboxes, so this works on any backend and without a
network. An agent can only move its own branch, and the size and number of its pushes are limited.
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
"""Maximum packed size of all pushes of one agent together."""
MAX_PUSHES = 1_000
"""Maximum number of pushes per agent."""
_MAX_BASE_BYTES = 250_000_000
_MAX_ALLOCATION = "512m"
_CALL_SECONDS = 120.0
_DELIVERY_SECONDS = 60.0
_SCRIPT_SECONDS = 240.0
_PAUSES = (0.5, 2.0, 0.0)
"""Seconds to wait after each attempt at a push that failed on the host (descriptors, disk)."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
# The repository on the host is temporary, so nothing in it has to survive a crash of the machine.
_SETTINGS = ("-c", "core.fsync=none", "-c", "pack.threads=1", "-c", "core.bigFileThreshold=64m")


class GitRemote:
    """The remote of one pair. Called from the threads of several agents.

    Each sandbox has its own bare repository at `TEAM_GIT_DIR`. A push runs a hook there that calls
    the harness. The harness reads the new commits as a pack, checks them in the pair's repository
    on the host, and writes them to every other sandbox before the push returns. Commits from an
    agent's sandbox can only become that agent's branch.
    """

    def __init__(self, folder: Path, agent_ids: Sequence[str]) -> None:
        """Create the remote; `folder` is where the pair's repository on the host is made."""
        self._agent_ids = tuple(agent_ids)
        self._lock = threading.Lock()
        self._sandboxes: dict[str, Sandbox] = {}
        """Sandboxes of the working agents that accept deliveries."""
        self._repository = BareRepository(folder, agent_ids)
        names = ("pushes", "refused", "commits", "bytes")
        self.counts = {name: dict.fromkeys(agent_ids, 0) for name in names}
        """Counts for result.json, by name and agent."""

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
        argv = _script_argv(
            "install", base_git_dir, base_commit, repo_dir, agent_id, *self._agent_ids
        )
        message = "the team's git repository could not be created in the sandbox"
        sandbox.run_checked(argv, message, _SCRIPT_SECONDS)
        sandbox.write_file(f"{TEAM_GIT_DIR}/hooks/update", script_text("update").encode(), 0o755)
        with self._lock:
            self._repository.base_commit = base_commit
            self._sandboxes[agent_id] = sandbox
            for other, pushes in self.counts["pushes"].items():
                if pushes:
                    self._deliver(agent_id, other, [base_commit])

    def push(self, agent_id: str, commit: str) -> Response:
        """Move the agent's branch and deliver it to its teammates; a hook calls it."""
        reason = ""
        for pause in _PAUSES:
            try:
                return self._push_once(agent_id, commit)
            except (_Refused, FileNotFoundError) as error:
                reason = str(error)
                break
            except GitError as error:
                reason = error.reason
                if error.returncode == TIMED_OUT:
                    break
            except (InfraError, OSError) as error:
                reason = str(error)
            time.sleep(pause)
        self.counts["refused"][agent_id] += 1
        return Response(1, f"refused: {reason}\n")

    def _push_once(self, agent_id: str, commit: str) -> Response:
        # Fetch without the lock, so that one slow sandbox does not make the others wait.
        pack = self._fetch(agent_id, commit)
        with self._lock:
            tips_before = self._repository.known_tips()
            self.counts["commits"][agent_id] += self._repository.add(agent_id, commit, pack)
            self.counts["bytes"][agent_id] += len(pack)
            self.counts["pushes"][agent_id] += 1
            # Delivered under the lock, so that all agents see pushes in the same order.
            others = [other for other in self._agent_ids if other != agent_id]
            notes = [self._deliver(other, agent_id, tips_before) for other in others]
        return Response(0, "".join(f"{note}\n" for note in notes if note))

    def detach(self, agent_id: str) -> None:
        """Stop delivering to a finished agent; its branch stays."""
        # Without the lock: do not wait for a push that is being delivered to this sandbox.
        self._sandboxes.pop(agent_id, None)

    def write_bundle(self, path: Path) -> bool:
        """Write the final branches as a bundle; return False if nothing was pushed."""
        return self._repository.write_bundle(path)

    def close(self) -> None:
        """Remove the repository on the host."""
        with self._lock:
            self._repository.remove()

    def _fetch(self, agent_id: str, commit: str) -> bytes:
        """Return the objects of a commit that the host does not have yet, as a pack."""
        sandbox = self._sandboxes.get(agent_id)
        if sandbox is None or not _COMMIT.fullmatch(commit):
            raise _Refused("the request is not a valid push")
        if self.counts["pushes"][agent_id] >= MAX_PUSHES:
            raise _Refused(f"push limit reached ({MAX_PUSHES})")
        repository = self._repository
        if not repository.created:
            pack = _read_pack(sandbox, repository.base_commit, _MAX_BASE_BYTES)
            with self._lock:
                repository.create(pack)
        if repository.has(commit):
            return b""
        left_bytes = QUOTA_BYTES - self.counts["bytes"][agent_id]
        return _read_pack(sandbox, commit, left_bytes, repository.known_tips())

    def _deliver(self, agent_id: str, branch: str, known_commits: Iterable[str]) -> str:
        """Put a branch into an agent's sandbox; return a note for the pusher if that failed."""
        sandbox = self._sandboxes.get(agent_id)
        commit = self._repository.tips[branch]
        reason = ""
        if sandbox is None:
            return f"{agent_id} has finished and will not see this"
        # If the agent has removed earlier commits, the second attempt sends everything.
        for commits in (known_commits, [self._repository.base_commit]):
            try:
                path = f"{TEAM_GIT_DIR}/incoming-{secrets.token_hex(8)}.pack"
                sandbox.write_file(path, self._repository.pack_for(commit, commits))
                argv = _script_argv("take", path, branch, commit)
                done = sandbox.run(argv, timeout_seconds=_DELIVERY_SECONDS)
            except (InfraError, OSError) as error:
                reason = str(error)
                time.sleep(_PAUSES[0])
                continue
            if done.returncode == 0:
                return ""
            reason = done.stderr_read().strip()[-200:]
            if done.timed_out:
                # An agent that has broken its git delays its teammates only once.
                self._sandboxes.pop(agent_id, None)
                break
        return f"could not deliver this to {agent_id}: {reason}"


class BareRepository:
    """The repository of one pair on the host: every pushed branch, complete and checked.

    Packs come from agents and are untrusted. Their size, memory and time are bounded, and every
    object is checked together with everything it refers to. Nothing is ever checked out and no tree
    is ever listed, because a small pack can describe an astronomically large tree. No configuration
    and no hooks get here, only packs.
    """

    def __init__(self, folder: Path, agent_ids: Sequence[str]) -> None:
        """Store the arguments; the folder exists from `create`, at the first push, to `remove`."""
        self._git_dir = folder
        self.base_commit = ""
        self.tips = dict.fromkeys(agent_ids, "")
        """The commit of each agent's branch."""
        self.created = False

    def create(self, pack: bytes) -> None:
        """Create the repository, unless it exists, with all branches at the base commit."""
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
        """Store a push, move the agent's branch, and return the number of new commits.

        Raises GitError if the pack is invalid.
        """
        self._index(pack, commit)
        exclusions = [f"^{tip}" for tip in self.known_tips()]
        new_commits = int(self._git("rev-list", "--count", commit, *exclusions))
        self._git("update-ref", f"refs/heads/{agent_id}", commit)
        self.tips[agent_id] = commit
        return new_commits

    def has(self, commit: str) -> bool:
        """Tell whether a commit exists, and is a commit rather than another object."""
        output = self._git("cat-file", "--batch-check=%(objecttype)", stdin=f"{commit}\n".encode())
        return output == b"commit\n"

    def known_tips(self) -> list[str]:
        """Return the base commit and the commits of all branches, each once."""
        return list(dict.fromkeys((self.base_commit, *self.tips.values())))

    def pack_for(self, commit: str, known_commits: Iterable[str]) -> bytes:
        """Return a pack of the objects that a commit has beyond the known commits."""
        lines = [commit] + [f"^{tip}" for tip in known_commits]
        revisions = "".join(f"{line}\n" for line in lines)
        options = ("-q", "--revs", "--thin", "--stdout", "--delta-base-offset")
        return self._git("pack-objects", *options, stdin=revisions.encode())

    def write_bundle(self, path: Path) -> bool:
        """Write all branches as a bundle; return False if the repository was never created."""
        if not self.created:
            return False
        draft = self._git_dir / "final.bundle"
        branches = [f"refs/heads/{branch}" for branch in ("main", *self.tips)]
        self._git("bundle", "create", "--quiet", str(draft.absolute()), "HEAD", *branches)
        draft.replace(path)
        return True

    def remove(self) -> None:
        """Delete the repository, if there is one."""
        remove_tree(self._git_dir)

    def _index(self, pack: bytes, commit: str) -> None:
        """Store a pack; GitError if an object is invalid or missing, or if it lacks the commit."""
        options = ("--stdin", "--fix-thin", "--strict", f"--max-input-size={len(pack) + 1}")
        packs = self._git_dir / "objects" / "pack"
        before = set(packs.iterdir())
        try:
            if pack:
                self._git("index-pack", *options, stdin=pack)
        except BaseException:
            # git may have stored a pack that it then rejected. A second push must not find it.
            for leftover in set(packs.iterdir()) - before:
                with suppress(OSError):
                    leftover.unlink()
            raise
        if not self.has(commit):
            raise GitError("index-pack", 1, f"{commit} is not in the pack of the sandbox".encode())

    def _git(self, *args: str, stdin: bytes = b"") -> bytes:
        return git(
            *_SETTINGS,
            *args,
            git_dir=self._git_dir,
            stdin=stdin,
            env={"GIT_ALLOC_LIMIT": _MAX_ALLOCATION},
            timeout_seconds=_CALL_SECONDS,
        )


class _Refused(Exception):
    """A push was refused; the message is shown to the agent."""


def _script_argv(command: str, *arguments: str) -> list[str]:
    """Return the argv that runs a command of git_remote.sh in a sandbox."""
    script = script_text("git_remote.sh")
    return ["bash", "-c", script, "git_remote", command, TEAM_GIT_DIR, *arguments]


def _read_pack(
    sandbox: Sandbox, commit: str, limit_bytes: int, known_commits: Iterable[str] = ()
) -> bytes:
    """Return a pack of the objects that a commit in a sandbox has beyond the known commits."""
    path = f"{_DRAFTS_DIR}/outgoing-{secrets.token_hex(8)}.pack"
    argv = _script_argv("pack", str(limit_bytes), path, commit, *known_commits)
    done = sandbox.run(argv, timeout_seconds=_SCRIPT_SECONDS)
    size = done.stdout_read().strip()
    if done.returncode != 0 or not size.isdigit():
        raise _Refused(f"git could not pack it: {done.stderr_read().strip()[-200:]}")
    pack = b"" if int(size) > limit_bytes else sandbox.read_file(path)
    sandbox.run(["rm", "-f", "--", path], timeout_seconds=60)
    if int(size) > limit_bytes or len(pack) > limit_bytes:
        raise _Refused(f"too large: only {limit_bytes} more bytes (packed) may be pushed")
    return pack
