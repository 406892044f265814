"""The one place that runs git on the host: no configuration of the machine or the user is read, no hook is run (a
repository's own one has falsified published verdicts), nothing is fetched. Callers pass git's own arguments.
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

# A clone's owner may be another user: without hooks and work tree it is as harmless as our own.
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
    "GIT_ALLOW_PROTOCOL": "none",  # stronger than protocol.allow, which `protocol.<name>.allow` overrules
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_BOUNDED = ("sh", "-c", 'ulimit -v 2097152 && ulimit -f 524288 && exec "$@"', "sh")
"""2 GiB of memory, 256 MiB in a file."""
TIMED_OUT = 124
_MAX_MESSAGE = 400
_running: set[subprocess.Popen[bytes]] = set()


class GitError(InfraError):
    """A git command of the harness failed."""

    def __init__(self, command: str, returncode: int, stderr: bytes) -> None:
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
    """Run `git ARGS` and return its stdout; a failure is a `GitError` unless `check` is off."""
    output = run_git(*args, git_dir=git_dir, stdin=stdin, env=env, timeout_seconds=timeout_seconds)
    if check and output.returncode != 0:
        raise GitError(_shown(args), output.returncode, output.stderr)
    return output.stdout


def kill_running_git() -> None:
    """The process was told to stop: callers that wait for git get `Interrupted`."""
    with suppress(KeyError):
        while True:
            _running.pop().kill()


def run_git(
    *args: str,
    git_dir: Path | None = None,
    index: Path | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    bounded: bool = False,
    timeout_seconds: float = 600,
) -> subprocess.CompletedProcess[bytes]:
    """For callers to whom the exit code is an answer. `bounded`: with limits of memory and file size, for input that an
    agent has written."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT, **(env or {})}
    if git_dir is not None:
        environment["GIT_DIR"] = str(git_dir.absolute())
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index.absolute())
    command = [*(_BOUNDED if bounded else ()), "git", *_SETTINGS, *args]
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
            _shown(args), TIMED_OUT, f"no end after {timeout_seconds:g} s".encode()
        ) from error


@cache
def git_version() -> tuple[int, int]:
    """Major and minor, e.g. (2, 39)."""
    text = git("version").decode("utf-8", "replace")
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise UserError(f"`git version` said {text.strip()!r}, which is no version: is this git?")
    return int(match[1]), int(match[2])


def git_dir_of(path: Path) -> Path | None:
    """The git directory of a clone, bare or not, or of a worktree; None: no such."""
    not_above = {"GIT_CEILING_DIRECTORIES": str(path.resolve().parent)}
    found = run_git("-C", str(path), "rev-parse", "--absolute-git-dir", env=not_above)
    return Path(os.fsdecode(found.stdout.rstrip(b"\n"))) if found.returncode == 0 else None


def decode_path(path: bytes) -> str:
    """A path as git stores it; what is not UTF-8 survives as surrogates."""
    return path.decode("utf-8", "surrogateescape")


def encode_path(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def last_lines(stderr: bytes) -> str:
    """The end of git's error message, as one line."""
    lines = [
        line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()
    ]
    text = "; ".join(line.removeprefix("error: ").removeprefix("fatal: ") for line in lines[-3:])
    return text if len(text) <= _MAX_MESSAGE else "…" + text[-_MAX_MESSAGE:]


def _shown(args: tuple[str, ...]) -> str:
    return " ".join(args)[:200]
