"""A worker's life: started with little, spoken to in lines, ended with everything that it started."""

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
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cooperbench.errors import InfraError, UserError
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
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_READ_BYTES = 1 << 16
_WAKE_SECONDS = 0.2
_END_SECONDS = 10.0
_TAIL_LINES = 5


class Worker:
    """A running worker. One thread talks to it; `close` may be called more than once."""

    def __init__(self, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._name = Path(argv[-1]).name
        self._home = tempfile.TemporaryDirectory(prefix=owned_prefix("worker"), ignore_cleanup_errors=True)
        self._unread = bytearray()
        self._last_heard = time.monotonic()
        self._control: int | None = None
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._process = self._start(argv, environment or {})
        except OSError as error:
            self._home.cleanup()
            raise UserError(f"{argv[0]} cannot be started: {error.strerror}") from error
        self._errors = _ErrorLog(self._process.stderr, log)

    def _start(self, argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        told, self._control = os.pipe()
        supervisor = [sys.executable, "-I", "-S", "-B", str(Path(__file__).with_name("supervisor.py"))]
        try:
            return subprocess.Popen(
                [*supervisor, str(told), *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=self._home.name,
                env=_minimal_environment(self._home.name) | dict(environment),
                pass_fds=[told],
                start_new_session=True,  # Ctrl-C is the harness's to handle
            )
        finally:
            os.close(told)

    def send(self, message: Mapping[str, Any], check: Callable[[], None]) -> None:
        """One message. `check` is called now and then and ends the waiting by raising."""
        pipe = self._process.stdin
        assert pipe is not None
        data = memoryview(json.dumps(message).encode() + b"\n")
        os.set_blocking(pipe.fileno(), False)
        while data:
            check()
            if not select.select([], [pipe], [], _WAKE_SECONDS)[1]:
                continue
            try:
                data = data[os.write(pipe.fileno(), data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._ended() from None

    def receive(self, check: Callable[[], None], silence_seconds: float) -> dict[str, Any]:
        """The next message. `check` is called now and then and ends the waiting by raising."""
        pipe = self._process.stdout
        assert pipe is not None
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > LINE_BYTES:
                raise InfraError(f"{self._name} sent a line of more than {LINE_BYTES >> 20} MB")
            check()
            if not select.select([pipe], [], [], _WAKE_SECONDS)[0]:
                if time.monotonic() - self._last_heard > silence_seconds:
                    raise InfraError(
                        f"{self._name} has not been heard of for {silence_seconds:g} s{self.stderr_tail()}"
                    )
                continue
            piece = os.read(pipe.fileno(), _READ_BYTES)
            if not piece:
                raise self._ended()
            self._unread += piece
        self._last_heard = time.monotonic()
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return self._parsed(line)

    def reset_silence(self) -> None:
        """Silence counts from now: it was we who were busy."""
        self._last_heard = time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Give it time to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def close(self) -> None:
        """End it and everything that it started."""
        if self._control is None:
            return
        os.close(self._control)
        self._control = None
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._home.cleanup()

    def stderr_tail(self) -> str:
        """The end of its stderr, to be put behind a sentence."""
        words = self._errors.tail()
        return f": {words}" if words else ""

    def _ended(self) -> InfraError:
        self.wait(_END_SECONDS)
        self._errors.join()
        code = self._process.returncode
        how = "closed its stdout" if code is None else f"ended with exit code {code}"
        return InfraError(f"{self._name} {how} in mid-work{self.stderr_tail()}")

    def _parsed(self, line: bytes) -> dict[str, Any]:
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


class _ErrorLog:
    """A worker's stderr, on its way into a file that does not grow without end."""

    def __init__(self, pipe: IO[bytes] | None, log: Path) -> None:
        assert pipe is not None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._thread = threading.Thread(
            target=self._copy, args=(pipe, log), name="worker-stderr", daemon=True
        )
        self._thread.start()

    def _copy(self, pipe: IO[bytes], log: Path) -> None:
        left = LOG_BYTES
        with pipe, log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            while piece := pipe.readline(_READ_BYTES):
                text = redact(piece.decode("utf-8", "replace"))
                if text.strip():
                    self._tail.append(printable(text.strip())[:300])
                if left > 0:
                    file.write(text)
                    file.flush()
                    left -= len(piece)
                    if left <= 0:
                        file.write(f"\n[… the rest is left out, after {LOG_BYTES >> 20} MB]\n")

    def tail(self) -> str:
        return self._tail[-1] if self._tail else ""

    def join(self) -> None:
        self._thread.join(_END_SECONDS)


def _minimal_environment(home: str) -> dict[str, str]:
    """What any program needs. No key of the user's: those that the model needs come in the first message."""
    names = (*_PASSED_ON, *_PROXIES, *(name.upper() for name in _PROXIES))
    kept = {name: value for name in names if (value := os.environ.get(name)) is not None}
    return kept | {"HOME": home, "TMPDIR": home, "PYTHONUNBUFFERED": "1"}
