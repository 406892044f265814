"""A git server in a sandbox of its own, for the pairs of a run, on backends that have a place for one.

Such a backend has an attribute `git_server`, a function that takes the run's name and gives a `GitServer`; None where
the harness is to carry commits. It makes the sandbox and says where it can be reached. The server has a repository per
pair under a name that nobody can guess, and a token per agent; what is put there and read from it is up to
`cooperbench.team.git_remote`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from urllib.parse import urlsplit

from cooperbench.errors import InfraError, SandboxDead, SandboxDestroyed, SandboxError
from cooperbench.sandbox.base_sandbox import RichSandbox
from cooperbench.sandbox.contract import CommandResult

DEFAULT_IMAGE = "python:3.12-bookworm"
"""Has git and Python; any other image that has both will do."""
SERVER_DIR = "/cooperbench/git"
_START_SECONDS = 60
_PROGRAM = {"serve.py": "", "pre-receive": "push_rules.sh", "post-receive": ""}
"""Files of the server, and which script each begins with."""


class GitServer:
    """Serving from the start until `close`, which ends its sandbox."""

    def __init__(self, sandbox: RichSandbox, url: str, *, host: str, port: int) -> None:
        """Listens at `host` and `port`. Agents' sandboxes use `url`, and must reach what it names (`reaches`)."""
        self.url = url.rstrip("/")
        place = urlsplit(url)
        self.reaches = (f"{place.hostname}:{place.port or 443}",)
        self._sandbox = sandbox
        self.commit_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """Each held by the pair that puts a base commit there, which others may start from too."""
        for name, before in _PROGRAM.items():
            text = (git_script(before) if before else "") + git_script(name)
            sandbox.write_file(f"{SERVER_DIR}/program/{name}", text.encode(), 0o755)
        done = self.manage("start", host, str(port), str(_START_SECONDS))
        if done.returncode:
            reason = " ".join(done.stderr_read().split())[-300:]
            raise SandboxError(
                f"the git server did not start in its sandbox, which needs git and python3: {reason}"
            )

    @property
    def alive(self) -> bool:
        try:
            return self.manage("alive").returncode == 0
        except InfraError:
            return False

    @contextmanager
    def sandbox(self) -> Iterator[RichSandbox]:
        """For its files. A SandboxError in the block says which sandbox has failed."""
        try:
            yield self._sandbox
        except SandboxError as error:
            # Whoever destroyed it, it was not the agent whose sandbox is asking.
            kind = SandboxDead if isinstance(error, SandboxDestroyed) else type(error)
            raise kind(f"the team's git server: {error}") from error

    def manage(self, command: str, *words: str) -> CommandResult:
        """A command of `manage.sh`."""
        with self.sandbox() as sandbox:
            return run_git_script(sandbox, git_script("manage.sh"), command, SERVER_DIR, *words)

    def close(self) -> None:
        self._sandbox.terminate()


class SharedServer:
    """The server of a backend object: started at the first `get`, again when it has died, ended with the backend."""

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


def run_git_script(
    sandbox: RichSandbox, script: str, *words: str, timeout_seconds: float = 240.0
) -> CommandResult:
    """Run the text of a script that uses `clean_git.sh`, in a sandbox."""
    argv = ["bash", "-c", git_script("clean_git.sh") + script, "script", *words]
    return sandbox.run(argv, timeout_seconds=timeout_seconds)


def git_script(name: str) -> str:
    return (files("cooperbench.sandbox") / "git_scripts" / name).read_text()
