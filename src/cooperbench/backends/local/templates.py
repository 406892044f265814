"""The prepared workspaces of tasks: each task's setup.sh is run once, and what it made is kept in the cache.

`<cache>/local/<key>/` holds `workspace` (as setup.sh left it), `agent-workspace` (the same with the repository's
history replaced by one commit), `base.git` (that commit, for the harness), `home`, `runner.sh` and `template.json`.
It is built in a staging folder under a lock and renamed into place, so that what is there is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.local.mounts import Content, Layer, copy_tree
from cooperbench.backends.local.run_folder import make_cache_folder
from cooperbench.errors import SandboxError, UserError
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.ownership import locked
from cooperbench.temporary import remove_tree
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.models import Task
    from cooperbench.sandbox.contract import CommandResult, RichSandbox

    MakeSandbox = Callable[[Content, SandboxOptions, int], RichSandbox]

_FORMAT = 1
_SETUP_SECONDS = 30 * 60
_SCRUB_SECONDS = 10 * 60
_SMALL_ENTRIES = 600
_SMALL_BYTES = 16 * 1024 * 1024
_PROXY_NAMES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")

_ADOPT_REPOSITORY = """
set -e
[ -e /workspace/repo ] && exit 0
found=$(find /workspace /task -mindepth 1 -maxdepth 3 -name .git -prune 2>/dev/null)
[ -n "$found" ] || { echo 'setup.sh left no git checkout under /workspace' >&2; exit 1; }
[ "$(printf '%s\\n' "$found" | wc -l)" = 1 ] ||
  { echo 'setup.sh left several git checkouts, none of them /workspace/repo' >&2; exit 1; }
mv -- "$(dirname -- "$found")" /workspace/repo
"""


@dataclass(frozen=True)
class Template:
    """What is kept of a prepared task."""

    path: Path
    digest: str
    base_commit: str
    small: bool
    """Copying the workspace costs next to nothing."""
    has_home: bool
    small_home: bool

    def content(self, *, agent: bool) -> Content:
        workspace = self.path / ("agent-workspace" if agent else "workspace")
        layers = [Layer(workspace, "workspace", self.small)]
        if self.has_home:
            layers.append(Layer(self.path / "home", "root", self.small_home))
        return Content(tuple(layers), runner=self.path / "runner.sh", base_git=self.path / "base.git")


def task_digest(task: Task) -> str:
    """What identifies a prepared task: everything that setup.sh can see that makes a difference."""
    for needed in (task.setup_script, task.runner_script):
        if not needed.is_file():
            raise UserError(
                f"{task.label} has no {needed.name}; the local backend prepares a task by its setup.sh"
            )
    python = ".".join(map(str, sys.version_info[:3]))
    digest = hashlib.sha256(f"cooperbench-local/{_FORMAT} python{python} {platform.machine()}\n".encode())
    for name in ("setup.sh", "runner.sh", "Dockerfile", "base"):
        for path in _files(task.path / name):
            digest.update(f"\n{path.relative_to(task.path).as_posix()}\n".encode("utf-8", "surrogateescape"))
            if path.is_symlink():
                digest.update(b"link " + os.fsencode(path.readlink()))
            else:
                digest.update(b"file " + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    if path.is_dir() and not path.is_symlink():
        return [found for entry in sorted(path.iterdir()) for found in _files(entry)]
    return [path] if path.is_symlink() or path.is_file() else []


def template_key(digest: str) -> str:
    """Names the folder: a workspace may hold paths of the interpreter it was made with."""
    return hashlib.sha256(f"{digest} {sys.base_prefix}".encode()).hexdigest()[:16]


def load_template(cache_dir: Path, key: str) -> Template | None:
    folder = cache_dir / "local" / key
    try:
        data = json.loads((folder / "template.json").read_text("utf-8"))
        names = (field.name for field in fields(Template) if field.name != "path")
        return Template(folder, **{name: data[name] for name in names})
    except (OSError, ValueError, KeyError):
        return None


def make_template(task: Task, cache_dir: Path, make_sandbox: MakeSandbox) -> Template:
    """The template of a task, made now if it is not there yet. Safe to call from threads and processes at once."""
    digest = task_digest(task)
    key = template_key(digest)
    if found := load_template(cache_dir, key):
        return found
    folder = cache_dir / "local"
    make_cache_folder(folder)
    with locked(folder / f"{key}.lock"):
        if found := load_template(cache_dir, key):
            return found
        for left in folder.glob(f"{key}.staging-*"):
            remove_tree(left)
        staging = folder / f"{key}.staging-{os.getpid()}"
        staging.mkdir(mode=0o700)
        try:
            template = _build(task, digest, staging, folder / f"{key}.log", make_sandbox)
            remove_tree(folder / key)
            staging.rename(folder / key)
        finally:
            remove_tree(staging)
    return replace(template, path=folder / key)


def _build(task: Task, digest: str, staging: Path, log: Path, make_sandbox: MakeSandbox) -> Template:
    for name in ("workspace", "agent-workspace", "home", "task"):
        (staging / name).mkdir()
    copy_tree(task.path, staging / "task")
    shutil.copyfile(task.runner_script, staging / "runner.sh")
    _run_setup(task, staging, log, make_sandbox)
    remove_tree(staging / "task")
    home = staging / "home"
    copy_tree(staging / "workspace", staging / "agent-workspace")
    base_commit = _scrub(task, staging, log, make_sandbox)
    # Folders alone in the home are only where something was mounted.
    has_home = any(files for _, _, files in os.walk(home))
    template = Template(
        staging, digest, base_commit, _is_small(staging / "workspace"), has_home, small_home=_is_small(home)
    )
    described = {key: value for key, value in asdict(template).items() if key != "path"}
    (staging / "template.json").write_text(json.dumps({**described, "task": task.label}, indent=1), "utf-8")
    log.unlink(missing_ok=True)
    return template


def _run_setup(task: Task, staging: Path, log: Path, make_sandbox: MakeSandbox) -> None:
    # A copy of the task: a setup.sh that clones beside itself must be able to, and the dataset stays as it is.
    places = (("workspace", "/workspace"), ("home", "/root"), ("task", "/task"))
    content = Content(writable=tuple((staging / name, place) for name, place in places))
    options = SandboxOptions(purpose="setup", network="public", labels={"task": task.label})
    sandbox = make_sandbox(content, options, _SETUP_SECONDS + 60)
    try:
        command = ["bash", "/task/setup.sh", "/workspace/repo"]
        result = sandbox.run(command, timeout_seconds=_SETUP_SECONDS, cwd="/workspace", env=_proxies())
        if result.returncode == 0:
            result = sandbox.run(["bash", "-c", _ADOPT_REPOSITORY], timeout_seconds=_SCRUB_SECONDS)
        _check(task, "setup.sh", result, log)
    finally:
        sandbox.terminate()


def _scrub(task: Task, staging: Path, log: Path, make_sandbox: MakeSandbox) -> str:
    from cooperbench.sandbox import scrub_script

    (staging / "base").mkdir()
    places = (("agent-workspace", "/workspace"), ("base", "/cooperbench/base"))
    content = Content(writable=tuple((staging / name, place) for name, place in places))
    options = SandboxOptions(purpose="setup", labels={"task": task.label})
    sandbox = make_sandbox(content, options, _SCRUB_SECONDS + 60)
    try:
        sandbox.write_file("/cooperbench/scrub.sh", scrub_script())
        command = ["bash", "/cooperbench/scrub.sh", "/workspace/repo", "/cooperbench/base/base.git"]
        result = sandbox.run(command, timeout_seconds=_SCRUB_SECONDS)
        _check(task, "removing the repository's history", result, log)
    finally:
        sandbox.terminate()
    (staging / "base" / "base.git").rename(staging / "base.git")
    (staging / "base").rmdir()
    return result.stdout_read().strip()


def _check(task: Task, what: str, result: CommandResult, log: Path) -> None:
    if result.returncode == 0:
        return
    log.write_bytes(result.stdout + b"\n--- stderr ---\n" + result.stderr)
    ending = (
        "took longer than its time limit"
        if result.timed_out
        else f"failed with exit code {result.returncode}"
    )
    lines = (result.stderr_read().strip() or result.stdout_read().strip()).splitlines()[-3:]
    shown = " / ".join(printable(line[:200]) for line in lines)
    raise SandboxError(f"preparing {task.label}: {what} {ending}: {shown or 'no output'} (log: {log})")


def _proxies() -> dict[str, str]:
    """Setting up a task is the one thing that may need the network; the way out of it may need to be told."""
    names = [spelling for name in _PROXY_NAMES for spelling in (name, name.upper())]
    return {name: os.environ[name] for name in names if name in os.environ}


def _is_small(folder: Path) -> bool:
    entries = total_bytes = 0
    for root, _, files in os.walk(folder):
        entries += 1 + len(files)
        total_bytes += sum(Path(root, name).lstat().st_size for name in files)
        if entries > _SMALL_ENTRIES or total_bytes > _SMALL_BYTES:
            return False
    return True
