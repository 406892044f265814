"""Processes that share an engine, an account or a cache: which one owns what, and locks.

Whether an owner still runs is decided only by processes that can see it: those of the same machine,
user and process namespace.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cooperbench.temporary import pid_namespace, process_start_time

HOST_LABEL = "cooperbench-host"
OWNER_LABEL = "cooperbench-owner"
"""Label of resources in a cloud. Container engines use other names for it."""


class Host(NamedTuple):
    """The part of an `Owner` that all processes of a user on this machine share."""

    machine: str
    boot: str
    namespace: str
    user: str


class Owner(NamedTuple):
    """One process, as a label names it.

    Lowercase letters, digits and `-`, at most 63 characters.
    """

    machine: str
    boot: str
    namespace: str
    user: str
    pid: int
    start: str

    def __str__(self) -> str:
        return "-".join(str(part) for part in self)

    @property
    def labels(self) -> dict[str, str]:
        """Labels for a resource that this process creates."""
        return {HOST_LABEL: f"{self.machine}-{self.user}", OWNER_LABEL: str(self)}


def this_owner() -> Owner:
    """Return this process."""
    return Owner(*_this_host(), pid=os.getpid(), start=process_start_time(os.getpid()))


def read_owner(text: str) -> Owner | None:
    """Read the value of a label; None if it does not name an owner."""
    parts = text.split("-")
    if len(parts) != len(Owner._fields):
        return None
    machine, boot, namespace, user, pid, start = parts
    if not pid.isdecimal():
        return None
    return Owner(machine, boot, namespace, user, int(pid), start)


def is_leftover(
    labels: Mapping[str, str], label: str = OWNER_LABEL, *, running: bool = True
) -> bool:
    """Return whether a resource belongs to a process of this user that has certainly ended.

    After a reboot its owner has ended. But a copy of this machine looks the same, so a resource
    that is still `running` is then left alone.
    """
    owner = read_owner(labels.get(label, ""))
    host = _this_host()
    if owner is None or owner.machine != host.machine or owner.user != host.user:
        return False
    if owner.boot != host.boot:
        return not running
    if owner.namespace != host.namespace:
        return False
    try:
        return process_start_time(owner.pid) != owner.start
    except OSError:
        return False


@cache
def _this_host() -> Host:
    machine_id = _read_text("/etc/machine-id")
    return Host(
        machine=_short_hash(f"{socket.gethostname()} {machine_id}"),
        boot=_short_hash(_read_text("/proc/sys/kernel/random/boot_id")),
        namespace=pid_namespace(),
        user=str(os.getuid()),
    )


def _read_text(path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    if not os.access(path, os.R_OK):
        return ""
    return Path(path).read_text("utf-8", "replace").strip()


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that one process and thread can have at a time. It ends with its holder.

    The file stays: removing it would let two processes in.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def lock_path(folder: Path, name: str) -> Path:
    """Return the path of a lock for something whose name need not be a valid file name."""
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock"
