"""Calls from commands in one agent's sandbox to the harness.

A call is a file in the sandbox, and so is its response. Other modules register handlers for the
verbs `send`, `read`, `push` and `tool`; `sync` is answered once all earlier calls are handled.
Calls arrive over a stream from the sandbox, or by polling if the backend has no streams.
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
from typing import NamedTuple, TypeAlias

from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import Stream
from cooperbench.team.mailbox import MAX_MESSAGE_BYTES

TEAM_DIR = "/cooperbench/team"
"""Folder of an agent's calls, in a sandbox of its own."""
TEAM_DIR_VARIABLE = "COOPERBENCH_TEAM"
"""Variable of commands that names another folder, in a sandbox that several agents share."""
BIN_DIR = "/cooperbench/bin"
POLL_SECONDS = 0.25
MAX_CALLS = 200_000
"""Maximum number of calls per agent; later ones are ignored to protect the harness's memory."""
LAST_CALL_SECONDS = 5.0
"""Maximum time spent on the last calls of an agent that has finished."""
_MAX_CALL_BYTES = MAX_MESSAGE_BYTES + 1000
"""Longer calls are truncated to this size; the message in them is then refused as too long."""
_MAX_LINE_BYTES = _MAX_CALL_BYTES * 4 // 3 + 1000
_MAX_STARTS = 20
"""Maximum number of restarts after a failure, or after the agent has killed the script."""
_RESTART_SECONDS = 0.1
_NAME = re.compile(r"[A-Za-z0-9]{1,64}")


class Call(NamedTuple):
    """A call from a command in the sandbox."""

    verb: str
    name: str
    """Name of the file of this call, and of its response."""
    content: bytes


class Response(NamedTuple):
    """The answer to a call, or to a tool call of an agent."""

    code: int
    """Exit code of the calling command; 0 for success."""
    text: str = ""
    """Output of the command, or data that it continues with."""


Handler: TypeAlias = Callable[[str, bytes], Response | None]
"""Handles a call, given its name and content; None means that the response comes later."""


class SandboxRpc:
    """The calls of one agent.

    Register handlers, `start` once the sandbox is open, `close` when the agent is done.
    """

    def __init__(self, agent_id: str, teammates: Sequence[str], team_dir: str = TEAM_DIR) -> None:
        self.agent_id = agent_id
        self.team_dir = team_dir
        """Folder of the agent's calls and their responses."""
        self.teammates = tuple(teammates)
        self.on_restart: Callable[[], None] = lambda: None
        """Called after the script in the sandbox was restarted: files being written may be lost."""
        self.on_lost: Callable[[SandboxDead], None] = lambda _: None
        """Called when the sandbox has ended before the agent was done."""
        self._handlers: dict[str, Handler] = {"sync": lambda _name, _content: Response(0)}
        self._commands: list[str] = []
        self._sandbox: Sandbox | None = None
        self._stream: Stream | None = None
        """The connection to the script in the sandbox; None if calls are polled."""
        self._outgoing: queue.SimpleQueue[tuple[str, str, bytes] | None] = queue.SimpleQueue()
        self._seen: set[tuple[str, str]] = set()
        self._serving = threading.Lock()
        """Held while a call is handled: one call at a time, each call once."""
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def handle(self, verb: str, handler: Handler, *commands: str) -> None:
        """Register a handler for a verb, and the commands (files in team/sandbox) that use it.

        Handlers are called one at a time.
        """
        self._handlers[verb] = handler
        self._commands += commands

    def start(self, sandbox: Sandbox, *, streams: bool) -> None:
        """Install the commands in the sandbox and serve their calls."""
        self._sandbox = sandbox
        scripts = ["coop" if name.startswith("coop-") else name for name in self._commands]
        for name in dict.fromkeys(("team.sh", *scripts)):
            sandbox.write_file(f"{BIN_DIR}/{name}", script_text(name).encode(), 0o755)
        teammates = "".join(f"{name}\n" for name in self.teammates)
        sandbox.write_file(f"{self.team_dir}/teammates", teammates.encode())
        sandbox.write_file(f"{self.team_dir}/agent", f"{self.agent_id}\n".encode())
        transport = "streams" if streams else "polled"
        argv = _script_argv("install.sh", self.team_dir, transport, BIN_DIR, *self._commands)
        sandbox.run_checked(argv, "the team's commands could not be put into the sandbox", 60)
        if streams:
            self._connect(sandbox)
        # Files are written by a thread of their own: an agent that blocks it blocks no other agent.
        for target in (self._listen, self._write_files):
            thread = threading.Thread(
                target=target, args=(sandbox,), name=f"rpc-{self.agent_id}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def put(self, folder: str, name: str, data: bytes) -> None:
        """Queue a file for the team folder in the sandbox; files are written in order."""
        if not self._ended.is_set():
            self._outgoing.put((folder, name, data))

    def answer(self, name: str, work: Callable[[], Response | None]) -> None:
        """Respond to a call with the result of `work`, unless that is None."""
        try:
            response = work()
        except Exception as error:  # one failing call must not end all later ones
            response = Response(1, f"the harness failed: {error}")
        if response is not None:
            data = f"{response.code}\n{response.text}".encode("utf-8", "replace")
            self.put("responses", name, data)

    def last_call(self, *verbs: str) -> None:
        """Handle the last calls of a finished agent that have these verbs."""
        sandbox = self._sandbox
        if sandbox is None or self._ended.is_set():
            return
        deadline = time.monotonic() + LAST_CALL_SECONDS
        # A dead sandbox has no more calls. Collecting the patch will report it.
        with suppress(SandboxError):
            while not self._is_flooded() and time.monotonic() < deadline:
                calls = [
                    call for call in self._collect(sandbox, last_call=True) if call.verb in verbs
                ]
                # Do not wait for a slow call such as a push.
                if not self._serving.acquire(timeout=LAST_CALL_SECONDS):
                    return
                try:
                    served = [self._serve(call) for call in calls]
                finally:
                    self._serving.release()
                if not any(served):
                    return

    def close(self) -> None:
        """End all threads. Calling it again does nothing."""
        self._ended.set()
        self._outgoing.put(None)
        if self._stream is not None:
            self._stream.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(10)

    def _connect(self, sandbox: Sandbox) -> None:
        """Start the script in the sandbox that reads the commands' calls from a FIFO."""
        argv = _script_argv("rpc.sh", self.team_dir, str(_MAX_CALL_BYTES))
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
        """Serve calls until the agent is done, reconnecting after failures."""
        for _ in range(_MAX_STARTS):
            self._serve_until_failure(sandbox)
            if self._ended.wait(_RESTART_SECONDS):
                return
            if self._stream is not None:
                self._stream.close()
            if self._is_flooded():
                return
            try:
                if self._stream is not None:
                    self._connect(sandbox)
            except SandboxDead as error:
                self.on_lost(error)
                return
            except SandboxError:
                return
            self.on_restart()

    def _serve_until_failure(self, sandbox: Sandbox) -> None:
        # The sandbox may refuse commands, and either end may close the pipe.
        with suppress(SandboxError, OSError, ValueError):
            for call in self._calls(sandbox):
                with self._serving:
                    self._serve(call)
                if self._is_flooded():
                    return

    def _calls(self, sandbox: Sandbox) -> Iterator[Call]:
        """Yield calls until the sandbox or the stream ends. The same call may come twice."""
        if self._stream is None:
            while not self._ended.wait(POLL_SECONDS):
                yield from self._collect(sandbox)
            return
        for _ in range(MAX_CALLS):
            line = self._stream.stdout.readline(_MAX_LINE_BYTES)
            if len(line) == _MAX_LINE_BYTES:
                raise SandboxError(
                    "the script that serves the team's commands sent a line without end"
                )
            if not line:
                return
            if (call := _parse(line)) is not None:
                yield call

    def _collect(self, sandbox: Sandbox, *, last_call: bool = False) -> list[Call]:
        """Return some calls that have no response yet.

        On the last call, the script waits a moment for files that are still being written.
        """
        mode = "last" if last_call else ""
        argv = _script_argv("collect.sh", self.team_dir, str(_MAX_CALL_BYTES), mode)
        output = sandbox.run(argv, timeout_seconds=60, output_limit=10 * _MAX_LINE_BYTES).stdout
        calls = [_parse(line) for line in output.splitlines()]
        return [call for call in calls if call is not None]

    def _is_flooded(self) -> bool:
        return len(self._seen) >= MAX_CALLS

    def _serve(self, call: Call) -> bool:
        """Handle a call; return False if it is invalid or was handled before.

        The caller holds `_serving`.
        """
        key = (call.verb, call.name)
        is_valid = call.verb in self._handlers and _NAME.fullmatch(call.name)
        if not is_valid or key in self._seen:
            return False
        self._seen.add(key)
        if self._is_flooded():
            return False
        self.answer(call.name, partial(self._handlers[call.verb], call.name, call.content))
        return True

    def _write_files(self, sandbox: Sandbox) -> None:
        """Write queued files to the sandbox until `close`."""
        while (file := self._outgoing.get()) is not None:
            folder, name, data = file
            # Fails when the agent is ending; messages in it are then recorded as not delivered.
            with suppress(SandboxError, OSError, ValueError):
                if self._stream is None:
                    sandbox.write_file(f"{self.team_dir}/{folder}/{name}", data)
                else:
                    self._stream.stdin.write(f"{folder} {name} {len(data)}\n".encode() + data)
                    self._stream.stdin.flush()


def _parse(line: bytes) -> Call | None:
    """Parse a line `VERB NAME [CONTENT]`, with the content in base64; None if it is not a call."""
    verb, _, name_and_content = line.partition(b" ")
    name, _, content = name_and_content.partition(b" ")
    try:
        return Call(verb.decode().strip(), name.decode().strip(), base64.b64decode(content))
    except ValueError:
        return None


def _script_argv(name: str, *arguments: str) -> list[str]:
    """Return the argv that runs a script of team/sandbox with bash."""
    return ["bash", "-c", script_text(name), name.removesuffix(".sh"), *arguments]


def script_text(name: str) -> str:
    """Return the text of a script or command that runs in agents' sandboxes."""
    return (files("cooperbench.team") / "sandbox" / name).read_text()
