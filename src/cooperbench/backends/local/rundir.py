"""The folder in which a process keeps its sandboxes, and what a killed process left behind.

`<cache>/sandboxes/<pid>-<start time>/` belongs to the process of that number that started at that time. It holds a
lock file that is locked for as long as the process lives. A folder is a leftover only if no such process is to be
seen *and* its lock is free: the first alone would be wrong for a cache that is shared with a container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.processes import start_of
from cooperbench.temporary import remove_abandoned, remove_tree

if TYPE_CHECKING:
    from pathlib import Path

_lock = threading.Lock()
_open: dict[tuple[int, Path], RunDir] = {}


class RunDir:
    """This process's own folder under a cache."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self._count = 0
        self._guard = threading.Lock()

    def new_folder(self) -> Path:
        """A fresh folder that only this user can enter."""
        with self._guard:
            self._count += 1
            folder = self.path / str(self._count)
        folder.mkdir(mode=0o700)
        return folder


def run_dir(cache_dir: Path) -> RunDir:
    """The folder of this process, made when first asked for; leftovers of others are then removed."""
    key = (os.getpid(), cache_dir)
    with _lock:
        found = _open.get(key)
        if found is None:
            _remove_what_the_killed_left(cache_dir)
            found = _open[key] = _make(cache_dir / "sandboxes")
        return found


def forget_run_dirs() -> None:
    """Remove the folders of this process. For its end: nothing may run in them any more."""
    with _lock:
        for (pid, _), found in list(_open.items()):
            if pid == os.getpid():
                remove_tree(found.path)
        _open.clear()


def remove_leftovers(cache_dir: Path) -> list[Path]:
    """Remove the folders of processes that are gone; returns them. Never touches those of the living."""
    removed = []
    with contextlib.suppress(OSError):  # no cache yet, or none to be had
        for folder in sorted((cache_dir / "sandboxes").iterdir()):
            if not _owner_lives(folder.name) and _take_lock(folder):
                remove_tree(folder)
                removed.append(folder)
    return removed


def _remove_what_the_killed_left(cache_dir: Path) -> None:
    from cooperbench.backends.local.orphans import end_orphans

    # Looking at all processes takes a while: only where somebody was killed.
    if remove_leftovers(cache_dir):
        end_orphans()
    remove_abandoned()


def make_cache_folder(folder: Path) -> None:
    """A folder of the cache that only this user can enter."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {folder}: {error.strerror}; set COOPERBENCH_CACHE_DIR"
        ) from error


def _make(parent: Path) -> RunDir:
    make_cache_folder(parent)
    path = parent / f"{os.getpid()}-{start_of(os.getpid())}"
    staging = parent / f"{path.name}-new"
    remove_tree(staging)
    staging.mkdir(mode=0o700)
    lock_fd = os.open(staging / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    remove_tree(path)
    staging.rename(path)
    return RunDir(path, lock_fd)


def _owner_lives(name: str) -> bool:
    pid, _, rest = name.partition("-")
    try:
        return pid.isdecimal() and start_of(int(pid)) == rest.removesuffix("-new") != ""
    except OSError:
        return True  # it cannot be known just now


def _take_lock(folder: Path) -> bool:
    try:
        lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(lock_fd)
