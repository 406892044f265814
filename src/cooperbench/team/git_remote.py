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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from cooperbench.errors import InfraError, SandboxError
from cooperbench.git import GitError, git
from cooperbench.sandbox.base_sandbox import RichSandbox
from cooperbench.sandbox.channel import READ_FILE_LIMIT
from cooperbench.sandbox.contract import CommandResult
from cooperbench.sandbox.git_server import SERVER_DIR, GitServer, git_script, run_git_script
from cooperbench.team.sandbox_rpc import Response, script_text
from cooperbench.temporary import remove_tree

TEAM_GIT_DIR = "/cooperbench/team.git"
_DRAFTS_DIR = "/cooperbench/drafts"
QUOTA_BYTES = 100_000_000
"""What one agent may push, packed, in all its pushes together."""
MOST_PUSHES = 1_000
"""Of one agent."""
_LARGEST_BASE_BYTES = 250_000_000
_LARGEST_ALLOCATION = "512m"
_CALL_SECONDS = 120.0
_DELIVERY_SECONDS = 60.0
_PROBE_SECONDS = 15.0
_COMMIT = re.compile(r"[0-9a-f]{40}")
# The repository on the host is gone when the pair is over: nothing in it need survive a crash of the machine.
_SETTINGS = ("-c", "core.fsync=none", "-c", "pack.threads=1", "-c", "core.bigFileThreshold=64m")
_COUNTS = ("pushes", "refused", "commits", "bytes")
Counts = dict[str, dict[str, int]]
"""By name and agent."""
GitRemote: TypeAlias = "CarriedRemote | ServedRemote"
"""Of one pair. Called from the threads of several agents."""


def make_remote(backend: object, folder: Path, agent_ids: Sequence[str]) -> GitRemote:
    """Behind the backend's git server, else the one that works everywhere; it may use `folder` on the host."""
    if git_server := getattr(backend, "git_server", None):
        return ServedRemote(agent_ids, git_server)
    return CarriedRemote(folder, agent_ids)


class CarriedRemote:
    """The harness carries commits between the sandboxes, without a network.

    Each sandbox has a bare repository of its own at `TEAM_GIT_DIR`. A push runs a hook there that calls the harness,
    which takes the new commits out as a pack, checks them in the pair's repository on the host, and puts them into
    every other sandbox before the push returns. What comes out of an agent's sandbox only becomes that agent's branch.
    """

    def __init__(self, folder: Path, agent_ids: Sequence[str]) -> None:
        self._agent_ids = tuple(agent_ids)
        self._lock = threading.Lock()
        self._sandboxes: dict[str, RichSandbox] = {}
        """Of the agents that are at work and take what they are given."""
        self._known: dict[str, set[str]] = {}
        """Commits that each sandbox has."""
        self._repository = BareRepository(folder, agent_ids)
        self._counts: Counts = {name: dict.fromkeys(agent_ids, 0) for name in _COUNTS}

    def open(self, run_name: str = "") -> tuple[str, ...]:  # noqa: ARG002  # for servers, which people look at
        """Make it ready, before there are sandboxes; what those have to reach, as `host:port`."""
        return ()

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        """Give the repository in a sandbox the remote `team`."""
        done = _in_repository(sandbox, "install", TEAM_GIT_DIR, base_git_dir, base_commit, *self._agent_ids)
        _check(done, "the team's git repository could not be made in the sandbox")
        _add_remote(sandbox, repo_dir, TEAM_GIT_DIR, base_commit, agent_id, self._agent_ids)
        hook = git_script("push_rules.sh") + script_text("update")
        sandbox.write_file(f"{TEAM_GIT_DIR}/hooks/update", hook.encode(), 0o755)
        with self._lock:
            self._repository.base_commit = base_commit
            self._sandboxes[agent_id], self._known[agent_id] = sandbox, {base_commit}
            for other, pushes in self._counts["pushes"].items():
                if pushes:
                    self._deliver(agent_id, other)

    def push(self, agent_id: str, commit: str) -> Response:
        """The hook in a sandbox asks: move the agent's branch and deliver it to its colleagues, or say why not."""
        try:
            # Not under the lock: what is slow in one agent's sandbox is no reason for the others to wait.
            pack = self._fetch(agent_id, commit)
            with self._lock:
                self._counts["commits"][agent_id] += self._repository.add(agent_id, commit, pack)
                self._counts["bytes"][agent_id] += len(pack)
                self._counts["pushes"][agent_id] += 1
                self._known[agent_id].add(commit)
                # The order of pushes is the same for everybody.
                notes = [self._deliver(other, agent_id) for other in self._agent_ids if other != agent_id]
        except (_Refused, InfraError, FileNotFoundError) as problem:
            self._counts["refused"][agent_id] += 1
            reason = problem.reason if isinstance(problem, GitError) else problem
            return Response(1, f"refused: {reason}\n")
        return Response(0, "".join(f"{note}\n" for note in notes if note))

    def detach(self, agent_id: str) -> None:
        """An agent is done: its sandbox will be gone, its branch stays."""
        # Not under the lock: a push on its way into this sandbox is no reason to keep the agent.
        self._sandboxes.pop(agent_id, None)

    def record(self) -> Counts:
        """For result.json."""
        return self._counts

    def write_bundle(self, path: Path) -> bool:
        """The final branches as a file that can be cloned; False where nobody has pushed, or it is too large."""
        return self._repository.write_bundle(path)

    def close(self) -> None:
        # A push that is still being taken gets a moment to end; without its sandboxes it does.
        locked = self._lock.acquire(timeout=30)
        self._repository.remove()
        if locked:
            self._lock.release()

    def _fetch(self, agent_id: str, commit: str) -> bytes:
        """What the host does not have of a commit yet."""
        sandbox = self._sandboxes.get(agent_id)
        if sandbox is None or not _COMMIT.fullmatch(commit):
            raise _Refused("the harness was asked for something that is no push")
        if self._counts["pushes"][agent_id] >= MOST_PUSHES:
            raise _Refused(f"you have pushed {MOST_PUSHES} times, and may not push more often")
        repository = self._repository
        if not repository.created:
            pack = _read_pack(sandbox, TEAM_GIT_DIR, repository.base_commit, _LARGEST_BASE_BYTES)
            with self._lock:
                repository.create(pack)
        if repository.has(commit):
            return b""
        left_bytes = QUOTA_BYTES - self._counts["bytes"][agent_id]
        return _read_pack(sandbox, TEAM_GIT_DIR, commit, left_bytes, repository.known_tips())

    def _deliver(self, agent_id: str, branch: str) -> str:
        """Put a branch into an agent's sandbox; a note for its pusher where that did not work."""
        sandbox, commit, reason = self._sandboxes.get(agent_id), self._repository.tips[branch], ""
        if sandbox is None:
            return f"{agent_id} has finished and will not see this"
        # The agent may have removed what it was given before: then everything once more.
        for known in (self._known[agent_id], {self._repository.base_commit}):
            try:
                file = f"{TEAM_GIT_DIR}/incoming-{secrets.token_hex(8)}.pack"
                sandbox.write_file(file, self._repository.pack_for(commit, known))
                words = (file, branch, commit)
                done = _in_repository(sandbox, "take", TEAM_GIT_DIR, *words, seconds=_DELIVERY_SECONDS)
            except SandboxError as error:
                reason = str(error)
                continue
            if done.returncode == 0:
                self._known[agent_id].add(commit)
                return ""
            reason = done.stderr_read().strip()[-200:]
            if done.timed_out:
                # Whatever it has done to its git, it may hold up its colleagues once.
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
        try:
            git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(self._git_dir))
            self._index(pack, self.base_commit)
            for branch in ("main", *self.tips):
                self._git("update-ref", f"refs/heads/{branch}", self.base_commit)
        except BaseException:
            self.remove()
            raise
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
        try:
            if pack:
                self._git("index-pack", *options, stdin=pack)
        except GitError:
            for leftover in (self._git_dir / "objects" / "pack").glob("tmp_*"):
                with suppress(OSError):
                    leftover.unlink()
            raise
        if not self.has(commit):
            raise GitError("index-pack", 1, f"{commit} is not in what the sandbox gave".encode())

    def _git(self, *args: str, stdin: bytes = b"") -> bytes:
        limit = {"GIT_ALLOC_LIMIT": _LARGEST_ALLOCATION}
        words = (*_SETTINGS, *args)
        return git(*words, git_dir=self._git_dir, stdin=stdin, env=limit, timeout_seconds=_CALL_SECONDS)


class ServedRemote:
    """Behind a git server: agents push and fetch there themselves, each with a token. Else as `CarriedRemote`.

    The server is asked for when the pair begins, with the run's name; other pairs may share it.
    """

    def __init__(self, agent_ids: Sequence[str], get_server: Callable[[str], GitServer]) -> None:
        self._agent_ids = tuple(agent_ids)
        self._lock = threading.Lock()
        self._get_server = get_server
        self._server: GitServer | None = None
        self._name = secrets.token_hex(16)
        self._folder = f"{SERVER_DIR}/pairs/{self._name}"
        self._tokens = {agent_id: secrets.token_urlsafe(24) for agent_id in agent_ids}
        self._created = False

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
        with server.commit_locks[base_commit]:
            if server.manage("has-base", base_commit).returncode != 0:
                _upload_base(server, sandbox, base_git_dir, base_commit)
        with self._lock:
            if not self._created:
                limits = (str(QUOTA_BYTES), str(MOST_PUSHES))
                done = server.manage("create", self._name, base_commit, *limits, *self._agent_ids)
                _check(done, "the git server could not make a repository")
                access = {"tokens": self._tokens, "quota_bytes": QUOTA_BYTES}
                with server.sandbox() as its_sandbox:
                    # Last: without it nobody gets in.
                    file = f"{self._folder}/access.json"
                    its_sandbox.write_file(file, json.dumps(access).encode(), 0o600)
                self._created = True
        url = urlsplit(f"{server.url}/{self._name}.git")
        # The token is in the address, so that clones that an agent makes of it work too.
        url = url._replace(netloc=f"{agent_id}:{self._tokens[agent_id]}@{url.netloc}")
        _add_remote(sandbox, repo_dir, url.geturl(), base_commit, agent_id, self._agent_ids)
        _probe(sandbox, repo_dir)

    def push(self, agent_id: str, commit: str) -> Response:
        return Response(1, f"push {commit[:12]} to the remote team yourself, {agent_id}\n")

    def detach(self, agent_id: str) -> None:
        """A server has nothing to do then."""

    def record(self) -> Counts:
        counts: Counts = {name: dict.fromkeys(self._agent_ids, 0) for name in _COUNTS}
        if self._server is not None and self._created:
            with self._server.sandbox() as sandbox:
                log = sandbox.read_file(f"{self._folder}/log").decode("utf-8", "replace")
            for line in log.splitlines():
                agent_id, name, number = line.split()
                counts[name][agent_id] += int(number)
        return counts

    def write_bundle(self, path: Path) -> bool:
        if self._server is None or not any(self.record()["pushes"].values()):
            return False
        size = self._server.manage("bundle", self._name).stdout_read().strip()
        if not size.isdigit() or int(size) > READ_FILE_LIMIT:
            return False
        with self._server.sandbox() as sandbox:
            path.write_bytes(sandbox.read_file(f"{self._folder}/bundle"))
        return True

    def close(self) -> None:
        with self._lock:
            if self._server is not None and self._created:
                with suppress(InfraError):
                    self._server.manage("remove", self._name)
            self._server = None


class _Refused(Exception):
    """Why a push is not taken, as it can be said to an agent."""


def _in_repository(
    sandbox: RichSandbox, command: str, git_dir: str, *words: str, seconds: float = 240.0
) -> CommandResult:
    script = script_text("git_remote.sh")
    return run_git_script(sandbox, script, command, git_dir, *words, timeout_seconds=seconds)


def _check(done: CommandResult, problem: str) -> None:
    if done.returncode != 0:
        raise SandboxError(f"{problem}: {done.stderr_read().strip()[-300:]}")


def _add_remote(
    sandbox: RichSandbox, repo_dir: str, url: str, commit: str, own_id: str, agent_ids: Iterable[str]
) -> None:
    """Give an agent's repository the remote `team`, with every branch at the commit that they start from."""
    done = _in_repository(sandbox, "join", repo_dir, url, commit, own_id, *agent_ids)
    _check(done, "the agent's repository got no remote")


def _read_pack(
    sandbox: RichSandbox, git_dir: str, commit: str, limit_bytes: int, known: Iterable[str] = ()
) -> bytes:
    """What a commit in a sandbox has beyond the known ones."""
    file = f"{_DRAFTS_DIR}/outgoing-{secrets.token_hex(8)}.pack"
    done = _in_repository(sandbox, "pack", git_dir, str(limit_bytes), file, commit, *known)
    size = done.stdout_read().strip()
    if done.returncode != 0 or not size.isdigit():
        raise _Refused(f"git could not pack it: {done.stderr_read().strip()[-200:]}")
    pack = b"" if int(size) > limit_bytes else sandbox.read_file(file)
    sandbox.run(["rm", "-f", "--", file], timeout_seconds=60)
    if int(size) > limit_bytes or len(pack) > limit_bytes:
        raise _Refused(f"too large: only {limit_bytes} more bytes (packed) may be pushed")
    return pack


def _upload_base(server: GitServer, sandbox: RichSandbox, git_dir: str, commit: str) -> None:
    """From an agent's sandbox; the caller holds the server's lock for the commit."""
    try:
        pack = _read_pack(sandbox, git_dir, commit, _LARGEST_BASE_BYTES)
    except _Refused as problem:
        raise SandboxError(f"the base commit cannot be taken out of the sandbox: {problem}") from problem
    file = f"{SERVER_DIR}/{commit}.pack"
    with server.sandbox() as server_sandbox:
        server_sandbox.write_file(file, pack)
    _check(server.manage("base", commit, file), "the git server could not keep the base commit")


def _probe(sandbox: RichSandbox, repo_dir: str) -> None:
    """Does the sandbox reach the server? A new tunnel may need a moment."""
    script = 'until git -C "$1" ls-remote --heads team >/dev/null; do sleep 1; done'
    command = ["bash", "-c", script, "probe", repo_dir]
    done = sandbox.run(command, timeout_seconds=_PROBE_SECONDS, env={"GIT_TERMINAL_PROMPT": "0"})
    if done.returncode != 0:
        said = " ".join(done.stderr_read().split())[-200:] or "no answer"
        hint = "on Modal, COOPERBENCH_MODAL_GIT=carried needs no server"
        raise SandboxError(f"the sandbox does not reach the team's git server: {said}; {hint}")
