"""Locks in the cache folder, for what one process and thread at a time may make. They end with whoever holds them."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for its turn. The file stays: removing it would let two in."""
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
