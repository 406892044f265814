"""Temporary folders: their names say which process owns them, so that those of killed processes can be removed.

A process id is used again; together with the start time it is unique.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_NAME = re.compile(
    r"cooperbench-[a-z]+-(?P<pid>[0-9]{1,10})-(?P<start>\w+)-(?P<space>[0-9a-f]+)-\w+"
)
_USUAL_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # looked into, never written to by these names


def process_start_time(pid: int) -> str:
    """When a process started; empty where there is none. OSError where that cannot be known: it may be alive."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[19]


@cache
def pid_namespace() -> str:
    """Of process numbers: a process of another one cannot be seen from here, dead or alive."""
    return f"{Path('/proc/self/ns/pid').stat().st_ino:x}"


def owned_prefix(purpose: str) -> str:
    """For `mkdtemp` and similar functions: `purpose`, in lower case, and the owner."""
    pid = os.getpid()
    return f"cooperbench-{purpose}-{pid}-{process_start_time(pid)}-{pid_namespace()}-"


def remove_abandoned() -> list[Path]:
    """Remove this user's folders whose process is certainly gone; returns them."""
    removed = []
    for place in dict.fromkeys((tempfile.gettempdir(), *_USUAL_PLACES)):
        for folder in sorted(Path(place).glob("cooperbench-*")):
            if is_abandoned(folder):
                remove_tree(folder)
                removed.append(folder)
    return removed


def remove_tree(path: Path) -> None:
    """Remove a folder of any depth and with any modes; absent is fine. Does not follow links."""
    if path.is_symlink() or not path.is_dir():
        return
    # rm instead of shutil.rmtree: agents can nest folders deeper than Python can recurse.
    _quietly("rm", "-rf", "--one-file-system", "--", str(path))
    if path.exists():
        _quietly("chmod", "-R", "u+rwx", "--", str(path))
        _quietly("rm", "-rf", "--one-file-system", "--", str(path))


def _quietly(*argv: str) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def is_abandoned(folder: Path) -> bool:
    """Whether a process made it that has certainly ended."""
    match = _NAME.fullmatch(folder.name)
    if match is None or match["space"] != pid_namespace():
        return False
    try:
        status = folder.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        return ours and process_start_time(int(match["pid"])) != match["start"]
    except OSError:
        return False
