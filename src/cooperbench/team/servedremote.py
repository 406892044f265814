"""A shared remote behind a git server next to the sandboxes: agents push and fetch there themselves, each with a token.

What was pushed is taken from the server into a hub on the host when it is asked for, at the end of the pair.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cooperbench.errors import SandboxError
from cooperbench.gitcall import GitError
from cooperbench.team.carriedremote import MOST_PUSHES, QUOTA_BYTES, CarriedRemote
from cooperbench.team.ledger import Ledger
from cooperbench.team.packs import LARGEST_BASE_BYTES, Unpackable, join_team, read_pack
from cooperbench.team.sandbox_rpc import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.team.gitremote import GitRemote
    from cooperbench.team.gitserver import GitServer, GitSharing
    from cooperbench.team.ledger import FileThere, Place, Push

_PROBE_SECONDS = 15.0
_PAUSE_SECONDS = 1.0


class ServedRemote:
    """A `GitRemote`. The server is asked for when the pair begins, with the run's name; others may share it."""

    def __init__(
        self,
        folder: Path,
        agent_ids: Sequence[str],
        server: Callable[[str], GitServer],
        quota_bytes: int = QUOTA_BYTES,
    ) -> None:
        self._ask_for_server = server
        self._server: GitServer | None = None
        self._name = secrets.token_hex(16)
        self._tokens = {agent_id: secrets.token_urlsafe(24) for agent_id in agent_ids}
        self._quota_bytes = quota_bytes
        self._ledger = Ledger(folder, agent_ids)
        self._events_read = 0
        self._lock = threading.Lock()

    @property
    def base_commit(self) -> str:
        return self._ledger.base_commit

    def open(self, run_name: str = "") -> tuple[str, ...]:
        with self._lock:
            if self._server is None:
                self._server = self._ask_for_server(run_name)
            return self._server.reaches

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        server = self._opened()
        server.provide_base(base_commit, lambda: _read_base(sandbox, base_git_dir, base_commit))
        with self._lock:
            if not self._ledger.base_commit:
                limits = (self._quota_bytes, MOST_PUSHES)
                server.create(self._name, base_commit, self._tokens, limits)
                self._ledger.base_commit = base_commit
        url = _with_credential(f"{server.url}/{self._name}.git", agent_id, self._tokens[agent_id])
        join_team(sandbox, repo_dir, url, base_commit, agent_id, self._tokens)
        _probe(sandbox, repo_dir)

    def push(self, agent_id: str, commit: str) -> Response:
        """Pushes go to the server; nobody has reason to ask us."""
        return Response(1, f"push {commit[:12]} to the remote team yourself, {agent_id}\n")

    def detach(self, agent_id: str) -> None:
        """Its branch stays."""

    def pushes(self) -> list[Push]:
        with self._lock:
            self._catch_up()
            return list(self._ledger.pushes)

    def files_at(self, places: Sequence[Place]) -> Mapping[Place, FileThere]:
        return self._ledger.files_at(places)

    def record(self) -> dict[str, Any]:
        with self._lock:
            self._catch_up()
            return self._ledger.record()

    def write_bundle(self, path: Path) -> bool:
        with self._lock:
            self._catch_up()
            return self._ledger.write_bundle(path)

    def close(self) -> None:
        with self._lock:
            if self._server is not None and self._ledger.base_commit:
                self._server.remove(self._name)
            self._server = None
            self._ledger.remove()

    def _opened(self) -> GitServer:
        if self._server is None:
            raise SandboxError("the team's git server was not asked for")
        return self._server

    def _catch_up(self) -> None:
        """Take over what has happened on the server since we last looked."""
        if self._server is None or not self._ledger.base_commit:
            return
        events = self._server.read_log(self._name)
        new, self._events_read = events[self._events_read :], len(events)
        commits = list(dict.fromkeys(words[2] for words in new if words[0] == "push"))
        if commits:
            self._take(commits)
        for kind, agent_id, *rest in new:
            account = self._ledger.accounts[agent_id]
            if kind == "refused":
                account.refused += 1
            elif kind == "bytes":
                account.bytes += int(rest[0])
            else:
                self._ledger.add(agent_id, rest[0], b"")

    def _take(self, commits: Sequence[str]) -> None:
        server = self._opened()
        try:
            hub = self._ledger.hub or self._ledger.start(server.read_base(self._ledger.base_commit))
            limit_bytes = self._quota_bytes * len(self._tokens)
            hub.index(server.read_pack(self._name, commits, hub.known_tips(), limit_bytes))
        except (Unpackable, GitError) as problem:
            why = problem.reason if isinstance(problem, GitError) else problem
            raise SandboxError(f"what was pushed cannot be taken from the git server: {why}") from problem


def choose_remote(
    way: GitSharing, folder: Path, agent_ids: Sequence[str], server: Callable[[str], GitServer]
) -> GitRemote:
    """For backends that have a server, unless their user wants none."""
    if way == "carried":
        return CarriedRemote(folder, agent_ids)
    return ServedRemote(folder, agent_ids, server)


def _probe(sandbox: RichSandbox, repo_dir: str) -> None:
    """Does the sandbox get there? A new tunnel may need a moment."""
    command = ["git", "-C", repo_dir, "ls-remote", "--heads", "team"]
    deadline = time.monotonic() + _PROBE_SECONDS
    while True:
        left_seconds = max(1.0, deadline - time.monotonic())
        done = sandbox.run(command, timeout_seconds=left_seconds, env={"GIT_TERMINAL_PROMPT": "0"})
        if done.returncode == 0:
            return
        if time.monotonic() + _PAUSE_SECONDS >= deadline:
            said = " ".join(done.stderr_read().split())[-200:] or f"exit code {done.returncode}"
            raise SandboxError(
                f"the sandbox does not reach the team's git server: {said}; the backend's setting git=carried"
                " needs no server"
            )
        time.sleep(_PAUSE_SECONDS)


def _read_base(sandbox: RichSandbox, git_dir: str, commit: str) -> bytes:
    try:
        return read_pack(sandbox, git_dir, [commit], limit_bytes=LARGEST_BASE_BYTES, folder="/tmp")  # noqa: S108
    except Unpackable as problem:
        raise SandboxError(f"the base commit cannot be taken out of the sandbox: {problem}") from problem


def _with_credential(url: str, user: str, token: str) -> str:
    """In the address, so that clones that an agent makes of it work too."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{token}@{parts.netloc}").geturl()
