"""Starting a sandbox with unshare(1) of util-linux, where bubblewrap cannot be had. `unshare.sh` does the mounting."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.local.launcher import Started
from cooperbench.backends.local.mounts import Bind, Hidden, Overlay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.backends.local.mounts import Mount, View

_NAMESPACES = ("--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts", "--cgroup")


class Unshare:
    """The system's unshare."""

    name = "unshare"

    def start(self, view: View, argv: Sequence[str], env: Mapping[str, str], log: Path) -> Started:
        folder = log.parent / "unshare"
        folder.mkdir()
        (folder / "mounts.sh").write_text("".join(_line(mount) for mount in view.mounts), "utf-8")
        (folder / "unshare.sh").write_bytes(resources.files(__package__).joinpath("unshare.sh").read_bytes())
        namespaces = [*_NAMESPACES, *([] if view.share_network else ["--net"])]
        script = [str(folder / "unshare.sh"), str(folder / "mounts.sh"), str(view.root)]
        search_path = f"{os.defpath}:/usr/sbin:/sbin"
        clean = ["env", "-i", *(f"{name}={value}" for name, value in env.items())]
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                ["unshare", *namespaces, "--fork", "--kill-child", "--", "bash", *script, *clean, *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                bufsize=0,
                cwd="/",
                env={"PATH": search_path, "LC_ALL": "C"},
                start_new_session=True,
            )
        return Started(process, _open_child(process.pid))


def _open_child(pid: int) -> int:
    """A handle on the only child of `unshare`, the sandbox's process 1; -1 where it has none in time."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if numbers := children.read_text("ascii").split():
                return os.pidfd_open(int(numbers[0]))
            if (Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]) == "Z":
                return -1
        except (OSError, ValueError):
            return -1
        time.sleep(0.001)
    return -1


def _line(mount: Mount) -> str:
    match mount:
        case Bind(source, target, writable):
            words = ["bind_writable" if writable else "bind_read_only", str(source), target]
        case Overlay(lower, upper, work, target):
            words = ["overlay", *(_overlay_path(path) for path in (lower, upper, work)), target]
        case Hidden(target):
            words = ["hide", target]
    return shlex.join(words) + "\n"


def _overlay_path(path: Path) -> str:
    """A path as an option of mount(8): its separators need a backslash."""
    return str(path).replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")
