"""A backend in three methods: `create_sandbox`, `exec` and `terminate`.

    cooperbench run -n mine -a oracle --dataset-dir demo --backend custom_backend:BubblewrapBackend

Each sandbox is a folder, and each command a new bubblewrap process that sees this folder. Nothing
is left running between two commands. It is small, not safe: `--backend local` has the same idea
with limits, a system call filter and an answer to everything that this one ignores.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cooperbench.dataset.discovery import demo_dir

IMAGE = re.compile(r"(?P<repo>\w+):task(?P<task>\d+)$")
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc")
WRITABLE = ("workspace", "patches", "cooperbench", "tmp")


@dataclass
class Result:
    """The result of a command."""

    returncode: int
    stdout: bytes
    stderr: bytes

    def stdout_read(self) -> str:
        """Return the standard output."""
        return self.stdout.decode(errors="replace")

    def stderr_read(self) -> str:
        """Return the standard error."""
        return self.stderr.decode(errors="replace")


class BubblewrapSandbox:
    """A folder whose parts are /workspace, /patches, /cooperbench and /tmp for its commands."""

    def __init__(self, folder: Path, timeout: int, workdir: str) -> None:
        self._folder = folder
        self._timeout = timeout
        self._workdir = workdir

    def exec(self, *args: str) -> Result:
        """Run a command and return its result."""
        argv = ["bwrap", "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
        for path in SYSTEM:
            argv += ["--ro-bind-try", path, path]
        argv += ["--bind", str(self._folder / "usr-local-bin"), "/usr/local/bin"]
        for name in WRITABLE:
            argv += ["--bind", str(self._folder / name), f"/{name}"]
        argv += ["--chdir", self._workdir, "--setenv", "HOME", "/tmp", "--", *args]
        environment = {"PATH": f"/usr/local/bin:{os.environ['PATH']}", "LANG": "C.UTF-8"}
        done = subprocess.run(
            argv, capture_output=True, timeout=self._timeout, env=environment, check=False
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def terminate(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder, ignore_errors=True)


class BubblewrapBackend:
    """Sandboxes for tasks of the demo, whose images are their `setup.sh` and `runner.sh`."""

    def create_sandbox(
        self, image: str, timeout: int = 600, workdir: str = "/workspace"
    ) -> BubblewrapSandbox:
        """Return a new sandbox with the repository of the image's task."""
        name = IMAGE.search(image)
        if name is None:
            raise ValueError(f"{image} is not the image of a task")
        task = demo_dir() / name["repo"] / f"task{name['task']}"
        folder = Path(tempfile.mkdtemp(prefix="example-sandbox-"))
        for part in (*WRITABLE, "usr-local-bin"):
            (folder / part).mkdir()
        setup = ["bash", str(task / "setup.sh"), str(folder / "workspace" / "repo")]
        subprocess.run(setup, check=True, capture_output=True)
        shutil.copy(task / "runner.sh", folder / "usr-local-bin" / "runner.sh")
        (folder / "usr-local-bin" / "runner.sh").chmod(0o755)
        return BubblewrapSandbox(folder, timeout, workdir)
