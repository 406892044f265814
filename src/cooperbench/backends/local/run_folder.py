"""The folder in which a process keeps its sandboxes, and what killed processes left behind.

`<cache>/sandboxes/<pid>-<start time>/` holds a lock file that is locked for as long as its process lives: a folder
whose lock is free is a leftover. That is also true for a cache that is shared with a container, whose processes cannot
be seen from here. Folders are made and removed under one lock, so that none is seen before its own is taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from pathlib import Path

from cooperbench.backends.local.bubblewrap import PROBE_FILE
from cooperbench.backends.local.mounts import SHELL
from cooperbench.errors import UserError
from cooperbench.processes import start_of
from cooperbench.sandbox.ownership import locked
from cooperbench.settings import default_cache_dir
from cooperbench.temporary import remove_abandoned, remove_tree

_lock = threading.Lock()
_open: dict[tuple[int, Path], RunFolder] = {}


class RunFolder:
    """This process's own folder under a cache."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700)
        # Never closed: the lock ends with the process.
        lock_fd = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._count = 0
        self._count_lock = threading.Lock()

    def new_folder(self) -> Path:
        """A fresh folder that only this user can enter."""
        with self._count_lock:
            self._count += 1
            folder = self.path / str(self._count)
        folder.mkdir(mode=0o700)
        return folder


def run_folder(cache_dir: Path) -> RunFolder:
    """The folder of this process, made when first asked for; leftovers of others are then removed."""
    key = (os.getpid(), cache_dir)
    with _lock:
        if key not in _open:
            # Looking at all processes takes a while: only where somebody was killed.
            if remove_leftovers(cache_dir):
                end_orphans()
            remove_abandoned()
            parent = cache_dir / "sandboxes"
            make_cache_folder(parent)
            with locked(_folders_lock(cache_dir)):
                _open[key] = RunFolder(parent / f"{os.getpid()}-{start_of(os.getpid())}")
        return _open[key]


def _folders_lock(cache_dir: Path) -> Path:
    return cache_dir / "sandboxes.lock"


def make_cache_folder(folder: Path) -> None:
    """A folder of the cache that only this user can enter."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {folder}: {error.strerror}; set COOPERBENCH_CACHE_DIR"
        ) from error


def remove_run_folders() -> None:
    """Remove the folders of this process. For its end: nothing may run in them any more."""
    with _lock:
        for (pid, _), found in list(_open.items()):
            if pid == os.getpid():
                remove_tree(found.path)
        _open.clear()


def remove_leftovers(cache_dir: Path) -> list[Path]:
    """Remove the folders of processes that are gone; returns them. Never touches those of the living."""
    removed: list[Path] = []
    parent = cache_dir / "sandboxes"
    if not parent.is_dir():
        return removed
    with contextlib.suppress(OSError), locked(_folders_lock(cache_dir)):
        for folder in sorted(parent.iterdir()):
            if _is_leftover(folder):
                remove_tree(folder)
                removed.append(folder)
    return removed


def _is_leftover(folder: Path) -> bool:
    try:
        lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock_fd)
    return True


def clean() -> list[str]:
    """For `cooperbench clean`: remove everything that killed processes left on this machine; a line for each."""
    folders = [*remove_leftovers(default_cache_dir()), *remove_abandoned()]
    return [*map(str, folders), *(f"process {pid}, a sandbox that never started" for pid in end_orphans())]


def end_orphans() -> list[int]:
    """End the processes that remain when a harness is killed at the very moment in which bubblewrap starts.

    Bubblewrap's outer process dies with the harness at once. Its child does so only later in its life: before, it
    waits for the outer one to map its user, and nobody ever will. It has no files of ours yet and uses no time, but it
    stays. Returns their process numbers.
    """
    ended = []
    for process in Path("/proc").glob("[0-9]*"):
        if _is_orphan(process):
            with contextlib.suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)
                ended.append(int(process.name))
    return ended


def _is_orphan(process: Path) -> bool:
    """The first process of a namespace, still bubblewrap itself, whose parent is bubblewrap no more."""
    try:
        if _program(process) != "bwrap":
            return False
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
        is_first = len(numbers := status["NSpid"].split()) > 1 and numbers[-1] == "1"
        if not is_first or int(status["Uid"].split()[0]) != os.getuid():
            return False
        words = (process / "cmdline").read_bytes()
        is_ours = SHELL.encode() in words or PROBE_FILE.encode() in words
        return is_ours and _program(process.parent / status["PPid"]) != "bwrap"
    except (OSError, KeyError, ValueError):
        return False


def _program(process: Path) -> str:
    """By its name: what it was started from may not be read of other users' processes, init among them."""
    return (process / "comm").read_text().strip()
