"""A git server in a sandbox of its own, for the pairs of a run. Which sandbox, and how it is reached, is the backend's.

It has a repository per pair under a name that nobody can guess, and a token per agent. A base commit is kept once for
all pairs that start from it.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal

from cooperbench.errors import InfraError, SandboxError
from cooperbench.team.packs import LARGEST_BASE_BYTES, read_pack, run_git_script
from cooperbench.team.sandbox_rpc import script_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cooperbench.sandbox.contract import CommandResult, RichSandbox

GitSharing = Literal["server", "carried"]
"""What a backend that can have a server does for `--git`."""
DEFAULT_IMAGE = "python:3.12-bookworm"
"""Has git and Python; any other image that has both will do."""
_ROOT = "/cooperbench/git"
_START_SECONDS = 60
_PROGRAM = {"serve.py": "", "pre-receive": "push_rules.sh", "post-receive": ""}
"""What is put there, and what each begins with."""


class GitServer:
    """Serving from the start until `close`, which ends its sandbox."""

    def __init__(
        self, sandbox: RichSandbox, url: str, *, host: str, port: int, reaches: Sequence[str] = ()
    ) -> None:
        """Listens at `host` and `port`; agents get there by `url`, if they are let through to what `reaches` says."""
        self.url = url.rstrip("/")
        self.reaches = tuple(reaches)
        self._sandbox = sandbox
        self._bases: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()
        for name, before in _PROGRAM.items():
            text = (script_text(before) if before else "") + script_text(name, "server")
            sandbox.write_file(f"{_ROOT}/program/{name}", text.encode(), 0o755)
        done = self._run("start", host, str(port), str(_START_SECONDS))
        if done.returncode:
            reason = " ".join(done.stderr_read().split())[-300:]
            raise SandboxError(
                f"the git server did not start in its sandbox, which needs git and python3: {reason}"
            )

    @property
    def alive(self) -> bool:
        try:
            return self._run("alive").returncode == 0
        except InfraError:
            return False

    def provide_base(self, commit: str, take_pack: Callable[[], bytes]) -> None:
        """Make sure that it has a commit that pairs start from."""
        with self._lock:
            lock = self._bases[commit]
        with lock:
            if self._run("has-base", commit).returncode == 0:
                return
            file = f"{_ROOT}/{commit}.pack"
            self._sandbox.write_file(file, take_pack())
            self._must("keep the base commit", "base", commit, file)

    def create(self, name: str, base_commit: str, tokens: Mapping[str, str], quota: tuple[int, int]) -> None:
        """A repository for a pair; `quota`: bytes and pushes of each agent."""
        quota_bytes, most_pushes = quota
        access = {"tokens": dict(tokens), "quota_bytes": quota_bytes}
        limits = (str(quota_bytes), str(most_pushes))
        self._must("make a repository", "create", name, base_commit, *limits, *tokens)
        # The last: without it nobody gets in.
        self._sandbox.write_file(f"{_ROOT}/pairs/{name}/access.json", json.dumps(access).encode(), 0o600)

    def read_log(self, name: str) -> list[list[str]]:
        """What happened so far, a line each: `push AGENT COMMIT`, `refused AGENT`, `bytes AGENT COUNT`."""
        with _named():
            log = self._sandbox.read_file(f"{_ROOT}/pairs/{name}/log").decode("utf-8", "replace")
        return [line.split() for line in log.splitlines()]

    def read_pack(self, name: str, commits: Sequence[str], known: Iterable[str], limit_bytes: int) -> bytes:
        """What commits of a pair have beyond the known ones."""
        folder = f"{_ROOT}/pairs/{name}"
        return read_pack(
            self._sandbox, f"{folder}/repo.git", commits, limit_bytes=limit_bytes, known=known, folder=folder
        )

    def read_base(self, commit: str) -> bytes:
        return read_pack(
            self._sandbox,
            f"{_ROOT}/bases/{commit}.git",
            [commit],
            limit_bytes=LARGEST_BASE_BYTES,
            folder=_ROOT,
        )

    def remove(self, name: str) -> None:
        """A pair is over."""
        with suppress(InfraError):
            self._sandbox.run(["rm", "-rf", "--", f"{_ROOT}/pairs/{name}"], timeout_seconds=60)

    def close(self) -> None:
        self._sandbox.terminate()

    def _must(self, doing: str, *words: str) -> None:
        done = self._run(*words)
        if done.returncode:
            raise SandboxError(f"the git server could not {doing}: {done.stderr_read().strip()[-300:]}")

    def _run(self, command: str, *words: str) -> CommandResult:
        with _named():
            return run_git_script(self._sandbox, script_text("manage.sh", "server"), command, _ROOT, *words)


class SharedServer:
    """The one of a backend object: started when first asked for, anew when it has died, ended with the backend."""

    def __init__(self, start: Callable[[str], GitServer]) -> None:
        """`start` is given the name of the run that asks first."""
        self._start = start
        self._lock = threading.Lock()
        self._server: GitServer | None = None

    def get(self, run_name: str = "") -> GitServer:
        with self._lock:
            if self._server is not None and not self._server.alive:
                self._end()
            if self._server is None:
                self._server = self._start(run_name)
            return self._server

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            with suppress(InfraError):
                server.close()


@contextmanager
def _named() -> Iterator[None]:
    """Whoever reads that a sandbox has ended should know which."""
    try:
        yield
    except SandboxError as error:
        raise type(error)(f"the team's git server: {error}") from error
