"""Carries requests out of a sandbox and files into it.

Two ways: over a stream into the sandbox where the backend has one (nothing polls), else by asking with `exec` a few
times a second, for backends that have nothing but that. What the requests mean is the link's business.
"""

from __future__ import annotations

import base64
import binascii
import queue
import threading
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.team.mailbox import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.sandbox.contract import RichSandbox

POLL_SECONDS = 0.25
LARGEST_REQUEST_BYTES = MAX_MESSAGE_BYTES + 1000
"""What is longer comes cut to this, which is still too long for a message: its sender is told so."""
WITH_CONTENT = frozenset({"send", "push"})
_LONGEST_LINE = LARGEST_REQUEST_BYTES * 4 // 3 + 1000
_MOST_FAILURES = 5


class Event(NamedTuple):
    """Something that was asked for in the sandbox."""

    verb: str
    name: str
    """Of the request; its receipt gets the same."""
    content: bytes


class Courier(Protocol):
    def events(self) -> Iterator[Event]:
        """What is asked for in the sandbox, until it or the courier ends. The same may come twice."""
        ...

    def put(self, folder: str, name: str, data: bytes) -> None:
        """Make a file in the team folder. Files appear in the order of the calls."""
        ...

    def close(self) -> None: ...


class StreamCourier:
    """A small shell script in the sandbox that blocks on a FIFO; the commands ring it."""

    def __init__(self, sandbox: RichSandbox, team_dir: str) -> None:
        script = script_text("courier.sh")
        self._stream = sandbox.open_stream(
            ["bash", "-c", script, "courier", team_dir, str(LARGEST_REQUEST_BYTES)]
        )
        if self._stream.stdout.readline(100) != b"ready\n":
            self._stream.close()
            raise SandboxError("the courier did not start in the sandbox")
        # By a thread of its own: a courier that an agent has stopped must not stop whoever has something for it.
        self._letters: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="courier-writer", daemon=True)
        self._writer.start()

    def events(self) -> Iterator[Event]:
        while line := self._line():
            verb, _, name = line.decode("ascii", "replace").strip().partition(" ")
            content = b""
            if verb in WITH_CONTENT:
                try:
                    content = base64.b64decode(self._line())
                except binascii.Error:
                    continue
            yield Event(verb, name, content)

    def put(self, folder: str, name: str, data: bytes) -> None:
        self._letters.put(f"{folder} {name} {len(data)}\n".encode() + data)

    def close(self) -> None:
        self._letters.put(None)
        self._stream.close()
        self._writer.join(10)

    def _line(self) -> bytes:
        line = self._stream.stdout.readline(_LONGEST_LINE)
        if len(line) == _LONGEST_LINE:
            raise SandboxError("the courier in the sandbox talks without end")
        return line

    def _write(self) -> None:
        try:
            while (letter := self._letters.get()) is not None:
                self._stream.stdin.write(letter)
                self._stream.stdin.flush()
        except (OSError, ValueError):
            # The courier is gone; whoever listens to it learns that too.
            return


class PollingCourier:
    """For sandboxes that have only `exec`. A request takes up to a quarter of a second longer."""

    def __init__(self, sandbox: RichSandbox, team_dir: str) -> None:
        self._sandbox = sandbox
        self._team_dir = team_dir
        self._ended = threading.Event()

    def events(self) -> Iterator[Event]:
        failures = 0
        while not self._ended.wait(POLL_SECONDS):
            try:
                collected = collect(self._sandbox, self._team_dir)
                failures = 0
            except SandboxDead:
                raise
            except SandboxError:
                failures += 1
                if failures >= _MOST_FAILURES:
                    raise
                continue
            yield from collected

    def put(self, folder: str, name: str, data: bytes) -> None:
        self._sandbox.write_file(f"{self._team_dir}/{folder}/{name}", data)

    def close(self) -> None:
        self._ended.set()


def collect(sandbox: RichSandbox, team_dir: str, *, last_call: bool = False) -> list[Event]:
    """What was asked for and not answered yet; a few at a time. On the last call those still writing get a moment."""
    how = "last" if last_call else ""
    argv = ["bash", "-c", script_text("collect.sh"), "collect", team_dir, str(LARGEST_REQUEST_BYTES), how]
    output = sandbox.run(argv, timeout_seconds=60, output_limit=10 * _LONGEST_LINE).stdout
    events = []
    for line in output.splitlines():
        verb, name, encoded = [*line.split(b" "), b"", b""][:3]
        with suppress(ValueError):
            content = base64.b64decode(encoded) if verb.decode() in WITH_CONTENT else b""
            events.append(Event(verb.decode(), name.decode("ascii"), content))
    return events


def script_text(name: str, folder: str = "sandbox") -> str:
    """A script or command that runs in sandboxes: in those of agents, or in the git `server`'s."""
    return (files("cooperbench.team") / folder / name).read_text()
