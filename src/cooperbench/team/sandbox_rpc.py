"""Calls from commands in one agent's sandbox to the harness: a request is a file there, and so is its response.

What the verbs (`send`, `read`, `push`, `tool`) mean is decided by the handlers that others register. The only verb of
this module is `sync`: its response comes after everything that was requested before has been done and delivered.
Requests come over a stream into the sandbox where the backend has one (nothing polls); else `exec` looks for them a few
times a second.
"""

from __future__ import annotations

import base64
import binascii
import queue
import re
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.team.mailbox import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cooperbench.sandbox.contract import RichSandbox

TEAM_DIR = "/cooperbench/team"
BIN_DIR = "/cooperbench/bin"
POLL_SECONDS = 0.25
MOST_REQUESTS = 200_000
"""Of one agent; one that floods is ignored from then on, instead of filling the harness's memory."""
LAST_CALL_SECONDS = 5.0
"""How long an agent that is done can keep us with its last requests."""
_LARGEST_REQUEST_BYTES = MAX_MESSAGE_BYTES + 1000
"""Longer ones are cut to this, which is still too long for a message: the sender is told so."""
_LONGEST_LINE = _LARGEST_REQUEST_BYTES * 4 // 3 + 1000
_WITH_CONTENT = frozenset({"send", "push", "tool"})
_MOST_STARTS = 20
"""How often listening begins again after a failure, or after the agent has killed who listens."""
_RESTART_SECONDS = 0.1
_NAME = re.compile(r"[A-Za-z0-9]{1,64}")


class Request(NamedTuple):
    verb: str
    name: str
    """The response has the same."""
    content: bytes


class Response(NamedTuple):
    code: int
    """0: done; else the exit code of the command that asked."""
    text: str = ""
    """For the command: what it prints, or continues with."""


class SandboxRpc:
    """Of one agent. Register handlers, `start` once the sandbox is open, `close` when the agent is done."""

    def __init__(self, agent_id: str, colleagues: Sequence[str]) -> None:
        self.agent_id = agent_id
        self.colleagues = tuple(colleagues)
        self.on_restart: Callable[[], None] = lambda: None
        """Called when the script in the sandbox was killed and started again: files being written may be lost."""
        self.on_lost: Callable[[SandboxDead], None] = lambda _: None
        """Called when the sandbox has ended though the agent is not done."""
        self._handlers: dict[str, Callable[[str, bytes], Response | None]] = {
            "sync": lambda _name, _content: Response(0)
        }
        self._commands: list[str] = []
        self.before: Mapping[str, Callable[[], None]] = {}
        """What is called before a request is handled, by verb."""
        self._sandbox: RichSandbox | None = None
        self._streams = False
        self._transport: _Transport | None = None
        self._lock = threading.Lock()
        self._known: set[tuple[str, str]] = set()
        self._serving = threading.Lock()
        """Held while a request is handled: one at a time, each once, however it came."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def handle(self, verb: str, handler: Callable[[str, bytes], Response | None]) -> None:
        """`handler(name, content)` is called in a thread of this object, one request at a time, each once."""
        self._handlers[verb] = handler

    def add_commands(self, *commands: str) -> None:
        """Files in team/sandbox that become commands of the agent; `coop-…` are all the one `coop`."""
        self._commands += commands

    def start(self, sandbox: RichSandbox, *, streams: bool) -> None:
        """Put the commands into the sandbox and serve their requests."""
        self._sandbox, self._streams = sandbox, streams
        scripts = ["coop" if name.startswith("coop-") else name for name in self._commands]
        for name in dict.fromkeys(("team.sh", *scripts)):
            sandbox.write_file(f"{BIN_DIR}/{name}", script_text(name).encode(), 0o755)
        colleagues = "".join(f"{name}\n" for name in self.colleagues)
        sandbox.write_file(f"{TEAM_DIR}/colleagues", colleagues.encode())
        sandbox.write_file(f"{TEAM_DIR}/agent", f"{self.agent_id}\n".encode())
        how = "streams" if streams else "polled"
        argv = ["bash", "-c", script_text("install.sh"), "install", TEAM_DIR, how, BIN_DIR, *self._commands]
        done = sandbox.run(argv, timeout_seconds=60)
        if done.returncode != 0:
            reason = done.stderr_read().strip()[:300]
            raise SandboxError(f"the team's commands could not be put into the sandbox: {reason}")
        self._thread = threading.Thread(
            target=self._listen,
            args=(sandbox, self._connect(sandbox)),
            name=f"rpc-{self.agent_id}",
            daemon=True,
        )
        self._thread.start()

    def put(self, folder: str, name: str, data: bytes) -> None:
        """Make a file in the team folder; does nothing once this has ended."""
        transport = self._transport
        if transport is not None and not self._ended.is_set():
            transport.put(folder, name, data)

    def last_call(self, *verbs: str) -> None:
        """The agent is done: handle its requests of these kinds that have not come yet."""
        sandbox = self._sandbox
        if sandbox is None or self._ended.is_set():
            return
        served, deadline = [True], time.monotonic() + LAST_CALL_SECONDS
        # A sandbox that is gone has no more requests; who takes the patch from it will notice that.
        with suppress(SandboxError):
            while any(served) and not self._flooded() and time.monotonic() < deadline:
                requests = [one for one in _collect(sandbox, last_call=True) if one.verb in verbs]
                # Something that takes its time, like a push, is no reason to keep the agent.
                if not self._serving.acquire(timeout=LAST_CALL_SECONDS):
                    return
                try:
                    served = [self._serve(request) for request in requests]
                finally:
                    self._serving.release()

    def close(self) -> None:
        """Calling it again does nothing; no thread is left when it returns."""
        with self._lock:
            self._ended.set()
            transport = self._transport
        if transport is not None:
            transport.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10)

    def _connect(self, sandbox: RichSandbox) -> _Transport:
        transport = _StreamTransport(sandbox) if self._streams else _PollingTransport(sandbox)
        with self._lock:
            self._transport = transport
            ended = self._ended.is_set()
        if ended:
            transport.close()
        return transport

    def _listen(self, sandbox: RichSandbox, transport: _Transport) -> None:
        for _ in range(_MOST_STARTS):
            # Fails when the sandbox does not do what it is told, or the pipe was closed at either end.
            with suppress(SandboxError, OSError, ValueError):
                for request in transport.requests():
                    with self._serving:
                        self._serve(request)
                    if self._flooded():
                        break
            if self._ended.wait(_RESTART_SECONDS):
                return
            transport.close()
            if self._flooded():
                return
            try:
                transport = self._connect(sandbox)
            except SandboxError as error:
                if isinstance(error, SandboxDead):
                    self.on_lost(error)
                return
            self.on_restart()

    def _flooded(self) -> bool:
        return len(self._known) >= MOST_REQUESTS

    def _serve(self, request: Request) -> bool:
        """False where it was handled before or cannot be. The caller holds `_serving`."""
        key = (request.verb, request.name)
        if key in self._known or request.verb not in self._handlers or not _NAME.fullmatch(request.name):
            return False
        self._known.add(key)
        if self._flooded():
            return False
        try:
            self.before.get(request.verb, lambda: None)()
            response = self._handlers[request.verb](request.name, request.content)
        except Exception as error:  # one request that fails must not cost the agent all that follow
            response = Response(1, f"the harness could not do it: {error}")
        if response is not None:
            self.respond(request.name, response)
        return True

    def respond(self, name: str, response: Response) -> None:
        """For handlers that returned None, since the response takes its time."""
        data = f"{response.code}\n{response.text}".encode("utf-8", "replace")
        self.put("responses", name, data)


class _Transport(ABC):
    """What is put into the sandbox is written by a thread of its own: an agent that blocks it blocks nobody else."""

    def __init__(self) -> None:
        self._outgoing: queue.SimpleQueue[tuple[str, str, bytes] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, name="rpc-writer", daemon=True)
        self._writer.start()

    def put(self, folder: str, name: str, data: bytes) -> None:
        """Make a file in the team folder. Files appear in the order of the calls."""
        self._outgoing.put((folder, name, data))

    def close(self) -> None:
        self._outgoing.put(None)
        self._end()
        self._writer.join(10)

    @abstractmethod
    def requests(self) -> Iterator[Request]:
        """Until the sandbox or the transport ends. The same request may come twice."""

    @abstractmethod
    def _write(self, folder: str, name: str, data: bytes) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    def _write_all(self) -> None:
        while (file := self._outgoing.get()) is not None:
            # Fails when the agent is ending; what it does not get any more is on record as not delivered.
            with suppress(SandboxError, OSError, ValueError):
                self._write(*file)


class _StreamTransport(_Transport):
    """A shell script in the sandbox that blocks on a FIFO, which the commands write to."""

    def __init__(self, sandbox: RichSandbox) -> None:
        argv = ["bash", "-c", script_text("rpc.sh"), "rpc", TEAM_DIR, str(_LARGEST_REQUEST_BYTES)]
        self._stream = sandbox.open_stream(argv)
        if self._stream.stdout.readline(100) != b"ready\n":
            self._stream.close()
            raise SandboxError("the script that serves the team's commands did not start in the sandbox")
        super().__init__()

    def requests(self) -> Iterator[Request]:
        for _ in range(MOST_REQUESTS):
            line = self._line()
            if not line:
                return
            verb, _, name = line.decode("ascii", "replace").strip().partition(" ")
            content = self._line() if verb in _WITH_CONTENT else b""
            with suppress(binascii.Error):
                yield Request(verb, name, base64.b64decode(content))

    def _line(self) -> bytes:
        line = self._stream.stdout.readline(_LONGEST_LINE)
        if len(line) == _LONGEST_LINE:
            raise SandboxError("the script that serves the team's commands sent a line without end")
        return line

    def _write(self, folder: str, name: str, data: bytes) -> None:
        self._stream.stdin.write(f"{folder} {name} {len(data)}\n".encode() + data)
        self._stream.stdin.flush()

    def _end(self) -> None:
        self._stream.close()


class _PollingTransport(_Transport):
    """For sandboxes that have only `exec`. A request takes up to `POLL_SECONDS` longer."""

    def __init__(self, sandbox: RichSandbox) -> None:
        self._sandbox = sandbox
        self._ended = threading.Event()
        super().__init__()

    def requests(self) -> Iterator[Request]:
        while not self._ended.wait(POLL_SECONDS):
            yield from _collect(self._sandbox)

    def _write(self, folder: str, name: str, data: bytes) -> None:
        self._sandbox.write_file(f"{TEAM_DIR}/{folder}/{name}", data)

    def _end(self) -> None:
        self._ended.set()


def _collect(sandbox: RichSandbox, *, last_call: bool = False) -> list[Request]:
    """Requests without a response, a few at a time. On the last call those still being written get a moment."""
    how = "last" if last_call else ""
    argv = ["bash", "-c", script_text("collect.sh"), "collect", TEAM_DIR, str(_LARGEST_REQUEST_BYTES), how]
    output = sandbox.run(argv, timeout_seconds=60, output_limit=10 * _LONGEST_LINE).stdout
    requests = []
    for line in output.splitlines():
        verb, name, encoded = [*line.split(b" "), b"", b""][:3]
        with suppress(ValueError):
            content = base64.b64decode(encoded) if verb.decode() in _WITH_CONTENT else b""
            requests.append(Request(verb.decode(), name.decode("ascii"), content))
    return requests


def script_text(name: str) -> str:
    """A script or command that runs in agents' sandboxes."""
    return (files("cooperbench.team") / "sandbox" / name).read_text()
