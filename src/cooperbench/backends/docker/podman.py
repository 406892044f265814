"""A private service of Podman, for where none is running: Podman itself needs no daemon, its HTTP API does."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from cooperbench.errors import UserError
from cooperbench.temporary import owned_prefix
from cooperbench.text import printable

_START_SECONDS = 30.0
_WATCHED = """
"$@" </dev/null &
service=$!
while read -r line; do :; done
kill -KILL "$service"
wait "$service"
"""
"""Ends the service when we do: our end of its stdin closes, whichever way we die."""


class PodmanService:
    """Starts in the constructor, ends with `close` or with this process."""

    def __init__(self, executable: str) -> None:
        found = shutil.which(executable)
        if found is None:
            raise UserError(f"there is no {executable!r} to start; install Podman, or use --backend local")
        self._folder = Path(tempfile.mkdtemp(prefix=owned_prefix("podman")))
        path = self._folder / "podman.sock"
        self.url = f"unix://{path}"
        self._log = self._folder / "log"
        self._lock = threading.Lock()
        self._closed = False
        argv = [found, "system", "service", "--time=0", self.url]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _WATCHED, "podman", *argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # Podman's helpers leave a file `oom` where they stand.
                cwd=self._folder,
            )
        try:
            self._wait_for(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Calling it again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and not self._ended():
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
                probe.connect(str(path))
                return
            time.sleep(0.02)
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        raise UserError(
            f"podman system service did not start: {printable(lines[-1]) if lines else 'no word why'};"
            " try `podman info`, or use --backend local"
        )

    def _ended(self) -> bool:
        """The watcher outlives a service that fails at once, so the log is what tells."""
        return self._process.poll() is not None or "Error:" in self._log.read_text("utf-8", "replace")
