"""A running worker: started with little, spoken to in lines, ended with everything that it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cooperbench.errors import InfraError
from cooperbench.secrets import redact
from cooperbench.temporary import owned_prefix
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LINE_BYTES = 64 * 1024 * 1024
"""The longest line that is taken from a worker."""
LOG_BYTES = 16 * 1024 * 1024
"""What is kept of its stderr."""
_PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
)  # fmt: skip
_READ_BYTES = 1 << 16
_WAKE_SECONDS = 0.2
_END_SECONDS = 10.0


class Worker:
    """A running worker. One thread talks to it; `close` may be called more than once."""

    def __init__(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._name = Path(argv[-1]).name
        self._home = tempfile.TemporaryDirectory(prefix=owned_prefix("worker"), ignore_cleanup_errors=True)
        self._unread = bytearray()
        self._last_words = ""
        told, self._control = os.pipe()
        self._closed = False
        supervisor = [sys.executable, "-I", "-S", "-B", str(Path(__file__).with_name("supervisor.py"))]
        # No key of the user's: those that the model needs come in the first message.
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        own = {"HOME": self._home.name, "TMPDIR": self._home.name, "PYTHONUNBUFFERED": "1"}
        try:
            self._process = subprocess.Popen(
                [*supervisor, str(told), *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=self._home.name,
                env={**kept, **own, **environment},
                pass_fds=[told],
                start_new_session=True,  # Ctrl-C is the harness's to handle
            )
        except OSError as error:
            self._home.cleanup()
            raise InfraError(f"{argv[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(told)
        self._errors = threading.Thread(
            target=self._copy_errors, args=[log], name="worker-stderr", daemon=True
        )
        self._errors.start()

    def send(self, message: Mapping[str, Any], check: Callable[[], None]) -> None:
        """One message. `check` is called now and then and ends the waiting by raising."""
        pipe = _open(self._process.stdin).fileno()
        data = memoryview(json.dumps(message).encode() + b"\n")
        os.set_blocking(pipe, False)
        while data:
            check()
            if not select.select([], [pipe], [], _WAKE_SECONDS)[1]:
                continue
            try:
                data = data[os.write(pipe, data) :]
            except BrokenPipeError:
                raise self._ended() from None

    def receive(self, check: Callable[[], None], silence_seconds: float) -> dict[str, Any]:
        """The next message. `check` is called now and then and ends the waiting by raising."""
        pipe = _open(self._process.stdout).fileno()
        searched, heard_at = 0, time.monotonic()
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > LINE_BYTES:
                raise InfraError(f"{self._name} sent a line of more than {LINE_BYTES >> 20} MB")
            check()
            if select.select([pipe], [], [], _WAKE_SECONDS)[0]:
                piece = os.read(pipe, _READ_BYTES)
                if not piece:
                    raise self._ended()
                self._unread += piece
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > silence_seconds:
                raise InfraError(
                    f"{self._name} has not been heard of for {silence_seconds:g} s{self.stderr_tail()}"
                )
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            shown = printable(redact(line[:200].decode("utf-8", "replace")))
            raise InfraError(
                f"{self._name} printed what is no message (its stdout is for the protocol): {shown}"
            )
        return message

    def wait(self, seconds: float) -> None:
        """Give it time to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def close(self) -> None:
        """End it and everything that it started."""
        if self._closed:
            return
        self._closed = True
        os.close(self._control)
        self.wait(_END_SECONDS)
        self._process.kill()
        self._process.wait()
        self._errors.join(_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                _open(pipe).close()
        self._home.cleanup()

    def stderr_tail(self) -> str:
        """The last line of its stderr, to be put behind a sentence."""
        return f": {self._last_words}" if self._last_words else ""

    def _ended(self) -> InfraError:
        self.wait(_END_SECONDS)
        self._errors.join(_END_SECONDS)
        code = self._process.returncode
        how = "closed its stdout" if code is None else f"ended with exit code {code}"
        return InfraError(f"{self._name} {how} in mid-work{self.stderr_tail()}")

    def _copy_errors(self, log: Path) -> None:
        """Its stderr, into a file that does not grow without end."""
        left = LOG_BYTES
        with (
            _open(self._process.stderr) as pipe,
            log.open("a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            while piece := pipe.readline(_READ_BYTES):
                text = redact(piece.decode("utf-8", "replace"))
                self._last_words = printable(text.strip())[:300] or self._last_words
                if left > 0:
                    left -= len(piece)
                    file.write(
                        text if left > 0 else f"\n[… the rest is left out, after {LOG_BYTES >> 20} MB]\n"
                    )
                    file.flush()


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
