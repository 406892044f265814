"""Calls from commands in one agent's sandbox to the harness: a request is a file there, and so is its response.

Others register what the verbs (`send`, `read`, `push`, `tool`) mean; `sync` is answered when all that came before it is
done. Requests come over a stream into the sandbox; where the backend has none, `exec` looks for them.
"""

from __future__ import annotations

import base64
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import NamedTuple

from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import Stream
from cooperbench.team.mailbox import MAX_MESSAGE_BYTES

TEAM_DIR = "/cooperbench/team"
BIN_DIR = "/cooperbench/bin"
POLL_SECONDS = 0.25
MAX_REQUESTS = 200_000
"""Of one agent; one that floods is ignored from then on, instead of filling the harness's memory."""
LAST_CALL_SECONDS = 5.0
"""How long an agent that is done can keep us with its last requests."""
_MAX_REQUEST_BYTES = MAX_MESSAGE_BYTES + 1000
"""Longer ones are cut to this, which is still too long for a message: the sender is told so."""
_MAX_LINE_BYTES = _MAX_REQUEST_BYTES * 4 // 3 + 1000
_MAX_STARTS = 20
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

    def __init__(self, agent_id: str, teammates: Sequence[str]) -> None:
        self.agent_id = agent_id
        self.teammates = tuple(teammates)
        self.on_restart: Callable[[], None] = lambda: None
        """Called when the script in the sandbox was killed and started again: files being written may be lost."""
        self.on_lost: Callable[[SandboxDead], None] = lambda _: None
        """Called when the sandbox has ended though the agent is not done."""
        self._handlers: dict[str, Callable[[str, bytes], Response | None]] = {
            "sync": lambda _name, _content: Response(0)
        }
        self._commands: list[str] = []
        self._sandbox: Sandbox | None = None
        self._stream: Stream | None = None
        """To the script in the sandbox; None where requests are polled for."""
        self._outgoing: queue.SimpleQueue[tuple[str, str, bytes] | None] = queue.SimpleQueue()
        self._known: set[tuple[str, str]] = set()
        self._serving = threading.Lock()
        """Held while a request is handled: one at a time, each once, however it came."""
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def handle(
        self, verb: str, handler: Callable[[str, bytes], Response | None], *commands: str
    ) -> None:
        """`handler(name, content)` is called one request at a time; `commands` (files in team/sandbox) make them."""
        self._handlers[verb] = handler
        self._commands += commands

    def start(self, sandbox: Sandbox, *, streams: bool) -> None:
        """Put the commands into the sandbox and serve their requests."""
        self._sandbox = sandbox
        scripts = ["coop" if name.startswith("coop-") else name for name in self._commands]
        for name in dict.fromkeys(("team.sh", *scripts)):
            sandbox.write_file(f"{BIN_DIR}/{name}", script_text(name).encode(), 0o755)
        teammates = "".join(f"{name}\n" for name in self.teammates)
        sandbox.write_file(f"{TEAM_DIR}/teammates", teammates.encode())
        sandbox.write_file(f"{TEAM_DIR}/agent", f"{self.agent_id}\n".encode())
        how = "streams" if streams else "polled"
        argv = [
            "bash",
            "-c",
            script_text("install.sh"),
            "install",
            TEAM_DIR,
            how,
            BIN_DIR,
            *self._commands,
        ]
        sandbox.run_checked(argv, "the team's commands could not be put into the sandbox", 60)
        if streams:
            self._connect(sandbox)
        # What is put into the sandbox has a thread of its own: an agent that blocks it blocks nobody else.
        for work in (self._listen, self._write_all):
            thread = threading.Thread(
                target=work, args=(sandbox,), name=f"rpc-{self.agent_id}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def put(self, folder: str, name: str, data: bytes) -> None:
        """Make a file in the team folder, once there is a sandbox and in the order of the calls, until the end."""
        if not self._ended.is_set():
            self._outgoing.put((folder, name, data))

    def answer(self, name: str, work: Callable[[], Response | None]) -> None:
        """Respond to a request with what `work` gives; None: nothing yet."""
        try:
            response = work()
        except Exception as error:  # one request that fails must not cost the agent all that follow
            response = Response(1, f"the harness could not do it: {error}")
        if response is not None:
            data = f"{response.code}\n{response.text}".encode("utf-8", "replace")
            self.put("responses", name, data)

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
        self._ended.set()
        self._outgoing.put(None)
        if self._stream is not None:
            self._stream.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(10)

    def _connect(self, sandbox: Sandbox) -> None:
        """To a shell script in the sandbox that blocks on a FIFO, which the commands write to."""
        argv = ["bash", "-c", script_text("rpc.sh"), "rpc", TEAM_DIR, str(_MAX_REQUEST_BYTES)]
        stream = sandbox.open_stream(argv)
        if stream.stdout.readline(100) != b"ready\n":
            stream.close()
            raise SandboxError(
                "the script that serves the team's commands did not start in the sandbox"
            )
        self._stream = stream
        if self._ended.is_set():
            stream.close()

    def _listen(self, sandbox: Sandbox) -> None:
        for _ in range(_MAX_STARTS):
            # Fails when the sandbox does not do what it is told, or the pipe was closed at either end.
            with suppress(SandboxError, OSError, ValueError):
                for request in self._requests(sandbox):
                    with self._serving:
                        self._serve(request)
                    if self._flooded():
                        break
            if self._ended.wait(_RESTART_SECONDS):
                return
            if self._stream is not None:
                self._stream.close()
            if self._flooded():
                return
            try:
                if self._stream is not None:
                    self._connect(sandbox)
            except SandboxError as error:
                if isinstance(error, SandboxDead):
                    self.on_lost(error)
                return
            self.on_restart()

    def _requests(self, sandbox: Sandbox) -> Iterator[Request]:
        """Until the sandbox or the stream ends. The same request may come twice."""
        if self._stream is None:
            while not self._ended.wait(POLL_SECONDS):
                yield from _collect(sandbox)
            return
        for _ in range(MAX_REQUESTS):
            line = self._stream.stdout.readline(_MAX_LINE_BYTES)
            if len(line) == _MAX_LINE_BYTES:
                raise SandboxError(
                    "the script that serves the team's commands sent a line without end"
                )
            if not line:
                return
            yield from _parse(line)

    def _flooded(self) -> bool:
        return len(self._known) >= MAX_REQUESTS

    def _serve(self, request: Request) -> bool:
        """False where it was handled before or cannot be. The caller holds `_serving`."""
        key = (request.verb, request.name)
        if (
            key in self._known
            or request.verb not in self._handlers
            or not _NAME.fullmatch(request.name)
        ):
            return False
        self._known.add(key)
        if self._flooded():
            return False
        self.answer(
            request.name, partial(self._handlers[request.verb], request.name, request.content)
        )
        return True

    def _write_all(self, sandbox: Sandbox) -> None:
        while (file := self._outgoing.get()) is not None:
            folder, name, data = file
            # Fails when the agent is ending; what it does not get any more is on record as not delivered.
            with suppress(SandboxError, OSError, ValueError):
                if self._stream is None:
                    sandbox.write_file(f"{TEAM_DIR}/{folder}/{name}", data)
                else:
                    self._stream.stdin.write(f"{folder} {name} {len(data)}\n".encode() + data)
                    self._stream.stdin.flush()


def _collect(sandbox: Sandbox, *, last_call: bool = False) -> list[Request]:
    """Requests without a response, a few at a time. On the last call those still being written get a moment."""
    how = "last" if last_call else ""
    argv = [
        "bash",
        "-c",
        script_text("collect.sh"),
        "collect",
        TEAM_DIR,
        str(_MAX_REQUEST_BYTES),
        how,
    ]
    output = sandbox.run(argv, timeout_seconds=60, output_limit=10 * _MAX_LINE_BYTES).stdout
    return [request for line in output.splitlines() for request in _parse(line)]


def _parse(line: bytes) -> Iterator[Request]:
    """`VERB NAME CONTENT`, the content in base64; nothing where it is no request."""
    verb, name, content = [*line.split(b" "), b"", b""][:3]
    with suppress(ValueError):
        yield Request(verb.decode().strip(), name.decode().strip(), base64.b64decode(content))


def script_text(name: str) -> str:
    """A script or command that runs in agents' sandboxes."""
    return (files("cooperbench.team") / "sandbox" / name).read_text()
