"""A provider that refuses one agent for a while (429) refuses all that use the same key: they all wait.

The time until which nobody asks is a small file's modification time, so that agents in other processes and, in a folder
that they share, on other nodes see it too. One file for each provider and key; the key is in no name.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from cooperbench.settings import default_cache_dir

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_SECONDS = 120.0
"""A clock of another node that is wrong must not keep agents from their work."""
_folder: Path | None = None


def use(folder: Path) -> None:
    """Share with all that use this folder, instead of with this machine's processes."""
    global _folder
    _folder = folder


def pause(model: str, seconds: float) -> None:
    """Nobody who uses this model's key asks before this time is over."""
    path = _path(model)
    until = time.time() + min(seconds, LONGEST_SECONDS)
    # Without it each agent meets the refusal by itself.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or until > path.stat().st_mtime:
            path.touch()
            os.utime(path, (until, until))


def pause_of(model: str) -> float:
    """How long to wait now; a little more than asked for, so that not all come back at once."""
    try:
        left = _path(model).stat().st_mtime - time.time()
    except OSError:
        return 0.0
    return left * random.uniform(1.0, 1.1) if 0 < left <= LONGEST_SECONDS else 0.0  # noqa: S311  # jitter


def _path(model: str) -> Path:
    provider = model.partition("/")[0] if "/" in model else "openai"
    key = os.environ.get(f"{provider.upper()}_API_KEY", "")
    name = hashlib.sha256(f"{provider}\0{key}".encode()).hexdigest()[:16]
    return (_folder or default_cache_dir() / "rate-limits") / name
