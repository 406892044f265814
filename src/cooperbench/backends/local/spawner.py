"""A program: the process that starts all sandboxes of one harness, and ends them when the harness is gone.

Usage: python spawner.py HARNESS_PID, with a socket as its stdin (`bubblewrap.Spawner` is the other end). What has to
end is found by descent, as orphans become its children (subreaper). If it is itself killed, bubblewrap and process 1 of
each sandbox die with it (`--die-with-parent`). It imports little: the first sandbox waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_CONTROLLERS = {"memory": "memory", "pids": "processes"}
_LOOK_MILLISECONDS = 1000
_FILE_BYTES = 1 << 14
"""What a file counts at least: a disk has only so many of them, whatever their size."""
_PR_SET_DEATH_SIGNAL, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLONE_NEWNS, _CLONE_NEWUSER = 1 << 17, 1 << 28
_MS_SLAVE_ALL = 1 << 19 | 1 << 14
_MS_BIND = 1 << 12
_MS_READ_ONLY_BIND = _MS_BIND | 1 << 5 | 1 | 2 | 8
"""With remount, read-only, no set-user-id and no programs."""
_libc = ctypes.CDLL(None, use_errno=True)


class Groups:
    """Control groups, of either version, where this process may make them."""

    def __init__(self) -> None:
        self._parents: dict[str, Path] = {}
        self._count = 0
        try:
            self._find()
            for parent in self._parents.values():
                for left in parent.glob("cooperbench-*-*"):
                    if not Path("/proc", left.name.split("-")[1]).exists():
                        remove_groups([left])
            remove_groups(self.make({"memory_bytes": 1 << 30, "processes": 1000}))
        except OSError:
            self._parents = {}

    @property
    def limits(self) -> list[str]:
        return [_CONTROLLERS[controller] for controller in self._parents]

    def make(self, limits: dict[str, int]) -> list[Path]:
        """For a new sandbox."""
        self._count += 1
        name = f"cooperbench-{os.getpid()}-{self._count}"
        groups = [parent / name for parent in dict.fromkeys(self._parents.values())]
        for group in groups:
            group.mkdir()
            memory = limits["memory_bytes"]
            files = {"memory.max": memory, "memory.swap.max": 0, "pids.max": limits["processes"]}
            files |= {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
            for file, value in files.items():
                if (group / file).exists():
                    (group / file).write_text(str(value))
        return groups

    def _find(self) -> None:
        own = {}
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, place, kind, options, *_ = line.split(" ")
            if kind == "cgroup2":
                self._use_version_2(Path(place + own.get("", "/")))
            elif kind == "cgroup":
                for controller in set(options.split(",")) & set(_CONTROLLERS):
                    self._parents[controller] = Path(place + own[controller])

    def _use_version_2(self, parent: Path) -> None:
        there = [
            name
            for name in _CONTROLLERS
            if name in (parent / "cgroup.controllers").read_text().split()
        ]
        is_root = not (parent / "cgroup.type").exists()
        # A group with processes cannot have limited ones below it: we move down, if nobody else is in ours.
        alone = is_root or (parent / "cgroup.procs").read_text().split() == [str(os.getpid())]
        if not there or not alone:
            return
        if not is_root:
            (parent / "cooperbench").mkdir(exist_ok=True)
            (parent / "cooperbench" / "cgroup.procs").write_text("0")
        (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in there))
        self._parents.update(dict.fromkeys(there, parent))


def remove_groups(groups: list[Path]) -> None:
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()


class StartedSandbox:
    """One that was started. Not a dataclass: importing these takes longer than all the rest."""

    def __init__(self, folder: Path, groups: list[Path], disk_bytes: int) -> None:
        self.groups = groups
        self._folder = folder
        self._free_at_start = free_bytes(folder)
        self._disk_bytes = min(disk_bytes, self._free_at_start // 2)
        self._measured_at = self._free_at_start - self._disk_bytes

    def is_too_large(self) -> bool:
        """Measures its files, but only if the disk has lost enough for them to have become too many."""
        free = free_bytes(self._folder)
        if free >= self._measured_at:
            return False
        import subprocess

        command = ["du", "--total", "--summarize", "--one-file-system", str(self._folder / "root")]
        used = 0
        for option, worth in (("--block-size=1", 1), ("--inodes", _FILE_BYTES)):
            done = subprocess.run(
                [*command, option], capture_output=True, check=False, env={"LC_ALL": "C"}
            )
            used = max(used, int(done.stdout.splitlines()[-1].split()[0]) * worth)
        if b"Permission denied" in done.stderr:
            # What is hidden from us is taken for all that the disk has lost.
            used = self._free_at_start - free
        self._measured_at = free - (self._disk_bytes - used)
        return used > self._disk_bytes

    def note_size(self) -> None:
        gibibytes, files = self._disk_bytes / 1024**3, self._disk_bytes // _FILE_BYTES
        with (self._folder / "log").open("a") as log:
            log.write(f"it used more than its {gibibytes:.1f} GiB of disk or {files} files\n")


def free_bytes(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return sys.maxsize
    files = found.f_favail * _FILE_BYTES if found.f_files else sys.maxsize
    return min(found.f_bavail * found.f_frsize, files)


class Spawner:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._groups = Groups()
        self._running: dict[int, StartedSandbox] = {}
        """By the number of bubblewrap's outer process."""

    def serve(self, harness: int) -> None:
        """Until the harness has ended or let go of us."""
        self._connection.send(json.dumps(self._groups.limits).encode())
        poller = select.poll()
        poller.register(harness, select.POLLIN)
        poller.register(self._connection, select.POLLIN)
        try:
            while True:
                ready = [fd for fd, _ in poller.poll(_LOOK_MILLISECONDS if self._running else None)]
                if harness in ready or (ready and not self._start()):
                    return
                self._reap()
                self._check_disks()
        finally:
            self._end_all()

    def _start(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self._connection, 1 << 16, 8)
        if not message:
            return False
        request = json.loads(message)
        with contextlib.suppress(OSError):  # the harness notices that nothing was started
            groups = self._groups.make(request["limits"])
            pid = os.fork()
            if pid == 0:
                _become_bubblewrap(request, fds, groups)
            self._running[pid] = StartedSandbox(
                Path(request["folder"]), groups, request["limits"]["disk_bytes"]
            )
        for fd in fds:
            os.close(fd)
        return True

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                self._forget(pid)

    def _forget(self, pid: int) -> None:
        if pid in self._running:
            remove_groups(self._running.pop(pid).groups)

    def _check_disks(self) -> None:
        for pid, sandbox in self._running.items():
            with contextlib.suppress(OSError):
                if sandbox.is_too_large():
                    sandbox.note_size()
                    # Not bubblewrap's outer process: that is to tell the harness how it ended.
                    _kill_children(pid)

    def _end_all(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                _kill_children(os.getpid())
                self._forget(os.waitpid(-1, 0)[0])


def _kill_children(pid: int) -> None:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


def _become_bubblewrap(request: dict[str, Any], fds: list[int], groups: list[Path]) -> NoReturn:
    """In the child."""
    try:
        _libc.prctl(_PR_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        stdin, stdout, stderr, arguments, seccomp, command, status = fds
        for group in groups:
            (group / "cgroup.procs").write_text("0")
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and that would be inherited
            signal.signal(ignored, signal.SIG_DFL)
        words = os.fsdecode(os.pread(command, os.fstat(command).st_size, 0)).split("\0")[:-1]
        for number, fd in enumerate((stdin, stdout, stderr)):
            os.dup2(fd, number)
        for fd in (stdin, stdout, stderr, command):
            os.close(fd)
        folder = Path(request["folder"])
        if request["overlays"]:
            _make_file_systems(folder, request["overlays"])
        with socket.socket(fileno=os.dup(status)) as harness:
            socket.send_fds(harness, [b" "], [os.open(folder / "io", os.O_PATH)])
        executable = request["bubblewrap"]
        # Bubblewrap keeps these to itself.
        options = [
            "--args",
            str(arguments),
            "--seccomp",
            str(seccomp),
            "--json-status-fd",
            str(status),
        ]
        os.execve(executable, [executable, *options, "--as-pid-1", "--", *words], {})  # noqa: S606
    except BaseException as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(127)


def _make_file_systems(folder: Path, overlays: list[list[str]]) -> None:
    """Lay overlays over folders, for bubblewrap alone: what is mounted from them then shows no path of the host.

    That is done in a user namespace, and needs no rights. Layers are named by descriptors, as these names are shown.
    Named pipes are others through an overlay: their folder becomes a tmpfs, of which the harness gets a descriptor.
    """
    owners = {"uid": os.geteuid(), "gid": os.getegid()}
    _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS)  # where that fails, so does the next line
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in owners.items():
        Path(f"/proc/self/{name}_map").write_text(f"0 {number} 1")
    for layers in overlays:
        top, *below = map(_by_descriptor, layers)
        options = f"lowerdir={':'.join((top, *below))}"
        if layers is overlays[0]:
            work = _by_descriptor(folder / "work")
            options = f"lowerdir={':'.join(below)},upperdir={top},workdir={work}"
        _mount("overlay", layers[0], f"userxattr,{options}")
    _mount("tmpfs", folder / "io", "mode=700,size=4096")


def _by_descriptor(folder: str | Path) -> str:
    return f"/proc/self/fd/{os.open(folder, os.O_PATH)}"


def _mount(kind: str, target: str | Path, options: str) -> None:
    if _libc.mount(kind.encode(), os.fsencode(target), kind.encode(), 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {kind}")


def _protect_devices() -> None:
    """Keep sandboxes of root from changing the host's device nodes, which it owns: `chmod 000 /dev/null`.

    Changing a node needs a writable mount, writing through it does not. So we see them on read-only mounts, in a mount
    namespace of our own. Where root of a container may not mount, the nodes are that container's own.
    """
    if _libc.unshare(_CLONE_NEWNS) != 0 or _libc.mount(None, b"/", None, _MS_SLAVE_ALL, None) != 0:
        return
    for name in _DEVICES:
        node = os.fsencode(f"/dev/{name}")
        _libc.mount(node, node, None, _MS_BIND, None)
        _libc.mount(None, node, None, _MS_READ_ONLY_BIND, None)


def main() -> None:
    harness_pid = int(sys.argv[1])
    harness = os.pidfd_open(harness_pid)
    if os.getppid() != harness_pid:
        return
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.geteuid() == 0:
        _protect_devices()
    Spawner(socket.socket(fileno=0)).serve(harness)


if __name__ == "__main__":
    main()
