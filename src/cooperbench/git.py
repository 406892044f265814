"""Runs git on the host.

Git reads no configuration of the machine or the user, runs no hooks (a repository's own hook has
falsified published verdicts) and fetches nothing. Callers pass git's own arguments.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from cooperbench.errors import InfraError, Interrupted, UserError

# A clone may belong to another user: without hooks and work tree it is harmless.
_SETTINGS = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "safe.directory=*",
)
_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "LC_ALL": "C",
    "TZ": "UTC",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    # Stronger than protocol.allow, which `protocol.<name>.allow` overrides.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_BOUNDED = ("sh", "-c", 'ulimit -v 2097152 && ulimit -f 524288 && exec "$@"', "sh")
"""Limits memory to 2 GiB and files to 256 MiB."""
TIMED_OUT = 124
_MAX_MESSAGE = 400
_running: set[subprocess.Popen[bytes]] = set()


class GitError(InfraError):
    """A git command on the host failed."""

    def __init__(self, command: str, returncode: int, stderr: bytes) -> None:
        """Create the error; the end of `stderr` is the reason."""
        self.returncode = returncode
        self.reason = last_lines(stderr)
        super().__init__(f"`git {command}` failed ({returncode}): {self.reason or 'no message'}")


def git(
    *args: str,
    git_dir: Path | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 600,
    check: bool = True,
) -> bytes:
    """Run `git ARGS` and return its stdout; raise GitError if it fails and `check` is set."""
    output = run_git(*args, git_dir=git_dir, stdin=stdin, env=env, timeout_seconds=timeout_seconds)
    if check and output.returncode != 0:
        raise GitError(_shown(args), output.returncode, output.stderr)
    return output.stdout


def kill_running_git() -> None:
    """Kill all git processes, because the run is being stopped; their callers get Interrupted."""
    with suppress(KeyError):
        while True:
            _running.pop().kill()


def run_git(  # noqa: PLR0913  # each is an independent, optional setting of the process
    *args: str,
    git_dir: Path | None = None,
    index: Path | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    bounded: bool = False,
    timeout_seconds: float = 600,
) -> subprocess.CompletedProcess[bytes]:
    """Run `git ARGS` and return its output and exit status, whatever that is.

    Args:
        *args: The arguments of git.
        git_dir: The repository.
        index: The index file.
        stdin: Input of the command.
        env: More environment variables.
        bounded: Limit memory and file size, for input that an agent has written.
        timeout_seconds: Time after which git is killed and GitError is raised.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT, **(env or {})}
    if git_dir is not None:
        environment["GIT_DIR"] = str(git_dir.absolute())
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index.absolute())
    command = ["git", *_SETTINGS, *args]
    if bounded:
        command = [*_BOUNDED, *command]
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        ) as process:
            _running.add(process)
            try:
                stdout, stderr = process.communicate(stdin, timeout_seconds)
                if process not in _running:
                    raise Interrupted("stopped")
                return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
            finally:
                _running.discard(process)
                process.kill()
    except FileNotFoundError as error:
        raise UserError(
            "git was not found on the PATH: install git 2.39 or newer, e.g. `apt-get install git`"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise GitError(
            _shown(args), TIMED_OUT, f"timed out after {timeout_seconds:g} s".encode()
        ) from error


@cache
def git_version() -> tuple[int, int]:
    """Return the major and minor version of git, e.g. (2, 39)."""
    text = git("version").decode("utf-8", "replace")
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise UserError(
            f"`git version` printed {text.strip()!r}, which is not a version: is this git?"
        )
    return int(match[1]), int(match[2])


def git_dir_of(path: Path) -> Path | None:
    """Return the git directory of a clone (bare or not) or worktree; None if it is neither."""
    not_above = {"GIT_CEILING_DIRECTORIES": str(path.resolve().parent)}
    output = run_git("-C", str(path), "rev-parse", "--absolute-git-dir", env=not_above)
    if output.returncode != 0:
        return None
    return Path(os.fsdecode(output.stdout.rstrip(b"\n")))


def decode_path(path: bytes) -> str:
    """Return a path of git as text; bytes that are not UTF-8 become surrogates."""
    return path.decode("utf-8", "surrogateescape")


def encode_path(path: str) -> bytes:
    """Return a path as git stores it; the inverse of `decode_path`."""
    return path.encode("utf-8", "surrogateescape")


def last_lines(stderr: bytes) -> str:
    """Return the end of git's error message as one line."""
    lines = [
        line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()
    ]
    text = "; ".join(line.removeprefix("error: ").removeprefix("fatal: ") for line in lines[-3:])
    return text if len(text) <= _MAX_MESSAGE else "…" + text[-_MAX_MESSAGE:]


def _shown(args: tuple[str, ...]) -> str:
    return " ".join(args)[:200]
