"""Temporary folders: those of killed processes are told by their names, and removed whatever is in them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.processes import namespace, start_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"cooperbench-[a-z]+-(?P<pid>[0-9]{1,10})-(?P<start>\w+)-(?P<space>[0-9a-f]+)-\w+")
_USUAL_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # looked into, never written to by these names


def owned_prefix(purpose: str) -> str:
    """For `mkdtemp` and its kin: `purpose` in small letters, and whose it is."""
    pid = os.getpid()
    start = re.sub(r"\W", "_", start_of(pid))
    return f"cooperbench-{purpose}-{pid}-{start}-{namespace()}-"


def remove_abandoned() -> list[Path]:
    """Remove this user's folders whose process is certainly gone; returns them."""
    removed = []
    for folder in _ours():
        if is_abandoned(folder.name):
            remove_tree(folder)
            removed.append(folder)
    return removed


def remove_tree(path: Path) -> None:
    """Remove a folder whatever the modes and however deep; absent is fine. Does not follow links."""
    if path.is_symlink() or not path.is_dir():
        return
    # rm instead of shutil.rmtree: agents can nest folders deeper than Python can recurse.
    _quietly("rm", "-rf", "--one-file-system", "--", str(path))
    if path.exists():
        _quietly("chmod", "-R", "u+rwx", "--", str(path))
        _quietly("rm", "-rf", "--one-file-system", "--", str(path))


def _quietly(*argv: str) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _ours() -> Iterator[Path]:
    for place in dict.fromkeys((tempfile.gettempdir(), *_USUAL_PLACES)):
        try:
            with os.scandir(place) as entries:
                found = [
                    Path(entry.path)
                    for entry in entries
                    if entry.name.startswith("cooperbench-")
                    and entry.is_dir(follow_symlinks=False)
                    and entry.stat(follow_symlinks=False).st_uid == os.getuid()
                ]
        except OSError:
            continue  # no such place here, or none of our business
        yield from sorted(found)


def is_abandoned(name: str) -> bool:
    """Is this the name of a folder whose process is certainly gone?"""
    match = _NAME.fullmatch(name)
    if match is None or match["space"] != namespace():
        return False
    try:
        return re.sub(r"\W", "_", start_of(int(match["pid"]))) != match["start"]
    except OSError:
        return False
