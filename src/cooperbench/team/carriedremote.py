"""A shared remote on any backend and without a network: the harness carries commits between the sandboxes.

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
from typing import TYPE_CHECKING, Any

from cooperbench.errors import SandboxError
from cooperbench.gitcall import GitError
from cooperbench.team.ledger import Ledger
from cooperbench.team.packs import LARGEST_BASE_BYTES, Unpackable, in_repository, join_team, read_pack
from cooperbench.team.sandbox_rpc import Response, script_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.team.hub import Hub
    from cooperbench.team.ledger import FileThere, Place, Push

TEAM_GIT_DIR = "/cooperbench/team.git"
QUOTA_BYTES = 100_000_000
"""What one agent may push, packed, in all its pushes together."""
MOST_PUSHES = 1_000
"""Of one agent."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class _Member:
    """What the remote knows of one agent."""

    sandbox: RichSandbox | None = None
    """None once the agent is done."""
    known: set[str] = field(default_factory=set)
    """Commits that its sandbox has."""


class CarriedRemote:
    """A `GitRemote`. `folder` is there from the first push until `close`."""

    def __init__(self, folder: Path, agent_ids: Sequence[str], quota_bytes: int = QUOTA_BYTES) -> None:
        self._members = {agent_id: _Member() for agent_id in agent_ids}
        self._quota_bytes = quota_bytes
        self._ledger = Ledger(folder, agent_ids)
        # Pushes are taken one after the other: their order is the same for everybody.
        self._lock = threading.Lock()

    @property
    def base_commit(self) -> str:
        return self._ledger.base_commit

    def open(self, run_name: str = "") -> tuple[str, ...]:  # noqa: ARG002  # a `GitRemote`'s
        return ()

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        done = in_repository(sandbox, "install", TEAM_GIT_DIR, base_git_dir, base_commit, *self._members)
        if done.returncode != 0:
            reason = done.stderr_read().strip()[-300:]
            raise SandboxError(f"the team's git repository could not be made in the sandbox: {reason}")
        join_team(sandbox, repo_dir, TEAM_GIT_DIR, base_commit, agent_id, self._members)
        hook = script_text("push_rules.sh") + script_text("update")
        sandbox.write_file(f"{TEAM_GIT_DIR}/hooks/update", hook.encode(), 0o755)
        with self._lock:
            self._ledger.base_commit = base_commit
            member = self._members[agent_id]
            member.sandbox, member.known = sandbox, {base_commit}
            for other in dict.fromkeys(push.agent_id for push in self._ledger.pushes):
                self._deliver(agent_id, other)

    def push(self, agent_id: str, commit: str) -> Response:
        with self._lock:
            try:
                self._take(agent_id, commit)
            except (Unpackable, GitError) as problem:
                self._ledger.accounts[agent_id].refused += 1
                why = problem.reason if isinstance(problem, GitError) else problem
                return Response(1, f"refused: {why}\n")
            notes = [self._deliver(other, agent_id) for other in self._members if other != agent_id]
        return Response(0, "".join(f"{note}\n" for note in notes if note))

    def detach(self, agent_id: str) -> None:
        # Not under the lock: a push on its way into this sandbox is no reason to keep the agent.
        self._members[agent_id].sandbox = None

    def pushes(self) -> list[Push]:
        with self._lock:
            return list(self._ledger.pushes)

    def files_at(self, places: Sequence[Place]) -> Mapping[Place, FileThere]:
        return self._ledger.files_at(places)

    def record(self) -> dict[str, Any]:
        return self._ledger.record()

    def write_bundle(self, path: Path) -> bool:
        return self._ledger.write_bundle(path)

    def close(self) -> None:
        # A push that is still being taken gets a moment to end; without its sandboxes it does.
        locked = self._lock.acquire(timeout=30)
        try:
            self._ledger.remove()
        finally:
            if locked:
                self._lock.release()

    def _take(self, agent_id: str, commit: str) -> None:
        sandbox, account = self._members[agent_id].sandbox, self._ledger.accounts[agent_id]
        if sandbox is None or not _COMMIT.fullmatch(commit):
            raise Unpackable("the harness was asked for something that is no push")
        if account.pushes >= MOST_PUSHES:
            raise Unpackable(f"you have pushed {MOST_PUSHES} times, and may not push more often")
        hub = self._ledger.hub or self._start(sandbox)
        pack = b""
        if not hub.has(commit):
            left_bytes = self._quota_bytes - account.bytes
            pack = read_pack(sandbox, TEAM_GIT_DIR, [commit], limit_bytes=left_bytes, known=hub.known_tips())
        self._ledger.add(agent_id, commit, pack)
        account.bytes += len(pack)
        self._members[agent_id].known.add(commit)

    def _start(self, sandbox: RichSandbox) -> Hub:
        """From the first sandbox that pushes."""
        commits = [self._ledger.base_commit]
        return self._ledger.start(read_pack(sandbox, TEAM_GIT_DIR, commits, limit_bytes=LARGEST_BASE_BYTES))

    def _deliver(self, agent_id: str, branch: str) -> str:
        """Bring a branch into an agent's sandbox; what its pusher should know where that did not work."""
        assert self._ledger.hub is not None
        member, commit = self._members[agent_id], self._ledger.hub.tips[branch]
        sandbox, reason = member.sandbox, ""
        if sandbox is None:
            return f"{agent_id} has finished and will not see this"
        # What was given may have been thrown away by the agent since: then everything once more.
        for known in (member.known, {self.base_commit}):
            try:
                file = f"{TEAM_GIT_DIR}/incoming-{secrets.token_hex(8)}.pack"
                sandbox.write_file(file, self._ledger.hub.pack_for(commit, known))
                done = in_repository(sandbox, "take", TEAM_GIT_DIR, file, branch, commit)
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
