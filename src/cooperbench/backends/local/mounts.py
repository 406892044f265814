"""What one sandbox sees, as mounts for bubblewrap: the system, the host's tools, its own folders, its task.

The root is a folder of the sandbox's own on the disk; the operating system and everything else of the host is mounted
on it read-only.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import cooperbench
from cooperbench.backends.local.host_files import (
    SYSTEM_NAMES,
    SYSTEM_PATH,
    find_host_tools,
    is_system_path,
    mounted_etc,
    write_etc,
)
from cooperbench.errors import SandboxError
from cooperbench.sandbox import channel_script

if TYPE_CHECKING:
    from cooperbench.backends.local.run_folder import RunFolder
    from cooperbench.sandbox.contract import NetworkPolicy

IO_DIR = "/cooperbench/io"
LIB_DIR = "/cooperbench/lib"
SCRATCH_DIR = "/cooperbench/scratch"
SHELL = f"{LIB_DIR}/cooperbench-io"
"""bash under a name of our own, so that `pkill bash` ends the agent's shells and not the harness's."""
_OWN_FOLDERS = ("workspace", "patches", "tmp", "var/tmp", "root", "home", "run", "opt", "cooperbench/bin")
_BIN_DIRS = ("/cooperbench/bin", f"{LIB_DIR}/bin")
_LOCAL_BIN = Path("/usr/local/bin")
_HOST_LOCAL_BIN = "/cooperbench/host-bin"


class Layer(NamedTuple):
    """A folder of a template, to be seen as /`name` and changed without changing the template."""

    source: Path
    name: str
    small: bool
    """Copying it costs no more than a few milliseconds."""


@dataclass(frozen=True)
class Content:
    """What a sandbox is filled with."""

    layers: tuple[Layer, ...] = ()
    writable: tuple[tuple[Path, str], ...] = ()
    """Folders that are changed in place, and where they are seen: for making a template."""
    runner: Path | None = None
    base_git: Path | None = None


@dataclass(frozen=True)
class RootFs:
    """A sandbox's file system: its root, and bubblewrap's arguments for what is mounted there."""

    path: Path
    mounts: tuple[str, ...]


def read_only(source: Path, target: str | None = None) -> list[str]:
    return ["--ro-bind", str(source), target or str(source)]


def writable(source: Path, target: str) -> list[str]:
    return ["--bind", str(source), target]


def overlay(lower: Path, upper: Path, work: Path, target: str) -> list[str]:
    """A folder seen through an upper one that takes all changes. All three lie on one file system."""
    return ["--overlay-src", str(lower), "--overlay", str(upper), str(work), target]


def _hidden(folder: Path) -> list[str]:
    return ["--size", "4096", "--tmpfs", str(folder), "--remount-ro", str(folder)]


def system_mounts(root: Path) -> list[str]:
    """The operating system: /usr and what belongs to it, nothing that holds a user's files or a service's data.

    Links such as /bin are made in `root`, which is about to become a sandbox's.
    """
    words: list[str] = []
    for path in (Path("/usr"), Path("/nix/store"), *(Path("/", name) for name in SYSTEM_NAMES)):
        if path.name in SYSTEM_NAMES and path.is_symlink():
            (root / path.name).symlink_to(path.readlink())
        elif path.is_dir():
            words += read_only(path)
    return words


def _proc_guards() -> list[str]:
    """What of /proc could be written to by whoever runs the harness, read-only.

    Root inside is root outside where the harness runs as root, if without any capability: that is enough to write to
    /proc/sys/kernel/core_pattern, and through it to run a program on the host. bubblewrap does not cover it.
    """
    words: list[str] = []
    for path in sorted(Path("/proc").iterdir()):
        if not path.name.isdigit() and not path.is_symlink() and (path.name == "sys" or _we_can_write(path)):
            words += read_only(path)
    return words


def _we_can_write(path: Path) -> bool:
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            return any(_we_can_write(entry) for entry in path.iterdir())
    except OSError:
        return False
    bits = 0o202 if status.st_uid == os.geteuid() else 0o002
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & bits)


class RootFsBuilder:
    """Makes file systems of sandboxes. Holds what all sandboxes of a process share, in the process's run folder."""

    def __init__(self, run_folder: RunFolder, private: tuple[Path, ...]) -> None:
        self.run_folder = run_folder
        self._folder = run_folder.new_folder()
        self._private = (run_folder.path, *private)
        self._tools = find_host_tools(self._private)
        self._guards = _proc_guards()
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
        if self._tools.python is not None:
            for name in ("python3", "python"):
                (lib / "bin" / name).symlink_to(self._tools.python)

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

    def build(self, folder: Path, content: Content, network: NetworkPolicy, *, overlays: bool) -> RootFs:
        """For a sandbox whose own files are in `folder`."""
        root = folder / "root"
        for name in _OWN_FOLDERS:
            (root / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (root / name).chmod(0o1777)
        (folder / "io").mkdir()
        words = [*system_mounts(root), *self._guards, *read_only(self._etc(network), "/etc")]
        for path in mounted_etc():
            words += read_only(path)
        for layer in content.layers:
            words += _layer(folder, layer, use_overlay=overlays and not layer.small)
        for source, target in content.writable:
            words += writable(source, target)
        for prefix in self._tools.prefixes:
            words += read_only(prefix)
        for private in self._hidden_folders():
            words += _hidden(private)
        words += [*read_only(self._folder / "lib", LIB_DIR), *read_only(folder / "io", IO_DIR)]
        if content.base_git is not None:
            words += read_only(content.base_git, "/cooperbench/base.git")
        if content.runner is not None:
            words += _with_runner(folder / "local-bin", content.runner)
        return RootFs(root, tuple(words))

    def _etc(self, network: NetworkPolicy) -> Path:
        folder = self._folder / f"etc-{network}"
        with self._lock:
            if not folder.exists():
                staging = self._folder / f"etc-{network}-new"
                staging.mkdir()
                write_etc(staging, network=network == "public")
                staging.rename(folder)
        return folder

    def _hidden_folders(self) -> list[Path]:
        """Ourselves (with the demo's golden patches), datasets and caches, where they lie in what is shown."""
        private = (Path(cooperbench.__file__).resolve().parent, *(path.resolve() for path in self._private))
        return [
            path
            for path in private
            if path.is_dir()
            and (is_system_path(path) or any(path.is_relative_to(prefix) for prefix in self._tools.prefixes))
        ]


def _layer(folder: Path, layer: Layer, *, use_overlay: bool) -> list[str]:
    """Small ones are copied although an overlay would be cheaper still.

    In an overlay a folder of the template cannot be renamed (EXDEV), as in a container's image.
    """
    if use_overlay:
        upper, work = folder / f"{layer.name}-upper", folder / f"{layer.name}-work"
        upper.mkdir()
        work.mkdir()
        return overlay(layer.source, upper, work, f"/{layer.name}")
    copy_tree(layer.source, folder / "root" / layer.name)
    return []


def copy_tree(source: Path, target: Path) -> None:
    """Copy what is in a folder with everything that belongs to it, sharing blocks where the file system can."""
    command = ["cp", "-a", "--reflink=auto", "--", f"{source}/.", str(target)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SandboxError(f"cannot copy a task's workspace: {reason[-1] if reason else 'cp failed'}")


def _with_runner(folder: Path, runner: Path) -> list[str]:
    """/usr/local/bin as on the host, and in it the task's runner.sh."""
    if not _LOCAL_BIN.is_dir():
        raise SandboxError(f"the local backend needs {_LOCAL_BIN} on this machine; an empty folder will do")
    folder.mkdir()
    shutil.copyfile(runner, folder / "runner.sh")
    (folder / "runner.sh").chmod(0o755)
    for entry in _LOCAL_BIN.iterdir():
        if entry.name != "runner.sh":
            text = entry.readlink() if entry.is_symlink() else f"{_HOST_LOCAL_BIN}/{entry.name}"
            (folder / entry.name).symlink_to(text)
    return [*read_only(_LOCAL_BIN, _HOST_LOCAL_BIN), *read_only(folder, str(_LOCAL_BIN))]
