"""The git remote `team` that the agents of a pair share, on any backend and without a network.

Each sandbox has a bare repository of its own at `TEAM_GIT_DIR`. A push runs a hook there that asks the harness; the
harness takes the new commits out as a pack, checks them in the pair's hub on the host, and puts them into every other
sandbox before the push returns. Who may change which branch is decided here: what comes out of an agent's sandbox can
only ever become that agent's branch.
"""

from __future__ import annotations

import re
import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cooperbench.errors import SandboxError
from cooperbench.gitcall import GitError
from cooperbench.team.courier import script_text
from cooperbench.team.hub import Hub
from cooperbench.team.link import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from cooperbench.eval.backends.base import CommandResult, RichSandbox

TEAM_GIT_DIR = "/cooperbench/team.git"
QUOTA_BYTES = 100_000_000
"""What one agent may push, packed, in all its pushes together."""
LARGEST_BASE_BYTES = 250_000_000
MOST_PUSHES = 1_000
"""Of one agent."""
_SCRIPT_SECONDS = 240.0
_COMMIT = re.compile(r"[0-9a-f]{40}")

Place = tuple[str, str]
"""A commit and a path."""


@dataclass(frozen=True)
class Push:
    """One that was taken."""

    agent_id: str
    commit: str


@dataclass(frozen=True)
class FileThere:
    """A file in a commit."""

    blob: str
    """Its id; empty where there is none."""
    content: bytes = b""
    """Empty also where it is too large to look into."""


class GitRemote(Protocol):
    """Of one pair. Asked from the threads of several agents."""

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        """Give the repository in a sandbox the remote `team`."""
        ...

    def push(self, agent_id: str, commit: str) -> Receipt:
        """An agent's branch is to move: carry it to its colleagues, or say why not."""
        ...

    def detach(self, agent_id: str) -> None:
        """An agent is done: its sandbox will be gone, its branch stays."""
        ...

    @property
    def base_commit(self) -> str:
        """Where everybody started from."""
        ...

    def pushes(self) -> list[Push]:
        """Those that were taken, in order."""
        ...

    def files_at(self, places: Sequence[Place]) -> Mapping[Place, FileThere]: ...

    def record(self) -> dict[str, Any]:
        """For result.json: what each agent has pushed."""
        ...

    def write_bundle(self, path: Path) -> bool:
        """The final branches as a file that can be cloned; False where nobody has pushed."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SharingBackend(Protocol):
    """A backend with a way of its own to share, such as a git server next to its sandboxes, if it has this method."""

    def make_git_remote(self, folder: Path, agent_ids: Sequence[str]) -> GitRemote:
        """For one pair; `folder` on the host is the remote's to make, to use and to remove."""
        ...


def make_remote(backend: object, folder: Path, agent_ids: Sequence[str]) -> GitRemote:
    """The backend's own, else the one that works everywhere."""
    if isinstance(backend, SharingBackend):
        return backend.make_git_remote(folder, agent_ids)
    return CarriedRemote(folder, agent_ids)


@dataclass
class _Member:
    """What the remote knows of one agent."""

    sandbox: RichSandbox | None = None
    """None once the agent is done."""
    known: set[str] = field(default_factory=set)
    """Commits that its sandbox has."""
    pushes: int = 0
    refused: int = 0
    commits: int = 0
    bytes: int = 0


class _Refused(Exception):
    """Said to the agent that pushes."""


class CarriedRemote:
    """The harness carries commits between the sandboxes. `folder` is there from the first push until `close`."""

    def __init__(self, folder: Path, agent_ids: Sequence[str], quota_bytes: int = QUOTA_BYTES) -> None:
        self._folder = folder
        self._members = {agent_id: _Member() for agent_id in agent_ids}
        self._quota_bytes = quota_bytes
        self.base_commit = ""
        self._hub: Hub | None = None
        self._pushes: list[Push] = []
        # Pushes are taken one after the other: their order is the same for everybody.
        self._lock = threading.Lock()

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        words = ["install", TEAM_GIT_DIR, repo_dir, base_git_dir, base_commit, agent_id, *self._members]
        done = _run(sandbox, words)
        if done.returncode != 0:
            reason = done.stderr_read().strip()[-300:]
            raise SandboxError(f"the team's git repository could not be made in the sandbox: {reason}")
        sandbox.write_file(f"{TEAM_GIT_DIR}/hooks/update", script_text("update").encode(), 0o755)
        with self._lock:
            self.base_commit = base_commit
            member = self._members[agent_id]
            member.sandbox, member.known = sandbox, {base_commit}
            for other in dict.fromkeys(push.agent_id for push in self._pushes):
                self._deliver(agent_id, other)

    def push(self, agent_id: str, commit: str) -> Receipt:
        with self._lock:
            member = self._members[agent_id]
            try:
                self._take(agent_id, member, commit)
            except (_Refused, GitError) as problem:
                member.refused += 1
                why = problem.reason if isinstance(problem, GitError) else problem
                return Receipt(1, f"refused: {why}\n")
            notes = [self._deliver(other, agent_id) for other in self._members if other != agent_id]
        return Receipt(0, "".join(f"{note}\n" for note in notes if note))

    def detach(self, agent_id: str) -> None:
        # Not under the lock: a push on its way into this sandbox is no reason to keep the agent.
        self._members[agent_id].sandbox = None

    def pushes(self) -> list[Push]:
        with self._lock:
            return list(self._pushes)

    def files_at(self, places: Sequence[Place]) -> Mapping[Place, FileThere]:
        if self._hub is None:
            return {}
        blobs = self._hub.blobs_at(places)
        contents = self._hub.contents_of(blobs.values())
        return {place: FileThere(blob, contents.get(blob, b"")) for place, blob in blobs.items()}

    def record(self) -> dict[str, Any]:
        return {
            name: {agent_id: getattr(member, name) for agent_id, member in self._members.items()}
            for name in ("pushes", "refused", "commits", "bytes")
        }

    def write_bundle(self, path: Path) -> bool:
        return self._hub is not None and self._hub.write_bundle(path)

    def close(self) -> None:
        # A push that is still being taken gets a moment to end; without its sandboxes it does.
        locked = self._lock.acquire(timeout=30)
        try:
            if self._hub is not None:
                self._hub.remove()
        finally:
            if locked:
                self._lock.release()

    def _take(self, agent_id: str, member: _Member, commit: str) -> None:
        if member.sandbox is None or not _COMMIT.fullmatch(commit):
            raise _Refused("the harness was asked for something that is no push")
        if member.pushes >= MOST_PUSHES:
            raise _Refused(f"you have pushed {MOST_PUSHES} times, and may not push more often")
        hub = self._hub or self._make_hub(member.sandbox)
        pack = b""
        if not hub.has(commit):
            left_bytes = self._quota_bytes - member.bytes
            pack = _read_pack(member.sandbox, commit, left_bytes, hub.known_tips())
        member.commits += hub.add(agent_id, commit, pack)
        member.bytes += len(pack)
        member.pushes += 1
        member.known.add(commit)
        self._pushes.append(Push(agent_id, commit))

    def _make_hub(self, sandbox: RichSandbox) -> Hub:
        """From the first sandbox that pushes: ids tell whether what it gives is the base commit."""
        hub = Hub(self._folder, self.base_commit, list(self._members))
        try:
            hub.add_base(_read_pack(sandbox, self.base_commit, LARGEST_BASE_BYTES, ()))
        except BaseException:
            hub.remove()
            raise
        self._hub = hub
        return hub

    def _deliver(self, agent_id: str, branch: str) -> str:
        """Bring a branch into an agent's sandbox; what its pusher should know where that did not work."""
        assert self._hub is not None
        member, commit = self._members[agent_id], self._hub.tips[branch]
        sandbox, reason = member.sandbox, ""
        if sandbox is None:
            return f"{agent_id} has finished and will not see this"
        # What was given may have been thrown away by the agent since: then everything once more.
        for known in (member.known, {self.base_commit}):
            try:
                file = f"{TEAM_GIT_DIR}/incoming-{secrets.token_hex(8)}.pack"
                sandbox.write_file(file, self._hub.pack_for(commit, known))
                done = _run(sandbox, ["take", TEAM_GIT_DIR, file, branch, commit])
            except SandboxError as error:
                if member.sandbox is None:
                    return f"{agent_id} has finished and will not see this"
                reason = str(error)
                continue
            if done.returncode == 0:
                member.known.add(commit)
                return ""
            reason = done.stderr_read().strip()[-200:]
        return f"{agent_id} could not be given this: {reason}"


def _run(sandbox: RichSandbox, words: Sequence[str]) -> CommandResult:
    argv = ["bash", "-c", script_text("gitremote.sh"), "gitremote", *words]
    return sandbox.run(argv, timeout_seconds=_SCRIPT_SECONDS)


def _read_pack(sandbox: RichSandbox, commit: str, limit_bytes: int, known: Iterable[str]) -> bytes:
    """What a commit in a sandbox has beyond the known ones."""
    file = f"{TEAM_GIT_DIR}/outgoing-{secrets.token_hex(8)}.pack"
    done = _run(sandbox, ["pack", TEAM_GIT_DIR, commit, str(limit_bytes), file, *known])
    size = done.stdout_read().strip()
    if done.returncode != 0 or not size.isdigit():
        raise _Refused(f"git could not pack it: {done.stderr_read().strip()[-200:]}")
    pack = b"" if int(size) > limit_bytes else sandbox.read_file(file)
    sandbox.run(["rm", "-f", "--", file], timeout_seconds=60)
    if int(size) > limit_bytes or len(pack) > limit_bytes:
        raise _Refused(f"too large: only {limit_bytes} more bytes (packed) may be pushed")
    return pack
