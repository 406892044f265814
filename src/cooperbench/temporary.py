"""Temporary folders whose names contain their process, so that leftovers of killed ones can go.

Process ids are reused; together with its start time, a process id is unique.
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
_USUAL_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # only searched for leftovers


def process_start_time(pid: int) -> str:
    """Return the start time of a process; empty if there is no such process.

    Raises:
        OSError: It is not known if the process exists.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[19]


@cache
def pid_namespace() -> str:
    """Return the id of our PID namespace. Processes of other namespaces are invisible here."""
    return f"{Path('/proc/self/ns/pid').stat().st_ino:x}"


def owned_prefix(purpose: str) -> str:
    """Return a prefix for `mkdtemp` with a purpose (lower case letters) and this process."""
    pid = os.getpid()
    return f"cooperbench-{purpose}-{pid}-{process_start_time(pid)}-{pid_namespace()}-"


def remove_abandoned() -> list[Path]:
    """Remove and return this user's folders whose process has certainly ended."""
    removed = []
    for parent in dict.fromkeys((tempfile.gettempdir(), *_USUAL_FOLDERS)):
        for folder in sorted(Path(parent).glob("cooperbench-*")):
            if is_abandoned(folder):
                remove_tree(folder)
                removed.append(folder)
    return removed


def remove_tree(path: Path) -> None:
    """Remove a folder of any depth and with any modes, if it exists. Links are not followed."""
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
    """Whether the process that created a folder has certainly ended."""
    match = _NAME.fullmatch(folder.name)
    if match is None or match["space"] != pid_namespace():
        return False
    try:
        status = folder.lstat()
        is_own_folder = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        return is_own_folder and process_start_time(int(match["pid"])) != match["start"]
    except OSError:
        return False
