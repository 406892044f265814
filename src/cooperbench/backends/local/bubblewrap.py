"""Starting a sandbox with bubblewrap, 0.8 or newer (0.11 for overlays).

As root, bwrap on its own would keep all capabilities, with which a read-only mount can be made writable from inside:
the flags below take them all away, close user namespaces, and are tried by the escape tests.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

from cooperbench.backends.local.launcher import Started
from cooperbench.backends.local.mounts import Bind, Hidden, Overlay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cooperbench.backends.local.mounts import Mount, View

_ISOLATION = (
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    "--cap-drop",
    "ALL",
    "--uid",
    "0",
    "--gid",
    "0",
    "--hostname",
    "sandbox",
    "--new-session",
    "--die-with-parent",
    "--clearenv",
)
_SHARED_MEMORY_BYTES = 2 * 1024**3


class Bubblewrap:
    """One bwrap executable."""

    def __init__(self, name: str, executable: Path) -> None:
        self.name = name
        self._executable = executable

    def start(self, view: View, argv: Sequence[str], env: Mapping[str, str], log: Path) -> Started:
        info_read, info_write = os.pipe()
        arguments_fd = os.memfd_create("bwrap-arguments")
        try:
            # By a file, not on the command line: that can be read inside, and names folders of the host.
            os.write(arguments_fd, b"".join(os.fsencode(word) + b"\0" for word in arguments(view, env)))
            os.lseek(arguments_fd, 0, os.SEEK_SET)
            with log.open("wb") as log_file:
                process = subprocess.Popen(
                    [
                        self._executable,
                        "--args",
                        str(arguments_fd),
                        "--info-fd",
                        str(info_write),
                        "--",
                        *argv,
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    pass_fds=(arguments_fd, info_write),
                    bufsize=0,
                    cwd="/",
                    env={},  # /proc/1/environ shows it inside
                    start_new_session=True,  # Ctrl-C is the harness's to handle
                )
        finally:
            os.close(info_write)
            os.close(arguments_fd)
        with os.fdopen(info_read, "rb") as info:
            return Started(process, _open_init(info.read()))


def _open_init(info: bytes) -> int:
    """A handle on the sandbox's process 1; -1 where bwrap failed before it had one."""
    try:
        return os.pidfd_open(int(json.loads(info)["child-pid"]))
    except (ValueError, KeyError, TypeError, OSError):
        return -1


def arguments(view: View, env: Mapping[str, str]) -> list[str]:
    words = [*_ISOLATION]
    if view.share_network:
        words.append("--share-net")
    for name, value in env.items():
        words += ["--setenv", name, value]
    words += ["--bind", str(view.root), "/", "--proc", "/proc", "--dev", "/dev"]
    words += ["--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    words += ["--remount-ro", "/dev"]
    for mount in view.mounts:
        words += _words(mount)
    return [*words, "--chdir", "/"]


def _words(mount: Mount) -> list[str]:
    match mount:
        case Bind(source, target, writable):
            return ["--bind" if writable else "--ro-bind", str(source), target]
        case Overlay(lower, upper, work, target):
            return ["--overlay-src", str(lower), "--overlay", str(upper), str(work), target]
        case Hidden(target):
            return ["--size", "4096", "--tmpfs", target, "--remount-ro", target]
