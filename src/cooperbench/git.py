"""The one place that runs git for the harness.

No call depends on the machine or runs anything of the repository: the environment is built from scratch, the user's and
the system's configuration are not read, and no hook, filter, merge or diff driver, fsmonitor, signing program, pager,
editor, ssh command or credential helper is called, nor are missing objects fetched. A repository's own hook, run by a
harness commit, has falsified published verdicts.

Not for sandboxes: what runs there runs through the sandbox. And no wrapper of git's commands: callers say
what they want in git's own words.
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

from cooperbench.errors import InfraError, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTINGS = {
    # Nothing of the repository's may run.
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.sshCommand": "false",
    "core.askPass": "false",
    "core.gitProxy": "",
    "core.alternateRefsCommand": "false",
    "credential.helper": "",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "log.showSignature": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "rerere.enabled": "false",
    # Bytes stay as they are, and the same input gives the same answer on every machine.
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.safecrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.quotePath": "true",
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
    "merge.conflictStyle": "merge",
    "merge.renames": "true",
    "merge.directoryRenames": "conflict",
    "advice.detachedHead": "false",
    "advice.submoduleMergeConflict": "false",
    "init.defaultBranch": "main",
    # With the above, another owner's repository is as harmless as our own.
    "safe.directory": "*",
}
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
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
    "GIT_SEQUENCE_EDITOR": ":",
    "GIT_AUTHOR_NAME": "CooperBench",
    "GIT_AUTHOR_EMAIL": "cooperbench@localhost",
    "GIT_AUTHOR_DATE": "946684800 +0000",
    "GIT_COMMITTER_NAME": "CooperBench",
    "GIT_COMMITTER_EMAIL": "cooperbench@localhost",
    "GIT_COMMITTER_DATE": "946684800 +0000",
}
_DIFF_COMMANDS = frozenset({"diff", "diff-tree", "diff-index", "diff-files", "log", "show", "format-patch"})
_BOUNDED = ("sh", "-c", 'ulimit -v 2097152 && ulimit -f 524288 && exec "$@"', "sh")
"""2 GiB of memory, 256 MiB in a file."""
_DRIVER_KEYS = re.compile(rb"filter\..*\.(?:clean|smudge|process|required)$|merge\..*\.driver$", re.DOTALL)


class GitError(InfraError):
    """A git command of the harness failed."""

    def __init__(self, command: str, returncode: int, stderr: bytes) -> None:
        self.returncode = returncode
        self.reason = last_lines(stderr)
        super().__init__(f"`git {command}` failed ({returncode}): {self.reason or 'no message'}")


class GitOutput(NamedTuple):
    """What a git command left behind."""

    returncode: int
    stdout: bytes
    stderr: bytes


class GitOptions(TypedDict, total=False):
    """How git is run."""

    cwd: Path | None
    """The top of a repository or no repository at all: git does not go looking for one further up."""
    git_dir: Path | None
    index: Path | None
    stdin: bytes
    env: Mapping[str, str] | None
    """No protocol is allowed; `{"GIT_ALLOW_PROTOCOL": "file"}` lets a clone on this machine be fetched from."""
    own_repository: bool
    """The harness made the repository and knows its config, which saves a look at it."""
    bounded: bool
    """With limits of memory and file size, for input that an agent has written."""
    timeout_seconds: float


def git(*args: str, check: bool = True, **options: Unpack[GitOptions]) -> bytes:
    """Run `git ARGS` and return its stdout; a failure is a `GitError` unless `check` is off."""
    output = run_git(*args, **options)
    if check and output.returncode != 0:
        raise GitError(_shown(args), output.returncode, output.stderr)
    return output.stdout


def run_git(*args: str, **options: Unpack[GitOptions]) -> GitOutput:
    """As `git`, for callers to whom the exit code is an answer."""
    cwd, stdin = options.get("cwd"), options.get("stdin", b"")
    environment = _environment(cwd, options.get("git_dir"), options.get("index"))
    if not options.get("own_repository"):
        environment |= _overrides_of_drivers(cwd, environment)
    environment |= options.get("env") or {}
    seconds, bounded = options.get("timeout_seconds", 600), options.get("bounded", False)
    return _call(args, cwd, environment, stdin, seconds, bounded=bounded)


@cache
def git_version() -> tuple[int, int]:
    """Major and minor, e.g. (2, 39)."""
    text = git("version", own_repository=True).decode("utf-8", "replace")
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise UserError(f"`git version` said {text.strip()!r}, which is no version: is this git?")
    return int(match[1]), int(match[2])


def git_dir_of(path: Path) -> Path | None:
    """The git directory of a clone, bare or not, or of a worktree; None: no such."""
    if not path.is_dir():
        return None
    found = run_git("rev-parse", "--absolute-git-dir", cwd=path, own_repository=True)
    return Path(os.fsdecode(found.stdout.rstrip(b"\n"))) if found.returncode == 0 else None


def decode_path(path: bytes) -> str:
    """A path as git stores it; what is not UTF-8 survives as surrogates."""
    return path.decode("utf-8", "surrogateescape")


def encode_path(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def last_lines(stderr: bytes, limit: int = 400) -> str:
    """The end of git's error message, as one line."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    text = "; ".join(line.removeprefix("error: ").removeprefix("fatal: ") for line in lines[-3:])
    return text if len(text) <= limit else "…" + text[-limit:]


def _environment(cwd: Path | None, git_dir: Path | None, index: Path | None) -> dict[str, str]:
    environment = {"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT}
    if git_dir is not None:
        environment["GIT_DIR"] = str(git_dir.absolute())
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index.absolute())
    environment["GIT_CEILING_DIRECTORIES"] = str((cwd or Path()).resolve().parent)
    return environment


def _overrides_of_drivers(cwd: Path | None, environment: dict[str, str]) -> dict[str, str]:
    """Filters and merge drivers have names of the owner's choice: look them up to switch them off."""
    listing = ("config", "-z", "--name-only", "--get-regexp", r"^(filter|merge)\.")
    overrides: dict[str, str] = {}
    number = 0
    for name in _call(listing, cwd, environment, b"", 60).stdout.split(b"\0"):
        if not _DRIVER_KEYS.match(name):
            continue
        # As a command of a merge driver, `false` reports a conflict.
        off = "false" if name.endswith((b".required", b".driver")) else ""
        overrides |= {f"GIT_CONFIG_KEY_{number}": os.fsdecode(name), f"GIT_CONFIG_VALUE_{number}": off}
        number += 1
    if number and git_version() < (2, 31):
        raise UserError("a repository with filters or merge drivers in its config needs git 2.31 or newer")
    return overrides | {"GIT_CONFIG_COUNT": str(number)}


def _call(
    args: tuple[str, ...],
    cwd: Path | None,
    environment: dict[str, str],
    stdin: bytes,
    timeout_seconds: float,
    *,
    bounded: bool = False,
) -> GitOutput:
    command = [*(_BOUNDED if bounded else ()), "git", "--no-pager"]
    for key, value in _SETTINGS.items():
        command += ["-c", f"{key}={value}"]
    safe = ["--no-ext-diff", "--no-textconv"] if args[:1] and args[0] in _DIFF_COMMANDS else []
    command += [*args[:1], *safe, *args[1:]]
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, cwd=cwd, env=environment, timeout=timeout_seconds
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise GitError(_shown(args), 128, f"there is no folder {cwd}".encode()) from error
        raise UserError(
            "git was not found on the PATH: install git 2.25 or newer, e.g. `apt-get install git`"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise GitError(_shown(args), 124, f"no end after {timeout_seconds:g} s".encode()) from error
    return GitOutput(done.returncode, done.stdout, done.stderr)


def _shown(args: tuple[str, ...]) -> str:
    return " ".join(args)[:200]
