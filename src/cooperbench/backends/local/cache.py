"""The local backend's part of the cache folder: prepared tasks, and files of running sandboxes.

`<cache>/local/<key>/` is the template of a task. `<cache>/sandboxes/<process>/` is the run folder
of a process, in which each of its sandboxes has a folder. The next process removes those of killed
processes.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from cooperbench.backends.local import bubblewrap
from cooperbench.backends.local.rootfs import Content, copy_tree
from cooperbench.backends.ownership import locked
from cooperbench.errors import SandboxError, UserError
from cooperbench.models import Task
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import CommandResult, SandboxOptions
from cooperbench.settings import default_cache_dir
from cooperbench.temporary import is_abandoned, owned_prefix, remove_abandoned, remove_tree
from cooperbench.text import printable

MakeSandbox = Callable[[Content, SandboxOptions, int], Sandbox]
"""A function that starts a sandbox with this content, these options and this lifetime in
seconds."""

_FORMAT = 5
"""Increase it when templates change: older ones are then made again."""
_SETUP_SECONDS = 30 * 60
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_INSTALLER_VARIABLES = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST"),
    *("PIP_DEFAULT_TIMEOUT", "PIP_NO_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    *("NODE_EXTRA_CA_CERTS", "npm_config_registry", "npm_config_cafile", "GOPROXY"),
)
"""Where installers find packages, and the certificates of a company's proxy."""
_PASSWORD_IN_URL = re.compile(r"://[^/@\s]*@")
_DIGESTED_NAMES = ("setup.sh", "runner.sh", "Dockerfile", "base")

_EVALUATION_LAYER = "evaluation"
"""Layer of a template with the workspace for test runs: without future commits."""
_AGENT_LAYER = "agent"
"""Layer of a template with the workspace for agents: without history."""
_HOME_LAYER = "home"
_TEMPLATE_MOUNTS = {
    f"{_EVALUATION_LAYER}/workspace": "/workspace",
    f"{_AGENT_LAYER}/workspace": "/cooperbench/agent",
    f"{_HOME_LAYER}/root": "/root",
    "base": "/cooperbench/base",
    "task": "/task",
}
"""Folders of a template that is being made, and their paths in the sandbox that makes it."""

_SETUP = """
bash /task/setup.sh /workspace/repo || exit
[ -e /workspace/repo ] && exit 0
checkouts=$(find /workspace /task -mindepth 1 -maxdepth 3 -name .git -prune 2>/dev/null)
[ -n "$checkouts" ] || { echo 'setup.sh left no git checkout under /workspace' >&2; exit 1; }
[ "$(printf '%s\\n' "$checkouts" | wc -l)" = 1 ] ||
  { echo 'setup.sh left several git checkouts, none of them /workspace/repo' >&2; exit 1; }
mv -- "$(dirname -- "$checkouts")" /workspace/repo
"""
# Arguments: _SETUP, strip_future_commits.sh, strip_history.sh.
_PREPARE = """
bash -c "$1" || exit
bash -c "$2" strip_future_commits.sh /workspace/repo || exit
cp -a --reflink=auto -- /workspace/. /cooperbench/agent || exit
bash -c "$3" strip_history.sh /cooperbench/agent/repo /cooperbench/base/base.git
"""


def template_content(template: Path, *, agent: bool) -> Content:
    """Return the content of a sandbox of a prepared task, for an agent or for a test run."""
    workspace = template / (_AGENT_LAYER if agent else _EVALUATION_LAYER)
    return Content(
        layers=(workspace, template / _HOME_LAYER),
        runner=template / "runner.sh",
        base_git=template / "base/base.git",
    )


def template_folder(cache_dir: Path, digest: str) -> Path:
    """Return the folder of a task's template.

    It depends on the Python prefix too: a workspace may contain paths of the interpreter.
    """
    name = hashlib.sha256(f"{digest} {sys.base_prefix}".encode()).hexdigest()[:16]
    return cache_dir / "local" / name


def make_template(task: Task, template: Path, make_sandbox: MakeSandbox) -> None:
    """Make a task's template if it does not exist. Threads and processes may call it at once."""
    if template.is_dir():
        return
    _make_private_folder(template.parent)
    with locked(template.with_suffix(".lock")):
        if template.is_dir():
            return
        for leftover in template.parent.glob(f"{template.name}.staging-*"):
            remove_tree(leftover)
        staging = template.with_suffix(f".staging-{os.getpid()}")
        staging.mkdir(mode=0o700)
        try:
            _build_template(task, staging, template.with_suffix(".log"), make_sandbox)
            staging.rename(template)
        finally:
            remove_tree(staging)


def task_digest(task: Task) -> str:
    """Return a digest of everything that setup.sh can see and that makes a difference."""
    for script in (task.setup_script, task.runner_script):
        if not script.is_file():
            raise UserError(
                f"{task.label} has no {script.name}. "
                "The local backend prepares a task by its setup.sh; use another backend"
            )
    python = ".".join(str(number) for number in sys.version_info[:3])
    header = f"cooperbench-local/{_FORMAT} python{python} {platform.machine()}\n"
    digest = hashlib.sha256(header.encode())
    for name in _DIGESTED_NAMES:
        top = task.path / name
        for path in (top, *sorted(top.rglob("*"))):
            relative = path.relative_to(task.path).as_posix()
            digest.update(f"\n{relative}\n".encode("utf-8", "surrogateescape"))
            if path.is_symlink():
                digest.update(b"link " + os.fsencode(path.readlink()))
            elif path.is_file():
                digest.update(b"file " + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _build_template(task: Task, staging: Path, log: Path, make_sandbox: MakeSandbox) -> None:
    """Run a task's setup.sh in a sandbox that writes to the folders of the template."""
    for name in _TEMPLATE_MOUNTS:
        (staging / name).mkdir(parents=True)
    # A copy of the task: setup.sh may clone beside itself, but must not change the dataset.
    copy_tree(task.path, staging / "task")
    result = _run_setup(task, staging, make_sandbox)
    if result.returncode != 0:
        raise _setup_error(task, result, log)
    remove_tree(staging / "task")
    _remove_home_without_files(staging / _HOME_LAYER)
    shutil.copyfile(task.runner_script, staging / "runner.sh")
    log.unlink(missing_ok=True)


def _run_setup(task: Task, staging: Path, make_sandbox: MakeSandbox) -> CommandResult:
    mounts = tuple((staging / name, target) for name, target in _TEMPLATE_MOUNTS.items())
    options = SandboxOptions(purpose="setup", network="public", labels={"task": task.label})
    sandbox = make_sandbox(Content(writable=mounts), options, _SETUP_SECONDS + 60)
    try:
        strip_future_commits = sandbox_script("strip_future_commits.sh")
        strip_history = sandbox_script("strip_history.sh")
        return sandbox.run(
            ["bash", "-c", _PREPARE, "prepare", _SETUP, strip_future_commits, strip_history],
            timeout_seconds=_SETUP_SECONDS,
            cwd="/workspace",
            env=_setup_environment(),
        )
    finally:
        sandbox.terminate()


def _setup_error(task: Task, result: CommandResult, log: Path) -> SandboxError:
    """Write the output of a failed setup.sh to a log; return the error to raise."""
    log.write_bytes(result.stdout + b"\n--- stderr ---\n" + result.stderr)
    if result.timed_out:
        ending = f"did not end within {_SETUP_SECONDS} s"
    else:
        ending = f"failed with exit code {result.returncode}"
    output = result.stderr_read().strip() or result.stdout_read().strip()
    last_lines = [printable(line[:200]) for line in output.splitlines()[-3:]]
    reason = " / ".join(last_lines) or "no output"
    return SandboxError(f"preparing {task.label}: setup.sh {ending}: {reason} (log: {log})")


def _remove_home_without_files(home: Path) -> None:
    """Remove a home that has only folders: these are mount points of the sandbox."""
    for _, _, files in os.walk(home):
        if files:
            return
    remove_tree(home / "root")


def _setup_environment() -> dict[str, str]:
    """Return the variables of this process that setup.sh may need to install packages.

    The code of a task can read them. An address with a password is left out, unless it is that of
    a proxy, without which nothing can be installed.
    """
    environment: dict[str, str] = {}
    for variable in _PROXY_VARIABLES:
        for name in (variable, variable.upper()):
            if name in os.environ:
                environment[name] = os.environ[name]
    for name in _INSTALLER_VARIABLES:
        value = os.environ.get(name)
        if value and not _PASSWORD_IN_URL.search(value):
            environment[name] = value
    return environment


_run_folders_lock = threading.Lock()
_run_folders: dict[tuple[int, Path], Path] = {}
"""Run folders by pid and cache folder: a forked child gets another one."""


def run_folder(cache_dir: Path) -> Path:
    """Return the run folder of this process.

    The first call makes it, and removes what killed processes left.
    """
    key = (os.getpid(), cache_dir)
    with _run_folders_lock:
        if key not in _run_folders:
            remove_leftovers(cache_dir)
            remove_abandoned()
            parent = cache_dir / "sandboxes"
            _make_private_folder(parent)
            _run_folders[key] = Path(mkdtemp(prefix=owned_prefix("sandboxes"), dir=parent))
        return _run_folders[key]


def _make_private_folder(folder: Path) -> None:
    """Make a folder of the cache that only this user can enter."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {folder}: {error.strerror}. "
            "Set COOPERBENCH_CACHE_DIR to another folder"
        ) from error


@atexit.register
def _remove_own_run_folders() -> None:
    bubblewrap.end_all()
    for (pid, _), folder in _run_folders.items():
        if pid == os.getpid():
            remove_tree(folder)


def remove_leftovers(cache_dir: Path) -> list[Path]:
    """Remove the run folders of processes that have ended; return them."""
    leftovers = [path for path in sorted(cache_dir.glob("sandboxes/*")) if is_abandoned(path)]
    for folder in leftovers:
        remove_tree(folder)
    return leftovers


def clean() -> list[str]:
    """Remove everything that killed processes left on this machine; return a line for each."""
    removed = [*remove_leftovers(default_cache_dir()), *remove_abandoned()]
    return [str(path) for path in removed]
