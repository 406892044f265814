"""The spawner.

A process that starts all local sandboxes of one harness and ends them when the harness is gone.

Usage: python spawner.py HARNESS_PID, with a SOCK_SEQPACKET socket as its stdin.
`bubblewrap.Spawner` is the other end.

Protocol, one packet per message:
1. The spawner sends a JSON list with the limits that control groups enforce here: `memory`,
   `processes`.
2. For each sandbox the harness sends a JSON object (see `StartRequest`) together with seven file
   descriptors (see `Descriptors`). There is no answer on this socket. The harness reads from the
   other end of `status`: first one byte with a descriptor of the sandbox's folder for named pipes,
   then bubblewrap's own reports. If that socket ends before, nothing was started.
3. When the harness closes the socket or ends, all sandboxes are killed and the spawner exits.

The spawner is a subreaper: orphans in sandboxes become its children, so it finds everything that it
has to kill by descent. If the spawner itself is killed, bubblewrap and process 1 of each sandbox
die with it (`--die-with-parent`).

The first sandbox waits for this program to start: it imports little and runs without site-packages,
so it must not import the rest of CooperBench.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

CHECK_INTERVAL_MS = 1000
"""Milliseconds between two checks of the disk space that sandboxes use."""
MIN_FILE_BYTES = 1 << 14
"""Bytes that a file counts at least: a disk has a limited number of files, whatever their size."""
MAX_REQUEST_BYTES = 1 << 16

# Names of the limits that cgroup controllers enforce.
LIMIT_BY_CONTROLLER = {"memory": "memory", "pids": "processes"}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

# From the kernel's headers: prctl.h, sched.h, mount.h.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS = 1 << 17
CLONE_NEWUSER = 1 << 28
MS_RDONLY, MS_NOSUID, MS_NOEXEC, MS_REMOUNT = 1, 2, 8, 1 << 5
MS_BIND = 1 << 12
MS_REC, MS_SLAVE = 1 << 14, 1 << 19

# From capability.h: CAP_SYS_ADMIN, CAP_MKNOD.
DEVICE_CAPABILITIES = 1 << 21 | 1 << 27

libc = ctypes.CDLL(None, use_errno=True)


class StartRequest(NamedTuple):
    """A request to start one sandbox."""

    bubblewrap: str
    """Path of the bwrap executable."""
    folder: Path
    """Folder of the sandbox on the host, with `root`, `io`, `work` and `log`."""
    root_layers: list[str]
    """Layers of an overlay for the sandbox's root, the top one first; none for a plain folder."""
    read_only: list[str]
    """Paths over which a read-only overlay is mounted, a folder before what lies in it."""
    memory_bytes: int
    processes: int
    disk_bytes: int

    @classmethod
    def parse(cls, message: bytes) -> StartRequest:
        """Read the JSON object that the harness sent."""
        content = json.loads(message)
        limits = content["limits"]
        return cls(
            bubblewrap=content["bubblewrap"],
            folder=Path(content["folder"]),
            root_layers=content["root_layers"],
            read_only=content["read_only"],
            memory_bytes=limits["memory_bytes"],
            processes=limits["processes"],
            disk_bytes=limits["disk_bytes"],
        )


class Descriptors(NamedTuple):
    """File descriptors that come with a `StartRequest`, in this order."""

    stdin: int
    stdout: int
    stderr: int
    arguments: int
    """Bubblewrap's arguments, each followed by a NUL byte."""
    seccomp: int
    """The seccomp program."""
    command: int
    """Argv of process 1, each followed by a NUL byte."""
    status: int
    """Socket on which bubblewrap reports the sandbox's start and exit code."""


class ControlGroups:
    """Control groups for sandboxes, of version 1 or 2, if this process may create them."""

    def __init__(self) -> None:
        self._parents: dict[str, Path] = {}
        """Group in which new ones are created, by controller."""
        self._count = 0

    def set_up(self) -> None:
        """Find the groups in which this process can create others; there may be none."""
        try:
            self._find_parents()
            self._remove_leftovers()
            # Only creating one shows that it is allowed.
            remove_groups(self.create(memory_bytes=1 << 30, processes=1000))
        except OSError:
            self._parents = {}

    @property
    def limits(self) -> list[str]:
        """Names of the limits that are enforced."""
        return [LIMIT_BY_CONTROLLER[controller] for controller in self._parents]

    def create(self, memory_bytes: int, processes: int) -> list[Path]:
        """Create the groups of a new sandbox; in version 1 each controller has its own."""
        self._count += 1
        name = f"cooperbench-{os.getpid()}-{self._count}"
        values = {
            # Version 2.
            "memory.max": memory_bytes,
            "memory.swap.max": 0,
            # Version 1.
            "memory.limit_in_bytes": memory_bytes,
            "memory.memsw.limit_in_bytes": memory_bytes,
            # Both.
            "pids.max": processes,
        }
        groups = [parent / name for parent in dict.fromkeys(self._parents.values())]
        for group in groups:
            group.mkdir()
            for file_name, value in values.items():
                file = group / file_name
                if file.exists():
                    file.write_text(str(value))
        return groups

    def _find_parents(self) -> None:
        group_by_controller: dict[str, str] = {}
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            for controller in controllers.split(","):
                group_by_controller[controller] = group
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount_point, kind, options, *_ = line.split(" ")
            if kind == "cgroup2":
                # The line of version 2 names no controllers.
                self._use_version_2(Path(mount_point + group_by_controller.get("", "/")))
            elif kind == "cgroup":
                for controller in set(options.split(",")) & set(LIMIT_BY_CONTROLLER):
                    parent = mount_point + group_by_controller[controller]
                    self._parents[controller] = Path(parent)

    def _use_version_2(self, parent: Path) -> None:
        available = (parent / "cgroup.controllers").read_text().split()
        controllers = [name for name in LIMIT_BY_CONTROLLER if name in available]
        is_root = not (parent / "cgroup.type").exists()
        members = (parent / "cgroup.procs").read_text().split()
        is_alone = is_root or members == [str(os.getpid())]
        if not controllers or not is_alone:
            return
        if not is_root:
            # A group with processes cannot have limited groups below it, so this process moves
            # down.
            own_group = parent / "cooperbench"
            own_group.mkdir(exist_ok=True)
            (own_group / "cgroup.procs").write_text("0")
        enabled = " ".join(f"+{name}" for name in controllers)
        (parent / "cgroup.subtree_control").write_text(enabled)
        for controller in controllers:
            self._parents[controller] = parent

    def _remove_leftovers(self) -> None:
        """Remove the groups of spawners that have ended."""
        for parent in self._parents.values():
            for group in parent.glob("cooperbench-*-*"):
                pid = group.name.split("-")[1]
                if not Path("/proc", pid).exists():
                    remove_groups([group])


def remove_groups(groups: list[Path]) -> None:
    """Remove control groups; one that still has processes stays."""
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()


class FreeSpace(NamedTuple):
    """Free space of a disk, which may run out of bytes or of files."""

    bytes: int
    bytes_for_files: int
    """The files that it can still hold, in bytes at MIN_FILE_BYTES each."""

    @property
    def smaller(self) -> int:
        """The resource that is used up first, in bytes."""
        return min(self)

    def loss_since(self, earlier: FreeSpace) -> int:
        """Return the bytes that are free no longer, or those of the files if they are more."""
        lost_bytes = earlier.bytes - self.bytes
        lost_files = earlier.bytes_for_files - self.bytes_for_files
        return max(lost_bytes, lost_files, 0)


class RunningSandbox:
    """A started sandbox, whose disk usage is watched."""

    def __init__(self, folder: Path, groups: list[Path], disk_bytes: int) -> None:
        self.groups = groups
        self._folder = folder
        self._free_at_start = free_space(folder)
        self._free_at_last_check = self._free_at_start
        self._disk_bytes = min(disk_bytes, self._free_at_start.smaller // 2)
        self._used_at_most = 0
        """What it may hold: the last measurement, and all that the disk has lost since then."""

    def is_too_large(self) -> bool:
        """Return whether its files exceed the limit.

        Measuring takes long. It happens only if the disk has lost so much that the limit can have
        been reached. What others free meanwhile does not hide a loss between two other checks.
        """
        free = free_space(self._folder)
        self._used_at_most += free.loss_since(self._free_at_last_check)
        self._free_at_last_check = free
        if self._used_at_most <= self._disk_bytes:
            return False
        self._used_at_most = self._measure_used_bytes(free)
        return self._used_at_most > self._disk_bytes

    def log_too_large(self) -> None:
        """Write to the sandbox's log why it ends."""
        gibibytes = self._disk_bytes / 1024**3
        files = self._disk_bytes // MIN_FILE_BYTES
        with (self._folder / "log").open("a") as log:
            log.write(f"it used more than its {gibibytes:.1f} GiB of disk or {files} files\n")

    def _measure_used_bytes(self, free: FreeSpace) -> int:
        root = self._folder / "root"
        size, size_is_complete = disk_usage(root, "--block-size=1")
        file_count, count_is_complete = disk_usage(root, "--inodes")
        if not size_is_complete or not count_is_complete:
            # Folders that du may not read are assumed to hold all that the disk has lost.
            return free.loss_since(self._free_at_start)
        return max(size, file_count * MIN_FILE_BYTES)


def disk_usage(folder: Path, unit_option: str) -> tuple[int, bool]:
    """Return what du(1) counts in a folder, and whether it could read all of it."""
    import subprocess

    command = ["du", "--total", "--summarize", "--one-file-system", str(folder), unit_option]
    done = subprocess.run(command, capture_output=True, check=False, env={"LC_ALL": "C"})
    total_line = done.stdout.splitlines()[-1]
    return int(total_line.split()[0]), b"Permission denied" not in done.stderr


def free_space(folder: Path) -> FreeSpace:
    """Return what is free on a folder's disk."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return FreeSpace(bytes=sys.maxsize, bytes_for_files=sys.maxsize)
    has_file_limit = status.f_files > 0
    return FreeSpace(
        bytes=status.f_bavail * status.f_frsize,
        bytes_for_files=status.f_favail * MIN_FILE_BYTES if has_file_limit else sys.maxsize,
    )


class SpawnerServer:
    """The loop that starts, watches and ends sandboxes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._groups = ControlGroups()
        self._running: dict[int, RunningSandbox] = {}
        """Running sandboxes by the pid of bubblewrap's outer process."""

    def serve(self, harness_pidfd: int) -> None:
        """Start sandboxes until the harness ends or closes the connection; then end all of them."""
        self._groups.set_up()
        self._connection.send(json.dumps(self._groups.limits).encode())
        poller = select.poll()
        poller.register(harness_pidfd, select.POLLIN)
        poller.register(self._connection, select.POLLIN)
        try:
            while True:
                timeout_ms = CHECK_INTERVAL_MS if self._running else None
                ready = [fd for fd, _ in poller.poll(timeout_ms)]
                if harness_pidfd in ready:
                    return
                if ready and not self._handle_request():
                    return
                self._reap()
                self._end_too_large()
        finally:
            self._end_all()

    def _handle_request(self) -> bool:
        """Start the sandbox of the next request; False if the harness has closed the connection."""
        message, fds, _, _ = socket.recv_fds(
            self._connection, MAX_REQUEST_BYTES, len(Descriptors._fields)
        )
        if not message:
            return False
        try:
            # If this fails, the harness sees that the status socket ends.
            with contextlib.suppress(OSError):
                self._start(StartRequest.parse(message), Descriptors(*fds))
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _start(self, request: StartRequest, descriptors: Descriptors) -> None:
        groups = self._groups.create(request.memory_bytes, request.processes)
        pid = os.fork()
        if pid == 0:
            become_bubblewrap(request, descriptors, groups)
        self._running[pid] = RunningSandbox(request.folder, groups, request.disk_bytes)

    def _reap(self) -> None:
        """Collect children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._forget(pid)

    def _forget(self, pid: int) -> None:
        sandbox = self._running.pop(pid, None)
        if sandbox is not None:
            remove_groups(sandbox.groups)

    def _end_too_large(self) -> None:
        for pid, sandbox in self._running.items():
            with contextlib.suppress(OSError):
                if sandbox.is_too_large():
                    sandbox.log_too_large()
                    # Not bubblewrap's outer process: it still has to report the exit code.
                    kill_children(pid)

    def _end_all(self) -> None:
        """Kill children until there are none; their orphans become children in turn."""
        with contextlib.suppress(ChildProcessError):
            while True:
                kill_children(os.getpid())
                pid, _ = os.waitpid(-1, 0)
                self._forget(pid)


def kill_children(pid: int) -> None:
    """Kill the direct children of a process."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


def become_bubblewrap(
    request: StartRequest, descriptors: Descriptors, groups: list[Path]
) -> NoReturn:
    """Turn this forked child into bubblewrap.

    Where that fails, exit with 127 and the reason on stderr.
    """
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for group in groups:
            (group / "cgroup.procs").write_text("0")
        # Python ignores these signals, and ignored signals are inherited.
        for signal_number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signal_number, signal.SIG_DFL)
        command = read_argv(descriptors.command)
        redirect_standard_streams(descriptors)
        if may_create_devices():
            use_own_devices(request.folder)
        if request.root_layers or request.read_only:
            mount_overlays(request)
        send_io_folder(request.folder, descriptors.status)
        # Bubblewrap does not pass these descriptors on to the command.
        options = ["--args", str(descriptors.arguments)]
        options += ["--seccomp", str(descriptors.seccomp)]
        options += ["--json-status-fd", str(descriptors.status)]
        argv = [request.bubblewrap, *options, "--as-pid-1", "--", *command]
        os.execve(request.bubblewrap, argv, {})  # noqa: S606  # a shell has no place here
    except BaseException as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(127)


def read_argv(fd: int) -> list[str]:
    """Read arguments, each followed by a NUL byte, from a file."""
    content = os.pread(fd, os.fstat(fd).st_size, 0)
    return os.fsdecode(content).split("\0")[:-1]


def redirect_standard_streams(descriptors: Descriptors) -> None:
    """Replace this process's standard streams, and close what is not passed on."""
    os.dup2(descriptors.stdin, 0)
    os.dup2(descriptors.stdout, 1)
    os.dup2(descriptors.stderr, 2)
    for fd in (descriptors.stdin, descriptors.stdout, descriptors.stderr, descriptors.command):
        os.close(fd)


def send_io_folder(folder: Path, status: int) -> None:
    """Send the harness a descriptor of the folder for named pipes, which it may not see."""
    with socket.socket(fileno=os.dup(status)) as harness:
        socket.send_fds(harness, [b" "], [os.open(folder / "io", os.O_PATH)])


def mount_overlays(request: StartRequest) -> None:
    """Mount overlays over folders in a mount namespace for bubblewrap alone.

    What is mounted from an overlay shows no path of the host inside the sandbox, and its files have
    inodes of their own: locks, leases, inotify and access times stay in this sandbox. A user
    namespace makes this possible without privileges. Layers are named by descriptors, because mount
    options are visible inside.

    A named pipe seen through an overlay is another pipe than the one below it. The folder for named
    pipes therefore becomes a tmpfs, of which the harness gets a descriptor.
    """
    enter_user_namespace()
    # A mount can cover the folders of the next one, so all of them are opened first.
    sources = {path: descriptor_path(path) for path in request.read_only}
    root_layers = [descriptor_path(layer) for layer in request.root_layers]
    work = descriptor_path(request.folder / "work")
    # A read-only overlay needs at least two layers.
    empty = descriptor_path(request.folder / "io")
    for path, source in sources.items():
        if Path(source).is_dir():
            mount("overlay", path, f"userxattr,lowerdir={source}:{empty}")
        else:
            # A file that a container engine has mounted by itself cannot be a layer.
            bind(source, path)
    if root_layers:
        top, *below = root_layers
        options = f"userxattr,lowerdir={':'.join(below)},upperdir={top},workdir={work}"
        mount("overlay", request.root_layers[0], options)
    mount("tmpfs", request.folder / "io", "mode=700,size=4096")


def enter_user_namespace() -> None:
    """Enter new user and mount namespaces, in which this user is root."""
    uid, gid = os.geteuid(), os.getegid()
    # If unshare fails, writing these files fails too.
    libc.unshare(CLONE_NEWUSER | CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def descriptor_path(folder: str | Path) -> str:
    """Open a folder and return a path that names the descriptor instead of the folder."""
    return f"/proc/self/fd/{os.open(folder, os.O_PATH)}"


def mount(kind: str, target: str | Path, options: str) -> None:
    """Mount a new file system; OSError if that fails."""
    if libc.mount(kind.encode(), os.fsencode(target), kind.encode(), 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {kind}")


def bind(source: str | Path, target: str | Path, flags: int = 0) -> None:
    """Mount a file or folder at another path, with these flags; OSError if that fails."""
    target_bytes = os.fsencode(target)
    if libc.mount(os.fsencode(source), target_bytes, None, MS_BIND, None) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount a file of the host")
    if flags and libc.mount(None, target_bytes, None, MS_BIND | MS_REMOUNT | flags, None) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount a file of the host read-only")


def enter_mount_namespace() -> bool:
    """Enter a new mount namespace, whose mounts nobody else sees; False if that is not allowed."""
    if libc.unshare(CLONE_NEWNS) != 0:
        return False
    return bool(libc.mount(None, b"/", None, MS_SLAVE | MS_REC, None) == 0)


def protect_devices() -> None:
    """Keep sandboxes of root from changing the host's device nodes (`chmod 000 /dev/null`).

    Root owns these nodes. Changing a node needs a writable mount; writing through it does not. So
    this process and its sandboxes see the nodes on read-only mounts. If root of a container may not
    mount, the nodes are the container's own.
    """
    if not enter_mount_namespace():
        return
    for name in DEVICES:
        with contextlib.suppress(OSError):
            bind(f"/dev/{name}", f"/dev/{name}", MS_RDONLY | MS_NOSUID | MS_NOEXEC)


def use_own_devices(folder: Path) -> None:
    """Give a sandbox of root device nodes of its own, which bubblewrap takes from /dev.

    Locks on the host's nodes, and inotify, would reach all sandboxes.
    """
    if not enter_mount_namespace():
        raise OSError(ctypes.get_errno(), "cannot create a mount namespace")
    devices = folder / "devices"
    devices.mkdir(exist_ok=True)
    mount("tmpfs", devices, "mode=755,size=4096")
    for name in DEVICES:
        number = Path("/dev", name).stat().st_rdev
        os.mknod(devices / name, stat.S_IFCHR, number)
        (devices / name).chmod(0o666)
    bind(devices, "/dev", MS_RDONLY | MS_NOSUID | MS_NOEXEC)


def may_create_devices() -> bool:
    """Return whether this process may mount and create device nodes: root outside of containers."""
    # A tmpfs that was mounted in a user namespace has no devices.
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]:
        return False
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16) & DEVICE_CAPABILITIES == DEVICE_CAPABILITIES
    return False


def lock_devices() -> None:
    """Hold shared locks on the host's device nodes for as long as this process runs.

    Sandboxes that have no nodes of their own could otherwise signal each other by locking these.
    Now every shared lock succeeds and every exclusive one fails, whatever other sandboxes do.
    """
    whole_file = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    for name in DEVICES:
        with contextlib.suppress(OSError):
            fd = os.open(f"/dev/{name}", os.O_RDONLY | os.O_NOCTTY)
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, whole_file)


def main() -> None:
    """Serve the harness whose pid is the first argument."""
    harness_pid = int(sys.argv[1])
    harness_pidfd = os.pidfd_open(harness_pid)
    harness_has_ended = os.getppid() != harness_pid
    if harness_has_ended:
        return
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.geteuid() == 0:
        protect_devices()
    if not may_create_devices():
        lock_devices()
    SpawnerServer(socket.socket(fileno=0)).serve(harness_pidfd)


if __name__ == "__main__":
    main()
