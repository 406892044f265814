"""What the backend keeps in the cache folder: prepared tasks, and the files of running sandboxes.

`<cache>/local/<key>/` is the template of a task; `<cache>/sandboxes/<process>/` the run folder of a process, in which
each of its sandboxes has a folder. Those of killed processes are removed by the next one.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
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
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.settings import default_cache_dir
from cooperbench.temporary import is_abandoned, owned_prefix, remove_abandoned, remove_tree
from cooperbench.text import printable

MakeSandbox = Callable[[Content, SandboxOptions, int], Sandbox]

_FORMAT = 4
_SETUP_SECONDS = 30 * 60
_PROXY_NAMES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")

_SETUP = """
bash /task/setup.sh /workspace/repo || exit
[ -e /workspace/repo ] && exit 0
found=$(find /workspace /task -mindepth 1 -maxdepth 3 -name .git -prune 2>/dev/null)
[ -n "$found" ] || { echo 'setup.sh left no git checkout under /workspace' >&2; exit 1; }
[ "$(printf '%s\\n' "$found" | wc -l)" = 1 ] ||
  { echo 'setup.sh left several git checkouts, none of them /workspace/repo' >&2; exit 1; }
mv -- "$(dirname -- "$found")" /workspace/repo
"""
_PREPARE = """
bash -c "$1" || exit
bash -c "$2" strip_future_commits.sh /workspace/repo || exit
cp -a --reflink=auto -- /workspace/. /cooperbench/agent || exit
bash -c "$3" strip_history.sh /cooperbench/agent/repo /cooperbench/base/base.git
"""
"""Sets up a task, removes later commits from the repository, and the whole history from a copy of it."""


def template_content(template: Path, *, agent: bool) -> Content:
    """What a sandbox of a prepared task is filled with."""
    layers = (template / ("agent" if agent else "judged"), template / "home")
    return Content(layers, runner=template / "runner.sh", base_git=template / "base/base.git")


def template_folder(cache_dir: Path, digest: str) -> Path:
    """Where the template of a task is: a workspace may hold paths of the interpreter it was made with."""
    name = hashlib.sha256(f"{digest} {sys.base_prefix}".encode()).hexdigest()[:16]
    return cache_dir / "local" / name


def make_template(task: Task, template: Path, make_sandbox: MakeSandbox) -> None:
    """Unless it is there already. Safe to call from threads and processes at once."""
    if template.is_dir():
        return
    _make_folder(template.parent)
    with locked(template.with_suffix(".lock")):
        if template.is_dir():
            return
        for left in template.parent.glob(f"{template.name}.staging-*"):
            remove_tree(left)
        staging = template.with_suffix(f".staging-{os.getpid()}")
        staging.mkdir(mode=0o700)
        try:
            _build(task, staging, template.with_suffix(".log"), make_sandbox)
            staging.rename(template)
        finally:
            remove_tree(staging)


def task_digest(task: Task) -> str:
    """What identifies a prepared task: everything that setup.sh can see that makes a difference."""
    for needed in (task.setup_script, task.runner_script):
        if not needed.is_file():
            raise UserError(
                f"{task.label} has no {needed.name}; the local backend prepares a task by its setup.sh"
            )
    python = ".".join(map(str, sys.version_info[:3]))
    digest = hashlib.sha256(
        f"cooperbench-local/{_FORMAT} python{python} {platform.machine()}\n".encode()
    )
    for name in ("setup.sh", "runner.sh", "Dockerfile", "base"):
        for path in (task.path / name, *sorted((task.path / name).rglob("*"))):
            digest.update(
                f"\n{path.relative_to(task.path).as_posix()}\n".encode("utf-8", "surrogateescape")
            )
            if path.is_symlink():
                digest.update(b"link " + os.fsencode(path.readlink()))
            elif path.is_file():
                digest.update(b"file " + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _build(task: Task, staging: Path, log: Path, make_sandbox: MakeSandbox) -> None:
    """Layers: `judged`, without later commits, `agent`, without history, and `home`. `base`: the commit of `agent`."""
    places = {"judged/workspace": "/workspace", "home/root": "/root", "task": "/task"}
    places |= {"agent/workspace": "/cooperbench/agent", "base": "/cooperbench/base"}
    for name in places:
        (staging / name).mkdir(parents=True)
    # A copy of the task: a setup.sh that clones beside itself must be able to, and the dataset stays as it is.
    copy_tree(task.path, staging / "task")
    content = Content(writable=tuple((staging / name, place) for name, place in places.items()))
    options = SandboxOptions(purpose="setup", network="public", labels={"task": task.label})
    sandbox = make_sandbox(content, options, _SETUP_SECONDS + 60)
    try:
        scripts = (_SETUP, *map(sandbox_script, ("strip_future_commits.sh", "strip_history.sh")))
        argv = ["bash", "-c", _PREPARE, "prepare", *scripts]
        result = sandbox.run(argv, timeout_seconds=_SETUP_SECONDS, cwd="/workspace", env=_proxies())
    finally:
        sandbox.terminate()
    if result.returncode != 0:
        log.write_bytes(result.stdout + b"\n--- stderr ---\n" + result.stderr)
        ending = (
            "took too long" if result.timed_out else f"failed with exit code {result.returncode}"
        )
        lines = (result.stderr_read().strip() or result.stdout_read().strip()).splitlines()[-3:]
        shown = " / ".join(printable(line[:200]) for line in lines)
        raise SandboxError(
            f"preparing {task.label}: setup.sh {ending}: {shown or 'no output'} (log: {log})"
        )
    remove_tree(staging / "task")
    # Folders alone in the home are only where something was mounted.
    if not any(files for _, _, files in os.walk(staging / "home")):
        remove_tree(staging / "home/root")
    shutil.copyfile(task.runner_script, staging / "runner.sh")
    log.unlink(missing_ok=True)


def _proxies() -> dict[str, str]:
    """Setting up a task is the one thing that may need the network; the way out of it may need to be told."""
    names = [spelling for name in _PROXY_NAMES for spelling in (name, name.upper())]
    return {name: os.environ[name] for name in names if name in os.environ}


_lock = threading.Lock()
_run_folders: dict[tuple[int, Path], Path] = {}


def run_folder(cache_dir: Path) -> Path:
    """The folder of this process, made when first asked for; leftovers of others are then removed."""
    key = (os.getpid(), cache_dir)
    with _lock:
        if key not in _run_folders:
            remove_leftovers(cache_dir)
            remove_abandoned()
            parent = cache_dir / "sandboxes"
            _make_folder(parent)
            _run_folders[key] = Path(mkdtemp(prefix=owned_prefix("sandboxes"), dir=parent))
        return _run_folders[key]


def _make_folder(folder: Path) -> None:
    """A folder of the cache that only this user can enter."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {folder}: {error.strerror}; set COOPERBENCH_CACHE_DIR"
        ) from error


@atexit.register
def _end() -> None:
    bubblewrap.end_all()
    for (pid, _), folder in _run_folders.items():
        if pid == os.getpid():
            remove_tree(folder)


def remove_leftovers(cache_dir: Path) -> list[Path]:
    """Remove the folders of processes that are gone, with which their sandboxes have ended; returns them."""
    leftovers = [path for path in sorted(cache_dir.glob("sandboxes/*")) if is_abandoned(path)]
    for folder in leftovers:
        remove_tree(folder)
    return leftovers


def clean() -> list[str]:
    """For `cooperbench clean`: remove everything that killed processes left on this machine; a line for each."""
    return [*map(str, remove_leftovers(default_cache_dir())), *map(str, remove_abandoned())]
