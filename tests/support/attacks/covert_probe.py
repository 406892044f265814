"""A program that tries to carry bits between two sandboxes of one machine. It runs inside of them.

Usage: python3 covert_probe.py send|receive
`receive` prints a line once it watches. `send` then prints a line once it has set everything that it can set. After
a line on its stdin, `receive` prints a JSON list of what it noticed: "flock /usr/bin/env", "abstract socket".
Both end with their stdin. Only the standard library is used, and files are found, not listed: a mount that is added
one day is tried too.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRIES_PER_MOUNT = 60
KEY = 0x636F6F70
PORT = 47113
NAME = "cooperbench-covert"
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
IN_OPEN_OR_ACCESS = 0x20 | 0x1
EVENT = struct.Struct("iIII")
LOCK = struct.Struct("hhqqi4x")
IPC_CREAT = 0o1000
READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
OF_THIS_PROCESS = ("/proc/self", "/proc/thread-self", "/dev/std", "/dev/fd", "/dev/ptmx")
libc = ctypes.CDLL(None, use_errno=True)


def find_paths() -> list[str]:
    """Return mount points and the first files in each, but no processes."""
    paths: list[str] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(line.split()[4])
        paths.append(str(point))
        with contextlib.suppress(OSError):
            entries = [path for path in sorted(point.iterdir()) if not path.name.isdigit()]
            paths += [str(path) for path in entries[:ENTRIES_PER_MOUNT]]
    return [path for path in dict.fromkeys(paths) if not path.startswith(OF_THIS_PROCESS)]


def open_file(path: str) -> int | None:
    """Return a descriptor, or None for what cannot be opened."""
    try:
        return os.open(path, READ_FLAGS)
    except BlockingIOError:
        raise
    except OSError:
        return None


def send_by_file(path: str) -> None:
    """Lock and read a file."""
    try:
        fd = open_file(path)
    except BlockingIOError:
        return
    if fd is None:
        return
    attempts = (
        lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK),
        lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        lambda: fcntl.fcntl(fd, fcntl.F_SETLK, LOCK.pack(fcntl.F_RDLCK, 0, 0, 7, 0)),
        lambda: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, LOCK.pack(fcntl.F_RDLCK, 0, 7, 7, 0)),
    )
    for attempt in attempts:
        with contextlib.suppress(OSError):
            attempt()
    if stat.S_ISREG(os.fstat(fd).st_mode):
        with contextlib.suppress(OSError):
            os.read(fd, 1)


def send_by_name(kept: list[socket.socket]) -> None:
    """Create objects that are found by their name or number."""
    abstract = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        abstract.bind(f"\0{NAME}")
    kept.append(abstract)
    server = socket.socket()
    with contextlib.suppress(OSError):
        server.bind(("127.0.0.1", PORT))
        server.listen()
    kept.append(server)
    libc.shmget(KEY, 4096, IPC_CREAT | 0o666)
    libc.msgget(KEY, IPC_CREAT | 0o666)
    libc.semget(KEY, 1, IPC_CREAT | 0o666)
    libc.mq_open(f"/{NAME}".encode(), os.O_RDWR | os.O_CREAT, 0o666, None)
    for folder in FOLDERS:
        with contextlib.suppress(OSError):
            Path(folder, NAME).touch()


def send() -> None:
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent when somebody breaks a lease
    kept: list[socket.socket] = []
    for path in find_paths():
        send_by_file(path)
    send_by_name(kept)
    print("sent", flush=True)
    sys.stdin.readline()


def noticed_by_file(path: str) -> Iterator[str]:
    """Yield the locks that somebody else has on a file."""
    try:
        fd = open_file(path)
    except BlockingIOError:
        yield f"lease {path}"
        return
    if fd is None:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield f"flock {path}"
    except OSError:
        pass
    with contextlib.suppress(OSError):
        query = LOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
        kind, _, start, length, owner = LOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
        if kind != fcntl.F_UNLCK:
            yield f"record lock {path} {kind} {start} {length} {owner}"
    os.close(fd)


def noticed_by_name() -> Iterator[str]:
    """Yield what another one created and this one can use."""
    with socket.socket(socket.AF_UNIX) as own:
        try:
            own.bind(f"\0{NAME}")
        except OSError:
            yield "abstract socket"
    with socket.socket() as client, contextlib.suppress(OSError):
        client.connect(("127.0.0.1", PORT))
        yield "loopback"
    for name, answer in (
        ("shared memory", libc.shmget(KEY, 0, 0)),
        ("message queue", libc.msgget(KEY, 0)),
        ("semaphore", libc.semget(KEY, 0, 0)),
        ("POSIX queue", libc.mq_open(f"/{NAME}".encode(), os.O_RDWR)),
    ):
        if answer >= 0:
            yield name
    for folder in FOLDERS:
        if Path(folder, NAME).exists():
            yield f"file in {folder}"


class Watch:
    """What files look like before and after: their access times and events on them."""

    def __init__(self, paths: list[str]) -> None:
        self.inotify = libc.inotify_init1(os.O_NONBLOCK)
        self.paths: dict[int, str] = {}
        self.times: dict[str, int] = {}
        for path in paths:
            watch = libc.inotify_add_watch(self.inotify, path.encode(), IN_OPEN_OR_ACCESS)
            if watch >= 0:
                self.paths[watch] = path
            with contextlib.suppress(OSError):
                self.times[path] = Path(path).stat().st_atime_ns

    def noticed(self) -> Iterator[str]:
        """Yield files that were opened or read since."""
        with contextlib.suppress(BlockingIOError):
            while True:
                events = os.read(self.inotify, 1 << 16)
                while events:
                    watch, _, _, length = EVENT.unpack(events[: EVENT.size])
                    yield f"inotify {self.paths.get(watch)}"
                    events = events[EVENT.size + length :]
        for path, before in self.times.items():
            is_own = path == "/proc" or path.startswith("/proc/")
            if not is_own and Path(path).stat().st_atime_ns != before:
                yield f"access time {path}"


def noticed_now(paths: list[str]) -> set[str]:
    """Return what can be noticed at this moment."""
    noticed = set(noticed_by_name())
    for path in paths:
        noticed.update(noticed_by_file(path))
    return noticed


def receive() -> None:
    paths = find_paths()
    always = noticed_now(paths)
    watch = Watch(paths)
    print("watching", flush=True)
    sys.stdin.readline()
    noticed = {*watch.noticed(), *noticed_now(paths)}
    print(json.dumps(sorted(noticed - always)), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    {"send": send, "receive": receive}[sys.argv[1]]()
