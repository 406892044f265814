"""The file system of a sandbox, as mounts for bubblewrap: system, host tools, own folders, task.

The root is a folder of the sandbox's own on the disk. Everything of the host is mounted read-only,
through an overlay: its files then have inodes of the sandbox's own, so that a lock on /usr/bin/env
is not seen in another sandbox.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import threading
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import cooperbench
from cooperbench.backends.local.etc import (
    NETWORK_ETC,
    copy_network_etc,
    etc_folders,
    write_etc,
)
from cooperbench.backends.local.host_tools import (
    SYSTEM_NAMES,
    SYSTEM_PATH,
    SYSTEM_ROOTS,
    find_host_tools,
    is_system_path,
)
from cooperbench.errors import SandboxError
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.contract import PROGRAMS_DIR, SandboxOptions

IO_DIR = "/cooperbench/io"
LIB_DIR = "/cooperbench/lib"
SCRATCH_DIR = "/cooperbench/scratch"
SHELL = f"{LIB_DIR}/cooperbench-io"
"""bash under another name, so that `pkill bash` ends the agent's shells and not CooperBench's.

It may be run but not read. The kernel then lets no process inside look into its processes or at
their open files."""

_OWN_FOLDERS = (
    "workspace",
    "patches",
    "tmp",
    "var/tmp",
    "root",
    "home",
    "run",
    "opt",
    "cooperbench/bin",
)
_OWN_IMAGE_FOLDERS = (
    "proc",
    "dev",
    "etc",
    "tmp",
    "patches",
    "cooperbench/bin",
    "cooperbench/io",
    "cooperbench/lib",
)
_BASE_GIT = "/cooperbench/base.git"
_BIN_DIRS = ("/cooperbench/bin", f"{LIB_DIR}/bin")
_ENV = {
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    # Only one user exists inside: unpacking must not try to give files to others.
    "TAR_OPTIONS": "--no-same-owner",
}
_SHARED_MEMORY_BYTES = 2 * 1024**3
_LOCAL_BIN = Path("/usr/local/bin")
_OCTAL = re.compile(r"\\([0-7]{3})")
"""An escaped character in /proc/self/mountinfo, e.g. \\040 for a space."""
_HOST_LOCAL_BIN = "/cooperbench/host-bin"

_HIDDEN_PROC = (
    "cmdline",
    "kcore",
    "key-users",
    "keys",
    "modules",
    "sched_debug",
    "swaps",
    "timer_list",
)
"""Files of /proc about the host's users, disks and devices. Writable files are hidden too."""
_COPIED_SYSCTL = (
    "fs/file-max",
    "fs/nr_open",
    "fs/pipe-max-size",
    "fs/inotify/max_user_watches",
    "kernel/cap_last_cap",
    "kernel/ngroups_max",
    "kernel/osrelease",
    "kernel/ostype",
    "kernel/pid_max",
    "kernel/overflowgid",
    "kernel/overflowuid",
    "kernel/threads-max",
    "kernel/version",
    "net/core/somaxconn",
    "vm/max_map_count",
    "vm/overcommit_memory",
)
"""Files of /proc/sys that exist inside, as copies.

kernel/random/uuid is missing: a copy would not be random, and the host's could be locked.

If CooperBench runs as root, root inside is root outside, though without capabilities. That is
enough to write to kernel/core_pattern, and through it to run a program on the host."""


class Overlays(NamedTuple):
    """Folders of a sandbox that are overlay file systems. Not every cache or kernel allows both."""

    root: bool
    """The root, over the task's template. Otherwise the template is copied."""
    read_only: bool
    """Everything that is mounted read-only. Otherwise its files are shared by all sandboxes, which
    can then signal each other by locking them."""


class View(NamedTuple):
    """The file system that a sandbox sees."""

    arguments: list[str]
    """Bubblewrap's arguments."""
    root_layers: list[Path]
    """Layers of an overlay file system for the root, the top one first; none for a plain folder."""
    read_only: list[Path]
    """Paths of the host over which a read-only overlay is mounted for this sandbox."""


@dataclass(frozen=True)
class ImageRoot:
    """An image as the system of a sandbox, instead of the host's system."""

    key: str
    """Name that only this image has."""
    layers: tuple[Path, ...]
    """Folders of its layers, the top one first."""
    shell: Path
    """The image's bash, as a file of one of its layers."""
    env: tuple[tuple[str, str], ...]
    """Environment variables."""
    uid: int = 0
    gid: int = 0


class Mount(NamedTuple):
    """A folder or file of the host that sandboxes see, for debugging."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Content:
    """Files that a sandbox begins with."""

    layers: tuple[Path, ...] = ()
    """Folders of a template, seen in / and changed without changing the template."""
    writable: tuple[tuple[Path, str], ...] = ()
    """Folders that are changed in place, with their paths inside: for making a template."""
    runner: Path | None = None
    """The task's runner.sh."""
    base_git: Path | None = None
    """The bare repository with the agent's base commit."""
    image: ImageRoot | None = None
    """The image below the layers; None for the system of the host."""
    mounts: tuple[Mount, ...] = ()


def read_only(source: Path, target: str | None = None) -> list[str]:
    """Return the arguments for a read-only mount, by default at the same path."""
    return ["--ro-bind", str(source), target or str(source)]


def _hidden(folder: Path) -> list[str]:
    """Return the arguments that cover a folder with an empty one."""
    return ["--size", "4096", "--tmpfs", str(folder), "--remount-ro", str(folder)]


class RootFsBuilder:
    """Makes file systems of sandboxes; keeps what all sandboxes of a process share."""

    def __init__(self, run_folder: Path, private: tuple[Path, ...]) -> None:
        """Write the shared files into the process's run folder.

        Args:
            run_folder: Folder of this process in the cache.
            private: Folders that no sandbox may see.
        """
        self.run_folder = run_folder
        self.proven_tools: set[str] = set()
        """Systems whose tools a channel has checked: keys of images, or "" for the host's."""
        self._shared = Path(mkdtemp(dir=run_folder))
        self._lib_lock = threading.Lock()
        self._private = (run_folder, *private)
        self._tools = find_host_tools(self._private)
        shown_folders = [*_system_folders(), *etc_folders(), *self._tools.prefixes]
        self._host_paths = _with_mounts_below(shown_folders)
        self._write_lib(self._shared / "lib")
        self._proc_mounts = _make_proc_mounts(self._shared)
        write_etc(self._shared / "etc")

    def build(
        self, folder: Path, content: Content, options: SandboxOptions, overlays: Overlays
    ) -> View:
        """Make a sandbox's own files in `folder`; return its mounts."""
        if content.image is not None:
            return self._build_on_image(folder, content, content.image, options)
        root = folder / "root"
        _make_own_folders(folder, root, _OWN_FOLDERS)
        # Later mounts cover earlier ones.
        arguments = [
            *self._environment_arguments(options),
            *_base_mounts(root),
            *_system_mounts(root),
            *self._proc_mounts,
            *self._etc_mounts(),
        ]
        if not overlays.root:
            for layer in reversed(content.layers):
                copy_tree(layer, root)
        for source, target in content.writable:
            arguments += ["--bind", str(source), target]
        arguments += self._tool_mounts()
        arguments += read_only(self._shared / "lib", LIB_DIR)
        arguments += read_only(folder / "io", IO_DIR)
        cooperbench_folders = [self._shared]
        if options.network == "public":
            network_etc = folder / "network-etc"
            for name in copy_network_etc(network_etc):
                arguments += read_only(network_etc / name, f"/etc/{name}")
            cooperbench_folders.append(network_etc)
        if content.runner is not None:
            local_bin = folder / "local-bin"
            arguments += _make_local_bin(local_bin, content.runner)
            cooperbench_folders.append(local_bin)
        if options.programs is not None:
            arguments += read_only(options.programs, PROGRAMS_DIR)
            cooperbench_folders.append(options.programs)
        if content.base_git is not None:
            arguments += read_only(content.base_git, _BASE_GIT)
            cooperbench_folders.append(content.base_git)
        arguments += _user_mounts(content.mounts, root)
        arguments += ["--chdir", "/"]
        return self._make_view(folder, content, overlays, arguments, cooperbench_folders)

    def _make_view(
        self,
        folder: Path,
        content: Content,
        overlays: Overlays,
        arguments: list[str],
        cooperbench_folders: list[Path],
    ) -> View:
        root_layers: list[Path] = []
        if overlays.root:
            # An overlay needs a lower layer even if there is no template.
            root_layers = [folder / "root", *content.layers, folder / "io"]
        read_only_paths: list[Path] = []
        if overlays.read_only:
            read_only_paths = [*self._host_paths, *cooperbench_folders]
        return View(arguments, root_layers, read_only_paths)

    def _build_on_image(
        self, folder: Path, content: Content, image: ImageRoot, options: SandboxOptions
    ) -> View:
        """Make the files of a sandbox whose system is an image; return its mounts.

        The mount points are made in the sandbox's own layer, where they hide links of the image
        that could lead bubblewrap out of the sandbox.
        """
        root = folder / "root"
        _make_own_folders(folder, root, _OWN_IMAGE_FOLDERS)
        arguments = ["--share-net"] if options.network == "public" else []
        for name, value in image.env:
            arguments += ["--setenv", name, value]
        arguments += ["--uid", str(image.uid), "--gid", str(image.gid)]
        arguments += [*_base_mounts(root), *self._proc_mounts]
        for name in ("hostname", *NETWORK_ETC):
            (root / "etc" / name).touch()
            arguments += read_only(self._shared / "etc" / name, f"/etc/{name}")
        cooperbench_folders = [self._shared]
        if options.network == "public":
            network_etc = folder / "network-etc"
            for name in copy_network_etc(network_etc):
                arguments += read_only(network_etc / name, f"/etc/{name}")
            cooperbench_folders.append(network_etc)
        for source, target in content.writable:
            _make_mount_point(root, target)
            arguments += ["--bind", str(source), target]
        arguments += read_only(self._provide_image_lib(image), LIB_DIR)
        arguments += read_only(folder / "io", IO_DIR)
        for source_dir, target in ((options.programs, PROGRAMS_DIR), (content.base_git, _BASE_GIT)):
            if source_dir is not None:
                _make_mount_point(root, target)
                arguments += read_only(source_dir, target)
                cooperbench_folders.append(source_dir)
        arguments += _user_mounts(content.mounts, root)
        arguments += ["--chdir", "/"]
        return View(arguments, [root, *content.layers, *image.layers], cooperbench_folders)

    def _provide_image_lib(self, image: ImageRoot) -> Path:
        """Return the folder with our scripts and the image's own bash, made at first use."""
        lib = self._shared / f"lib-{image.key}"
        with self._lib_lock:
            if not lib.is_dir():
                staging = Path(mkdtemp(dir=self.run_folder))
                _write_scripts(staging, image.shell)
                staging.chmod(0o755)
                staging.rename(lib)
        return lib

    def _write_lib(self, lib: Path) -> None:
        """Write the scripts, the shell and links to Python."""
        (lib / "bin").mkdir(parents=True)
        bash = shutil.which("bash", path=os.pathsep.join(SYSTEM_PATH))
        if bash is None:
            raise SandboxError("the local backend needs bash in /usr/bin or /bin")
        _write_scripts(lib, Path(bash))
        if self._tools.python is not None:
            for name in ("python3", "python"):
                (lib / "bin" / name).symlink_to(self._tools.python)

    def _environment_arguments(self, options: SandboxOptions) -> list[str]:
        arguments = ["--uid", "0", "--gid", "0"]
        if options.network == "public":
            arguments.append("--share-net")
        path = ":".join((*_BIN_DIRS, *self._tools.path, *SYSTEM_PATH))
        for name, value in {"PATH": path, **_ENV}.items():
            arguments += ["--setenv", name, value]
        return arguments

    def _etc_mounts(self) -> list[str]:
        arguments = read_only(self._shared / "etc", "/etc")
        for folder in etc_folders():
            arguments += read_only(folder)
        return arguments

    def _tool_mounts(self) -> list[str]:
        """Return the arguments that show host tools and hide private folders in them."""
        arguments: list[str] = []
        for prefix in self._tools.prefixes:
            arguments += read_only(prefix)
        for private in self._visible_private_folders():
            arguments += _hidden(private)
        return arguments

    def _visible_private_folders(self) -> list[Path]:
        """Return private folders that lie in something that is shown.

        These are CooperBench itself (with the demo's golden patches), datasets and caches.
        """
        own_package = Path(cooperbench.__file__).resolve().parent
        private_folders = [own_package, *(path.resolve() for path in self._private)]
        return [path for path in private_folders if path.is_dir() and self._is_visible(path)]

    def _is_visible(self, path: Path) -> bool:
        if is_system_path(path):
            return True
        return any(path.is_relative_to(prefix) for prefix in self._tools.prefixes)


def _write_scripts(lib: Path, bash: Path) -> None:
    """Write our scripts, and a shell that may be run but not read."""
    (lib / "channel.sh").write_text(sandbox_script("channel.sh"), "utf-8")
    supervisor = resources.files(__package__).joinpath("supervisor.sh")
    (lib / "supervisor.sh").write_bytes(supervisor.read_bytes())
    shell = lib / Path(SHELL).name
    shutil.copyfile(bash, shell)
    shell.chmod(0o111)


def _user_mounts(mounts: tuple[Mount, ...], root: Path) -> list[str]:
    """Return the arguments for what the user mounts for debugging; make the mount points."""
    arguments: list[str] = []
    for mount in mounts:
        mount_point = root / mount.target.lstrip("/")
        mount_point.parent.mkdir(parents=True, exist_ok=True)
        if mount.source.is_dir():
            mount_point.mkdir(exist_ok=True)
        else:
            mount_point.touch()
        kind = "--bind" if mount.writable else "--ro-bind"
        arguments += [kind, str(mount.source), mount.target]
    return arguments


def _make_mount_point(root: Path, target: str) -> None:
    """Make a folder in a sandbox's own layer, where it hides what an image has there."""
    (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)


def _make_own_folders(folder: Path, root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        if name in names:
            (root / name).chmod(0o1777)
    for name in ("io", "work"):
        (folder / name).mkdir()


def _base_mounts(root: Path) -> list[str]:
    """Return the arguments for /, /proc and /dev."""
    arguments = ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev"]
    shared_memory = "/dev/shm"  # noqa: S108  # inside the sandbox
    arguments += ["--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", shared_memory]
    return [*arguments, "--remount-ro", "/dev"]


def _system_mounts(root: Path) -> list[str]:
    """Return the arguments for /usr and what belongs to it; make links such as /bin in `root`."""
    for name in SYSTEM_NAMES:
        path = Path("/", name)
        if path.is_symlink():
            (root / name).symlink_to(path.readlink())
    arguments: list[str] = []
    for folder in _system_folders():
        arguments += read_only(folder)
    return arguments


def _system_folders() -> list[Path]:
    """Return /usr and what else is the system: /bin or /lib only where they are not links."""
    folders = [Path(name) for name in SYSTEM_ROOTS]
    return [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]


def _with_mounts_below(folders: list[Path]) -> list[Path]:
    """Return folders and what is mounted below them, which an overlay does not show by itself."""
    mount_points: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        escaped_path = line.split(" ")[4]
        mount_points.append(Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), escaped_path)))
    roots = set(folders)
    below = [path for path in mount_points if not roots.isdisjoint(path.parents)]
    # A folder comes before what lies in it.
    return sorted({*folders, *below})


def copy_tree(source: Path, target: Path) -> None:
    """Copy the contents of a folder with all attributes, sharing blocks if the file system can."""
    command = ["cp", "-a", "--reflink=auto", "--", f"{source}/.", str(target)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else "cp failed"
        raise SandboxError(f"cannot copy a task's workspace: {reason}")


def _make_local_bin(folder: Path, runner: Path) -> list[str]:
    """Make a /usr/local/bin like the host's, with the task's runner.sh in it; return its mounts."""
    if not _LOCAL_BIN.is_dir():
        raise SandboxError(
            f"the local backend needs the folder {_LOCAL_BIN} on this machine; it may be empty"
        )
    folder.mkdir()
    shutil.copyfile(runner, folder / "runner.sh")
    (folder / "runner.sh").chmod(0o755)
    for entry in _LOCAL_BIN.iterdir():
        if entry.name == "runner.sh":
            continue
        target = entry.readlink() if entry.is_symlink() else f"{_HOST_LOCAL_BIN}/{entry.name}"
        (folder / entry.name).symlink_to(target)
    return [*read_only(_LOCAL_BIN, _HOST_LOCAL_BIN), *read_only(folder, str(_LOCAL_BIN))]


def _make_proc_mounts(folder: Path) -> list[str]:
    """Make files in `folder` that cover parts of /proc; return their mounts."""
    settings = folder / "proc-sys"
    for name in _COPIED_SYSCTL:
        (settings / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            (settings / name).write_bytes(Path("/proc/sys", name).read_bytes())
    arguments = read_only(settings, "/proc/sys")
    empty = folder / "empty"
    empty.touch()
    for path in sorted(Path("/proc").iterdir()):
        if path.name.isdigit() or path.name == "sys" or path.is_symlink():
            continue
        if path.name in _HIDDEN_PROC or _is_writable(path):
            arguments += _hidden(path) if path.is_dir() else read_only(empty, str(path))
    return arguments


def _is_writable(path: Path) -> bool:
    """Return whether this user may write to a file, or to any file in a folder."""
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            return any(_is_writable(entry) for entry in path.iterdir())
    except OSError:
        return False
    bits = 0o202 if status.st_uid == os.geteuid() else 0o002
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & bits)
