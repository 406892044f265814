"""What a local sandbox sees, as data. How it is mounted is the launchers' business (`bubblewrap`, `unshare`).

The root is a folder of the sandbox's own on the disk; the operating system and everything else of the host is mounted
on it read-only.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bind:
    """A host's file or folder, read-only unless said otherwise."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Overlay:
    """A folder seen through an upper one that takes all changes. All three lie on one file system."""

    lower: Path
    upper: Path
    work: Path
    target: str


@dataclass(frozen=True)
class Hidden:
    """Nothing is to be seen of the folder that lies there."""

    target: str


Mount = Bind | Overlay | Hidden


@dataclass(frozen=True)
class View:
    """A sandbox's file system: its root, and what is mounted there in this order after /proc and /dev."""

    root: Path
    mounts: tuple[Mount, ...]
    share_network: bool = False


_SYSTEM_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SYSTEM_ROOTS = (Path("/usr"), Path("/nix/store"), *(Path("/", name) for name in _SYSTEM_NAMES))


def is_system_path(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in SYSTEM_ROOTS)


def is_open_to_us(path: Path) -> bool:
    """Whether we get there without being root: in a sandbox's user namespace root has no rights over others' files."""
    return all(
        status.st_uid == os.geteuid() or status.st_mode & 0o001
        for status in (folder.stat() for folder in (path, *path.parents))
    )


def system_mounts(root: Path) -> list[Mount]:
    """The operating system: /usr and what belongs to it, nothing that holds a user's files or a service's data.

    Links such as /bin are made in `root`, which is about to become a sandbox's.
    """
    mounts: list[Mount] = [Bind(path, str(path)) for path in SYSTEM_ROOTS[:2] if path.is_dir()]
    for name in _SYSTEM_NAMES:
        path = Path("/", name)
        if path.is_symlink():
            (root / name).symlink_to(path.readlink())
        elif path.is_dir():
            mounts.append(Bind(path, str(path)))
    return mounts


def proc_guards() -> list[Mount]:
    """What of /proc could be written to by whoever runs the harness, read-only.

    Root inside is root outside where the harness runs as root, if without any capability: that is enough to write to
    /proc/sys/kernel/core_pattern, and through it to run a program on the host. bubblewrap does not cover it.
    """
    guards: list[Mount] = []
    for entry in sorted(os.scandir("/proc"), key=lambda entry: entry.name):
        if entry.name.isdigit() or entry.is_symlink():
            continue
        if entry.name == "sys" or _we_can_write(Path(entry.path)):
            guards.append(Bind(Path(entry.path), entry.path))
    return guards


def _we_can_write(path: Path) -> bool:
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            return any(_we_can_write(entry) for entry in path.iterdir())
    except OSError:
        return False
    bits = 0o202 if status.st_uid == os.geteuid() else 0o002
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & bits)
