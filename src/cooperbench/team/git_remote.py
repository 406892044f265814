"""The git remote `team` that the agents of a pair share.

Two kinds: the harness carries commits between the sandboxes (`CarriedRemote`), which works on any backend and without a
network; or a git server next to the sandboxes serves them (`ServedRemote`), on backends that have a place for one. In
both an agent can only ever move its own branch, and is limited in what it pushes.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from cooperbench.errors import InfraError, SandboxError
from cooperbench.git import GitError
from cooperbench.sandbox.git_server import SERVER_DIR, GitServingBackend, git_script, run_git_script
from cooperbench.team.bare_repository import BareRepository
from cooperbench.team.sandbox_rpc import Response, script_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from cooperbench.sandbox.contract import CommandResult, RichSandbox
    from cooperbench.sandbox.git_server import GitServer

TEAM_GIT_DIR = "/cooperbench/team.git"
QUOTA_BYTES = 100_000_000
"""What one agent may push, packed, in all its pushes together."""
MOST_PUSHES = 1_000
"""Of one agent."""
_LARGEST_BASE_BYTES = 250_000_000
_PROBE_SECONDS = 15.0
_PROBE_PAUSE_SECONDS = 1.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


class GitRemote(Protocol):
    """Of one pair. Called from the threads of several agents."""

    def open(self, run_name: str = "") -> tuple[str, ...]:
        """Make it ready, before there are sandboxes; what those have to reach, as `host:port`.

        `run_name`: for people who look at what is running.
        """
        ...

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        """Give the repository in a sandbox the remote `team`."""
        ...

    def push(self, agent_id: str, commit: str) -> Response:
        """Move an agent's branch and deliver it to its colleagues, or say why not."""
        ...

    def detach(self, agent_id: str) -> None:
        """An agent is done: its sandbox will be gone, its branch stays."""
        ...

    def record(self) -> dict[str, Any]:
        """For result.json: what each agent has pushed."""
        ...

    def write_bundle(self, path: Path) -> bool:
        """The final branches as a file that can be cloned; False where nobody has pushed."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SharingBackend(Protocol):
    """A backend with a remote of its own, if it has this method."""

    def make_git_remote(self, folder: Path, agent_ids: Sequence[str]) -> GitRemote:
        """For one pair; `folder` on the host is the remote's to make, to use and to remove."""
        ...


def make_remote(backend: object, folder: Path, agent_ids: Sequence[str]) -> GitRemote:
    """The backend's own, else behind its git server, else the one that works everywhere."""
    if isinstance(backend, SharingBackend):
        return backend.make_git_remote(folder, agent_ids)
    if isinstance(backend, GitServingBackend) and backend.git_server is not None:
        return ServedRemote(folder, agent_ids, backend.git_server)
    return CarriedRemote(folder, agent_ids)


@dataclass
class _Member:
    """What a carried remote knows of one agent."""

    sandbox: RichSandbox | None = None
    """None once the agent is done."""
    known: set[str] = field(default_factory=set)
    """Commits that its sandbox has."""


class CarriedRemote:
    """A `GitRemote`: the harness carries commits between the sandboxes, without a network.

    Each sandbox has a bare repository of its own at `TEAM_GIT_DIR`. A push runs a hook there that calls the harness,
    which takes the new commits out as a pack, checks them in the pair's repository on the host, and puts them into
    every other sandbox before the push returns. What comes out of an agent's sandbox only becomes that agent's branch.
    """

    def __init__(self, folder: Path, agent_ids: Sequence[str], quota_bytes: int = QUOTA_BYTES) -> None:
        self._members = {agent_id: _Member() for agent_id in agent_ids}
        self._quota_bytes = quota_bytes
        self._repository = BareRepository(folder, agent_ids)
        # Pushes are taken one after the other: their order is the same for everybody.
        self._lock = threading.Lock()

    def open(self, run_name: str = "") -> tuple[str, ...]:  # noqa: ARG002  # a `GitRemote`'s
        return ()

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        done = _in_repository(sandbox, "install", TEAM_GIT_DIR, base_git_dir, base_commit, *self._members)
        if done.returncode != 0:
            reason = done.stderr_read().strip()[-300:]
            raise SandboxError(f"the team's git repository could not be made in the sandbox: {reason}")
        _add_remote(sandbox, repo_dir, TEAM_GIT_DIR, base_commit, agent_id, self._members)
        hook = git_script("push_rules.sh") + script_text("update")
        sandbox.write_file(f"{TEAM_GIT_DIR}/hooks/update", hook.encode(), 0o755)
        with self._lock:
            self._repository.base_commit = base_commit
            member = self._members[agent_id]
            member.sandbox, member.known = sandbox, {base_commit}
            for other, counts in self._repository.counts.items():
                if counts.pushes:
                    self._deliver(agent_id, other)

    def push(self, agent_id: str, commit: str) -> Response:
        with self._lock:
            try:
                self._take(agent_id, commit)
            except (_CannotPack, GitError) as problem:
                self._repository.counts[agent_id].refused += 1
                return Response(1, f"refused: {_reason(problem)}\n")
            notes = [self._deliver(other, agent_id) for other in self._members if other != agent_id]
        return Response(0, "".join(f"{note}\n" for note in notes if note))

    def detach(self, agent_id: str) -> None:
        # Not under the lock: a push on its way into this sandbox is no reason to keep the agent.
        self._members[agent_id].sandbox = None

    def record(self) -> dict[str, Any]:
        return self._repository.record()

    def write_bundle(self, path: Path) -> bool:
        return self._repository.write_bundle(path)

    def close(self) -> None:
        # A push that is still being taken gets a moment to end; without its sandboxes it does.
        locked = self._lock.acquire(timeout=30)
        try:
            self._repository.remove()
        finally:
            if locked:
                self._lock.release()

    def _take(self, agent_id: str, commit: str) -> None:
        repository, counts = self._repository, self._repository.counts[agent_id]
        sandbox = self._members[agent_id].sandbox
        if sandbox is None or not _COMMIT.fullmatch(commit):
            raise _CannotPack("the harness was asked for something that is no push")
        if counts.pushes >= MOST_PUSHES:
            raise _CannotPack(f"you have pushed {MOST_PUSHES} times, and may not push more often")
        if not repository.created:
            base = [repository.base_commit]
            repository.create(_read_pack(sandbox, TEAM_GIT_DIR, base, limit_bytes=_LARGEST_BASE_BYTES))
        pack = b""
        if not repository.has(commit):
            limit_bytes, known = self._quota_bytes - counts.bytes, repository.known_tips()
            pack = _read_pack(sandbox, TEAM_GIT_DIR, [commit], limit_bytes=limit_bytes, known=known)
        repository.add(agent_id, commit, pack)
        counts.bytes += len(pack)
        self._members[agent_id].known.add(commit)

    def _deliver(self, agent_id: str, branch: str) -> str:
        """Put a branch into an agent's sandbox; a note for its pusher where that did not work."""
        member, commit = self._members[agent_id], self._repository.tips[branch]
        sandbox, reason = member.sandbox, ""
        if sandbox is None:
            return f"{agent_id} has finished and will not see this"
        # The agent may have removed what it was given before: then everything once more.
        for known in (member.known, {self._repository.base_commit}):
            try:
                file = f"{TEAM_GIT_DIR}/incoming-{secrets.token_hex(8)}.pack"
                sandbox.write_file(file, self._repository.pack_for(commit, known))
                done = _in_repository(sandbox, "take", TEAM_GIT_DIR, file, branch, commit)
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


class ServedRemote:
    """A `GitRemote` behind a git server: agents push and fetch there themselves, each with a token.

    The server is asked for when the pair begins, with the run's name; other pairs may share it. What was pushed is
    copied into the repository on the host at the end of the pair.
    """

    def __init__(
        self,
        folder: Path,
        agent_ids: Sequence[str],
        get_server: Callable[[str], GitServer],
        quota_bytes: int = QUOTA_BYTES,
    ) -> None:
        self._get_server = get_server
        self._server: GitServer | None = None
        self._name = secrets.token_hex(16)
        self._dir = f"{SERVER_DIR}/pairs/{self._name}"
        self._tokens = {agent_id: secrets.token_urlsafe(24) for agent_id in agent_ids}
        self._quota_bytes = quota_bytes
        self._repository = BareRepository(folder, agent_ids)
        self._lines_read = 0
        self._lock = threading.Lock()

    def open(self, run_name: str = "") -> tuple[str, ...]:
        with self._lock:
            if self._server is None:
                self._server = self._get_server(run_name)
            return self._server.reaches

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        server = self._server
        if server is None:
            raise SandboxError("the team's git server was not asked for")
        with server.lock_for(base_commit):
            if server.manage("has-base", base_commit).returncode != 0:
                _upload_base(server, sandbox, base_git_dir, base_commit)
        with self._lock:
            if not self._repository.base_commit:
                self._create(server, base_commit)
                self._repository.base_commit = base_commit
        url = urlsplit(f"{server.url}/{self._name}.git")
        # The token is in the address, so that clones that an agent makes of it work too.
        url = url._replace(netloc=f"{agent_id}:{self._tokens[agent_id]}@{url.netloc}")
        _add_remote(sandbox, repo_dir, url.geturl(), base_commit, agent_id, self._tokens)
        _probe(sandbox, repo_dir)

    def push(self, agent_id: str, commit: str) -> Response:
        """Pushes go to the server, not to the harness."""
        return Response(1, f"push {commit[:12]} to the remote team yourself, {agent_id}\n")

    def detach(self, agent_id: str) -> None:
        """Its branch stays."""

    def record(self) -> dict[str, Any]:
        with self._lock:
            self._copy_new_pushes()
            return self._repository.record()

    def write_bundle(self, path: Path) -> bool:
        with self._lock:
            self._copy_new_pushes()
            return self._repository.write_bundle(path)

    def close(self) -> None:
        with self._lock:
            if self._server is not None and self._repository.base_commit:
                with suppress(InfraError), self._server.sandbox() as sandbox:
                    sandbox.run(["rm", "-rf", "--", self._dir], timeout_seconds=60)
            self._server = None
            self._repository.remove()

    def _create(self, server: GitServer, base_commit: str) -> None:
        limits = (str(self._quota_bytes), str(MOST_PUSHES))
        done = server.manage("create", self._name, base_commit, *limits, *self._tokens)
        if done.returncode:
            reason = done.stderr_read().strip()[-300:]
            raise SandboxError(f"the git server could not make a repository: {reason}")
        access = {"tokens": self._tokens, "quota_bytes": self._quota_bytes}
        with server.sandbox() as sandbox:
            # Last: without it nobody gets in.
            sandbox.write_file(f"{self._dir}/access.json", json.dumps(access).encode(), 0o600)

    def _copy_new_pushes(self) -> None:
        """From the server's log: lines `push AGENT COMMIT`, `refused AGENT`, `bytes AGENT COUNT`."""
        if self._server is None or not self._repository.base_commit:
            return
        with self._server.sandbox() as sandbox:
            log = sandbox.read_file(f"{self._dir}/log").decode("utf-8", "replace").splitlines()
            new, self._lines_read = [line.split() for line in log[self._lines_read :]], len(log)
            commits = list(dict.fromkeys(words[2] for words in new if words[0] == "push"))
            if commits:
                self._copy_commits(sandbox, commits)
        for kind, agent_id, *rest in new:
            if kind == "refused":
                self._repository.counts[agent_id].refused += 1
            elif kind == "bytes":
                self._repository.counts[agent_id].bytes += int(rest[0])
            else:
                self._repository.add(agent_id, rest[0], b"")

    def _copy_commits(self, sandbox: RichSandbox, commits: Sequence[str]) -> None:
        repository = self._repository
        try:
            if not repository.created:
                base = repository.base_commit
                base_dir = f"{SERVER_DIR}/bases/{base}.git"
                repository.create(
                    _read_pack(sandbox, base_dir, [base], limit_bytes=_LARGEST_BASE_BYTES, folder=SERVER_DIR)
                )
            pack = _read_pack(
                sandbox,
                f"{self._dir}/repo.git",
                commits,
                limit_bytes=self._quota_bytes * len(self._tokens),
                known=repository.known_tips(),
                folder=self._dir,
            )
            repository.index(pack)
        except (_CannotPack, GitError) as problem:
            raise SandboxError(f"what was pushed cannot be copied: {_reason(problem)}") from problem


class _CannotPack(Exception):
    """Why something could not be taken out of a repository, as it can be said to an agent."""


def _reason(problem: _CannotPack | GitError) -> str:
    return problem.reason if isinstance(problem, GitError) else str(problem)


def _in_repository(sandbox: RichSandbox, command: str, git_dir: str, *words: str) -> CommandResult:
    return run_git_script(sandbox, script_text("git_remote.sh"), command, git_dir, *words)


def _add_remote(
    sandbox: RichSandbox, repo_dir: str, url: str, commit: str, own_id: str, agent_ids: Iterable[str]
) -> None:
    """Give an agent's repository the remote `team`, with every branch at the commit that they start from."""
    done = _in_repository(sandbox, "join", repo_dir, url, commit, own_id, *agent_ids)
    if done.returncode != 0:
        raise SandboxError(f"the agent's repository got no remote: {done.stderr_read().strip()[-300:]}")


def _read_pack(
    sandbox: RichSandbox,
    git_dir: str,
    commits: Sequence[str],
    *,
    limit_bytes: int,
    known: Iterable[str] = (),
    folder: str | None = None,
) -> bytes:
    """What commits in a sandbox have beyond the known ones. `folder`: for a temporary file, else the repository."""
    file = f"{folder or git_dir}/outgoing-{secrets.token_hex(8)}.pack"
    done = _in_repository(sandbox, "pack", git_dir, str(limit_bytes), file, *commits, "--", *known)
    size = done.stdout_read().strip()
    if done.returncode != 0 or not size.isdigit():
        raise _CannotPack(f"git could not pack it: {done.stderr_read().strip()[-200:]}")
    pack = b"" if int(size) > limit_bytes else sandbox.read_file(file)
    sandbox.run(["rm", "-f", "--", file], timeout_seconds=60)
    if int(size) > limit_bytes or len(pack) > limit_bytes:
        raise _CannotPack(f"too large: only {limit_bytes} more bytes (packed) may be pushed")
    return pack


def _upload_base(server: GitServer, sandbox: RichSandbox, git_dir: str, commit: str) -> None:
    """From an agent's sandbox; the caller holds the server's lock for the commit."""
    try:
        pack = _read_pack(sandbox, git_dir, [commit], limit_bytes=_LARGEST_BASE_BYTES, folder="/tmp")  # noqa: S108
    except _CannotPack as problem:
        raise SandboxError(f"the base commit cannot be taken out of the sandbox: {problem}") from problem
    file = f"{SERVER_DIR}/{commit}.pack"
    with server.sandbox() as server_sandbox:
        server_sandbox.write_file(file, pack)
    done = server.manage("base", commit, file)
    if done.returncode:
        reason = done.stderr_read().strip()[-300:]
        raise SandboxError(f"the git server could not keep the base commit: {reason}")


def _probe(sandbox: RichSandbox, repo_dir: str) -> None:
    """Does the sandbox reach the server? A new tunnel may need a moment."""
    command = ["git", "-C", repo_dir, "ls-remote", "--heads", "team"]
    deadline = time.monotonic() + _PROBE_SECONDS
    while True:
        left_seconds = max(1.0, deadline - time.monotonic())
        done = sandbox.run(command, timeout_seconds=left_seconds, env={"GIT_TERMINAL_PROMPT": "0"})
        if done.returncode == 0:
            return
        if time.monotonic() + _PROBE_PAUSE_SECONDS >= deadline:
            said = " ".join(done.stderr_read().split())[-200:] or f"exit code {done.returncode}"
            raise SandboxError(
                f"the sandbox does not reach the team's git server: {said}; the backend's setting git=carried"
                " needs no server"
            )
        time.sleep(_PROBE_PAUSE_SECONDS)
