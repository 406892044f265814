"""Carries files between the team folder in a sandbox and the harness.

Two ways: over a stream into the sandbox where the backend has one (nothing polls), else by asking with `exec` a few
times a second, for backends that have nothing but that.
"""

from __future__ import annotations

import base64
import binascii
import threading
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cooperbench.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.eval.backends.base import RichSandbox

POLL_SECONDS = 0.25
_COLLECT = """cd "$1" || exit 1
for file in outbox/*; do
    [ -f "$file" ] || continue
    [ -e "receipts/${file##*/}" ] || echo "send ${file##*/} $(base64 -w0 "$file")"
done
for file in read/*; do [ -e "$file" ] && echo "read ${file##*/} ="; done
exit 0"""


class Event(NamedTuple):
    """Something that happened in the sandbox."""

    verb: str
    """`send`: a message was dropped; `read`: one was shown by a command."""
    name: str
    content: bytes


class Courier(Protocol):
    def events(self) -> Iterator[Event]:
        """What happens in the sandbox, until it or the courier ends."""
        ...

    def put(self, folder: str, name: str, data: bytes) -> None:
        """Make a file in the team folder."""
        ...

    def close(self) -> None: ...


class StreamCourier:
    """A small shell script in the sandbox that blocks on a FIFO; `send_message` rings it."""

    def __init__(self, sandbox: RichSandbox, team_dir: str) -> None:
        script = (files("cooperbench.team") / "sandbox" / "courier.sh").read_text()
        self._stream = sandbox.open_stream(["bash", "-c", script, "courier", team_dir])
        self._lock = threading.Lock()
        self._closed = False
        if self._stream.stdout.readline() != b"ready\n":
            raise SandboxError("the courier did not start in the sandbox")

    def events(self) -> Iterator[Event]:
        while line := self._stream.stdout.readline():
            verb, _, name = line.decode("ascii", "replace").strip().partition(" ")
            content = b""
            if verb == "send":
                encoded = self._stream.stdout.readline()
                try:
                    content = base64.b64decode(encoded, validate=False)
                except binascii.Error:
                    continue
            yield Event(verb, name, content)

    def put(self, folder: str, name: str, data: bytes) -> None:
        with self._lock:
            if self._closed:
                return
            self._stream.stdin.write(f"{folder} {name} {len(data)}\n".encode() + data)
            self._stream.stdin.flush()

    def close(self) -> None:
        self._closed = True
        self._stream.close()


class PollingCourier:
    """For sandboxes that have only `exec`. A message takes up to a quarter of a second longer."""

    def __init__(self, sandbox: RichSandbox, team_dir: str) -> None:
        self._sandbox = sandbox
        self._team_dir = team_dir
        self._ended = threading.Event()

    def events(self) -> Iterator[Event]:
        known: set[tuple[str, str]] = set()
        while not self._ended.wait(POLL_SECONDS):
            answer = self._sandbox.run(
                ["bash", "-c", _COLLECT, "collect", self._team_dir],
                timeout_seconds=60,
                output_limit=50_000_000,
            )
            for line in answer.stdout_read().splitlines():
                verb, name, encoded = [*line.split(" "), "", ""][:3]
                if (verb, name) not in known:
                    known.add((verb, name))
                    yield Event(verb, name, base64.b64decode(encoded) if verb == "send" else b"")

    def put(self, folder: str, name: str, data: bytes) -> None:
        self._sandbox.write_file(f"{self._team_dir}/{folder}/{name}", data)

    def close(self) -> None:
        self._ended.set()
