"""Looking up a file in the stacked layers of an image, without mounting them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cooperbench.backends.images.unpack import OPAQUE_ATTRIBUTE

_MAX_LINKS = 40


def find_file(layers: Sequence[Path], path: str) -> Path | None:
    """Return where the regular file at a path of an image is on this machine, or None.

    Links are followed as they would be inside the image.

    Args:
        layers: Folders of the layers, the top one first.
        path: An absolute path in the image.
    """
    remaining = _reversed_parts(path)
    parents: list[str] = []
    stack = list(layers)
    links = 0
    while remaining:
        part = remaining.pop()
        if part == "..":
            parents = parents[:-1]
            stack = _folders_at(layers, parents)
            continue
        entries = _look_up(stack, part)
        if not entries:
            return None
        top = entries[0]
        if top.is_symlink():
            links += 1
            if links > _MAX_LINKS:
                return None
            target = str(top.readlink())
            remaining += _reversed_parts(target)
            if target.startswith("/"):
                parents = []
                stack = list(layers)
        elif top.is_dir():
            parents.append(part)
            stack = entries
        else:
            return top if top.is_file() and not remaining else None
    return None


def _reversed_parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _folders_at(layers: Sequence[Path], parts: Sequence[str]) -> list[Path]:
    """Return the folders of layers that make up a folder of the image."""
    stack = list(layers)
    for part in parts:
        stack = _look_up(stack, part)
    return stack


def _look_up(stack: Sequence[Path], name: str) -> list[Path]:
    """Return what a name in a folder stands for: one file or link, or folders to be merged."""
    entries: list[Path] = []
    for folder in stack:
        path = folder / name
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISCHR(mode):
            break
        if not stat.S_ISDIR(mode):
            return entries or [path]
        entries.append(path)
        if _is_opaque(path):
            break
    return entries


def _is_opaque(folder: Path) -> bool:
    with suppress(OSError):
        return os.getxattr(folder, OPAQUE_ATTRIBUTE) == b"y"
    return False
