"""A backend as somebody else would write it: the three methods of the protocol, and nothing more."""

from __future__ import annotations

import shutil
import subprocess
import tempfile


class PlainResult:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.returncode = done.returncode
        self._done = done

    def stdout_read(self) -> str:
        return self._done.stdout

    def stderr_read(self) -> str:
        return self._done.stderr


class PlainOwnSandbox:
    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="cooperbench-plain-")

    def exec(self, *args: str) -> PlainResult:
        return PlainResult(
            subprocess.run(args, cwd=self.folder, capture_output=True, text=True, check=False)
        )

    def terminate(self) -> None:
        shutil.rmtree(self.folder)


class PlainBackend:
    def create_sandbox(
        self, image: str, timeout: int = 600, workdir: str = "/workspace"
    ) -> PlainOwnSandbox:
        return PlainOwnSandbox()
