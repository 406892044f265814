"""The folder in which a process keeps its sandboxes, and what a killed process left behind.

`<cache>/sandboxes/<pid>-<start time>/` belongs to the process of that number that started at that time. It holds a
lock file that is locked for as long as the process lives. A folder is a leftover only if no such process is to be
seen *and* its lock is free: the first alone would be wrong for a cache that is shared with a container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import threading
from pathlib import Path

from cooperbench.errors import UserError

_lock = threading.Lock()
_open: dict[tuple[int, Path], RunDir] = {}


def default_cache_dir() -> Path:
    """$COOPERBENCH_CACHE_DIR, else the user's cache folder."""
    if own := os.environ.get("COOPERBENCH_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "cooperbench"


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
            remove_leftovers(cache_dir)
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
    path = parent / f"{os.getpid()}-{_start_time(os.getpid())}"
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
    start_time = rest.removesuffix("-new")
    return pid.isdigit() and start_time.isdigit() and _start_time(int(pid)) == int(start_time)


def _start_time(pid: int) -> int | None:
    """In clock ticks since boot; with it a reused pid is told from the one that was meant."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


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


def remove_tree(path: Path) -> None:
    """Remove a folder whatever the modes and however deep; absent is fine. Does not follow links."""
    if path.is_symlink() or not path.is_dir():
        return
    # rm instead of shutil.rmtree: agents can nest folders deeper than Python can recurse.
    _quietly("rm", "-rf", "--one-file-system", "--", str(path))
    if path.exists():
        _quietly("chmod", "-R", "u+rwx", "--", str(path))
        _quietly("rm", "-rf", "--one-file-system", "--", str(path))


def _quietly(*argv: str) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
