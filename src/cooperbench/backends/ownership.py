"""Processes that share an engine, an account or a cache: which one owns what, and which one may write now.

An owner is judged only by those who can see its process: same machine, user and process namespace.
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
"""Of what is made in a cloud. Engines have names of their own for it."""


class Owner(NamedTuple):
    """One process, as it stands in a label: small letters, digits and `-`, at most 63 characters."""

    machine: str
    boot: str
    namespace: str
    user: str
    pid: int
    start: str

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @property
    def labels(self) -> dict[str, str]:
        return {HOST_LABEL: f"{self.machine}-{self.user}", OWNER_LABEL: str(self)}


def this_owner() -> Owner:
    return Owner(*_place(), pid=os.getpid(), start=process_start_time(os.getpid()))


def read_owner(text: str) -> Owner | None:
    """None for a text that is not one of ours."""
    parts = text.split("-")
    if len(parts) != len(Owner._fields) or not parts[4].isdecimal():
        return None
    machine, boot, namespace, user, pid, start = parts
    return Owner(machine, boot, namespace, user, int(pid), start)


def is_leftover(
    labels: Mapping[str, str], label: str = OWNER_LABEL, *, running: bool = True
) -> bool:
    """Whether the owner that a label names was a process of ours that has certainly ended.

    After a restart of the machine it is; but as a copied machine looks the same, what still runs is then left alone.
    """
    owner = read_owner(labels.get(label, ""))
    machine, boot, namespace, user = _place()
    if owner is None or (owner.machine, owner.user) != (machine, user):
        return False
    if owner.boot != boot:
        return not running
    try:
        return owner.namespace == namespace and process_start_time(owner.pid) != owner.start
    except OSError:
        return False


@cache
def _place() -> tuple[str, str, str, str]:
    machine = _short_hash("/etc/machine-id", f"{socket.gethostname()} ")
    boot = _short_hash("/proc/sys/kernel/random/boot_id")
    return machine, boot, pid_namespace(), str(os.getuid())


def _short_hash(path: str, before: str = "") -> str:
    """Of some text and that of a file."""
    text = Path(path).read_text("utf-8", "replace").strip() if os.access(path, os.R_OK) else ""
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()[:10]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """For one process and thread at a time; ends with its holder. The file stays: removing it would let two in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def lock_path(folder: Path, name: str) -> Path:
    """For something whose name need not be a file's."""
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock"
