"""Putting together what one sandbox sees: the system, the host's tools, its own folders, its task."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import cooperbench
from cooperbench.backends.local.etc import etc_mounts, write_etc
from cooperbench.backends.local.hosttools import SYSTEM_PATH, HostTools, find_host_tools
from cooperbench.backends.local.mounts import (
    Bind,
    Hidden,
    Mount,
    Overlay,
    View,
    is_system_path,
    proc_guards,
    system_mounts,
)
from cooperbench.errors import SandboxError
from cooperbench.sandbox import channel_script

if TYPE_CHECKING:
    from cooperbench.backends.local.rundir import RunDir
    from cooperbench.sandbox.contract import NetworkPolicy

IO_DIR = "/cooperbench/io"
LIB_DIR = "/cooperbench/lib"
SCRATCH_DIR = "/cooperbench/scratch"
SHELL = f"{LIB_DIR}/cooperbench-io"
"""bash under a name of our own, so that `pkill bash` ends the agent's shells and not the harness's."""
_OWN_FOLDERS = ("workspace", "patches", "tmp", "var/tmp", "root", "home", "run", "opt", "cooperbench/bin")
_BIN_DIRS = ("/cooperbench/bin", f"{LIB_DIR}/bin")
_LOCAL_BIN = Path("/usr/local/bin")
_SEEN_LOCAL_BIN = "/cooperbench/host-bin"


@dataclass(frozen=True)
class Content:
    """What a sandbox is filled with. Folders are seen through a copy-on-write layer, or are the ones to be changed."""

    workspace: Path | None = None
    home: Path | None = None
    in_place: bool = False
    """Changes go to `workspace` and `home` themselves: for making a template."""
    small: bool = False
    """Copying `workspace` costs no more than a few milliseconds."""
    small_home: bool = False
    runner: Path | None = None
    base_git: Path | None = None
    extra: tuple[Bind, ...] = ()


class HostView:
    """What all sandboxes of a process share. Made once; its folders lie in the process's run folder."""

    def __init__(self, run_dir: RunDir, private: tuple[Path, ...]) -> None:
        self._folder = run_dir.new_folder()
        self._private = (run_dir.path, *private)
        self._tools: HostTools = find_host_tools(self._private)
        self._guards = proc_guards()
        self._lock = threading.Lock()
        self.tools_proven = False
        """A channel has found that the tools inside do what it needs; they are the same in every sandbox."""
        self._write_lib(self._folder / "lib")

    def _write_lib(self, lib: Path) -> None:
        (lib / "bin").mkdir(parents=True)
        (lib / "channel.sh").write_text(channel_script(), "utf-8")
        supervisor = resources.files(__package__).joinpath("supervisor.sh")
        (lib / "supervisor.sh").write_bytes(supervisor.read_bytes())
        bash = shutil.which("bash", path=os.pathsep.join(SYSTEM_PATH))
        if bash is None:
            raise SandboxError("the local backend needs bash in /usr/bin or /bin")
        (lib / Path(SHELL).name).symlink_to(bash)
        for name, executable in self._tools.links:
            (lib / "bin" / name).symlink_to(executable)

    def env(self) -> dict[str, str]:
        return {
            "PATH": ":".join((*_BIN_DIRS, *self._tools.path, *SYSTEM_PATH)),
            "HOME": "/root",
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            # Only one user exists inside: unpacking must not try to give files to others.
            "TAR_OPTIONS": "--no-same-owner",
        }

    def etc(self, network: NetworkPolicy) -> Path:
        folder = self._folder / f"etc-{network}"
        with self._lock:
            if not folder.exists():
                staging = self._folder / f"etc-{network}-new"
                staging.mkdir()
                write_etc(staging, network=network == "public")
                staging.rename(folder)
        return folder

    def view(self, folder: Path, content: Content, network: NetworkPolicy, *, overlays: bool) -> View:
        """For a sandbox whose own files are in `folder`."""
        root = folder / "root"
        for name in _OWN_FOLDERS:
            (root / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (root / name).chmod(0o1777)
        (folder / "io").mkdir()
        mounts = [*system_mounts(root), *self._guards, Bind(self.etc(network), "/etc"), *etc_mounts()]
        in_place = content.in_place
        mounts += _layer(folder, "workspace", content.workspace, in_place, overlays and not content.small)
        mounts += _layer(folder, "root", content.home, in_place, overlays and not content.small_home)
        mounts += [Bind(prefix, str(prefix)) for prefix in self._tools.prefixes]
        mounts += self._masks()
        mounts += [Bind(self._folder / "lib", LIB_DIR), Bind(folder / "io", IO_DIR)]
        if content.base_git is not None:
            mounts.append(Bind(content.base_git, "/cooperbench/base.git"))
        if content.runner is not None:
            mounts += _with_runner(folder / "local-bin", content.runner)
        return View(root, (*mounts, *content.extra), share_network=network == "public")

    def _masks(self) -> list[Mount]:
        """Ourselves (with the demo's golden patches), datasets and caches, where they lie in what is shown."""
        hidden = (Path(cooperbench.__file__).resolve().parent, *(path.resolve() for path in self._private))
        return [
            Hidden(str(path))
            for path in hidden
            if path.is_dir()
            and (is_system_path(path) or any(path.is_relative_to(prefix) for prefix in self._tools.prefixes))
        ]


def _layer(folder: Path, name: str, source: Path | None, in_place: bool, overlay: bool) -> list[Mount]:
    """A writable view of a template's folder as /`name`.

    Small ones are copied although an overlay would be cheaper still: in an overlay a folder of the template cannot be
    renamed (EXDEV), as in a container's image.
    """
    if source is None:
        return []
    if in_place:
        return [Bind(source, f"/{name}", writable=True)]
    if overlay:
        upper, work = folder / f"{name}-upper", folder / f"{name}-work"
        upper.mkdir()
        work.mkdir()
        return [Overlay(source, upper, work, f"/{name}")]
    copy_tree(source, folder / "root" / name)
    return []


def copy_tree(source: Path, target: Path) -> None:
    """Copy what is in a folder with everything that belongs to it, sharing blocks where the file system can."""
    command = ["cp", "-a", "--reflink=auto", "--", f"{source}/.", str(target)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SandboxError(f"cannot copy a task's workspace: {reason[-1] if reason else 'cp failed'}")


def _with_runner(folder: Path, runner: Path) -> list[Mount]:
    """/usr/local/bin as on the host, and in it the task's runner.sh."""
    if not _LOCAL_BIN.is_dir():
        raise SandboxError(f"the local backend needs {_LOCAL_BIN} on this machine; an empty folder will do")
    folder.mkdir()
    shutil.copyfile(runner, folder / "runner.sh")
    (folder / "runner.sh").chmod(0o755)
    for entry in os.scandir(_LOCAL_BIN):
        if entry.name != "runner.sh":
            text = Path(entry.path).readlink() if entry.is_symlink() else f"{_SEEN_LOCAL_BIN}/{entry.name}"
            (folder / entry.name).symlink_to(text)
    return [Bind(_LOCAL_BIN, _SEEN_LOCAL_BIN), Bind(folder, str(_LOCAL_BIN))]
