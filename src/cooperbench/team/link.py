"""The team's line into one agent's sandbox: commands there ask for something, the harness does it and gives a receipt.

The link knows nothing of messages or git: those who do register a handler for their verb (`send`, `read`, `push`). Its
own verb is `sync`: the receipt comes after everything that was asked for before has been done and sent.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.team.courier import PollingCourier, StreamCourier, collect, script_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.team.courier import Courier, Event

TEAM_DIR = "/cooperbench/team"
BIN_DIR = "/cooperbench/bin"
MOST_REQUESTS = 200_000
"""Of one agent; one that floods is not listened to any more, instead of filling the harness's memory."""
LAST_CALL_SECONDS = 5.0
"""How long an agent that is done can keep us with what it still asks for."""
_MOST_STARTS = 20
_PAUSE_SECONDS = 0.1
_NAME = re.compile(r"[A-Za-z0-9]{1,64}")
_INSTALL = """set -e
cd "$1"
mkdir -p send inbox receipts read sync push finished drafts
if [ "$2" = streams ]; then [ -p bell ] || mkfifo bell; else : >polled; fi
bin=$3; shift 3
for name; do
    command -v "$name" >/dev/null || ln -sf "$bin/$name" "/usr/local/bin/$name"
    command -v "$name" >/dev/null
done"""


class Receipt(NamedTuple):
    """What became of a request."""

    code: int
    """0: done; else the exit code of the command that asked."""
    text: str = ""
    """For the command: what it says to the agent, or goes on with."""


class TeamLink:
    """Of one agent. Register handlers, `start` once the sandbox is there, `close` when the agent is done."""

    def __init__(self, agent_id: str, colleagues: Sequence[str]) -> None:
        self.agent_id = agent_id
        self.colleagues = tuple(colleagues)
        self._handlers: dict[str, Callable[[str, bytes], Receipt | None]] = {
            "sync": lambda _name, _content: Receipt(0)
        }
        self._commands: list[str] = []
        self._on_restart: Callable[[], None] = lambda: None
        self._on_lost: Callable[[SandboxDead], None] = lambda _: None
        self._sandbox: RichSandbox | None = None
        self._streams = False
        self._courier: Courier | None = None
        self._lock = threading.Lock()
        self._known: set[tuple[str, str]] = set()
        self._serving = threading.Lock()
        """Held while a request is dealt with: one at a time, each once, in whatever way it was heard."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def handle(self, verb: str, handler: Callable[[str, bytes], Receipt | None]) -> None:
        """`handler(name, content)`, in a thread of the link's; one request at a time, each once."""
        self._handlers[verb] = handler

    def offer(self, *commands: str) -> None:
        """Commands (files in team/sandbox) that the agent is to have."""
        self._commands += commands

    def on_restart(self, repeat: Callable[[], None]) -> None:
        """Called when the courier was killed and another one started: files on their way may be lost."""
        self._on_restart = repeat

    def on_lost(self, tell: Callable[[SandboxDead], None]) -> None:
        """Called when the sandbox has ended though the agent is not done."""
        self._on_lost = tell

    def start(self, sandbox: RichSandbox, *, streams: bool) -> None:
        """Put the commands into the sandbox and listen to them."""
        self._sandbox, self._streams = sandbox, streams
        for name in ("team.sh", *self._commands):
            sandbox.write_file(f"{BIN_DIR}/{name}", script_text(name).encode(), 0o755)
        sandbox.write_file(
            f"{TEAM_DIR}/colleagues", "".join(f"{name}\n" for name in self.colleagues).encode()
        )
        sandbox.write_file(f"{TEAM_DIR}/agent", f"{self.agent_id}\n".encode())
        how = "streams" if streams else "polled"
        argv = ["bash", "-c", _INSTALL, "install", TEAM_DIR, how, BIN_DIR, *self._commands]
        done = sandbox.run(argv, timeout_seconds=60)
        if done.returncode != 0:
            reason = done.stderr_read().strip()[:300]
            raise SandboxError(f"the team's commands could not be put into the sandbox: {reason}")
        self._open_courier()
        self._thread = threading.Thread(target=self._listen, name=f"link-{self.agent_id}", daemon=True)
        self._thread.start()

    def put(self, folder: str, name: str, data: bytes) -> None:
        """Make a file in the team folder; nothing happens once the link has ended."""
        courier = self._courier
        if courier is None or self._ended.is_set():
            return
        try:
            courier.put(folder, name, data)
        except (SandboxError, OSError, ValueError):
            # The agent is ending; what it does not get any more stays on record as not delivered.
            return

    def last_call(self, *verbs: str) -> None:
        """The agent is done: do what it has asked for of this kind and what was not heard yet."""
        sandbox = self._sandbox
        if sandbox is None or self._ended.is_set():
            return
        left, deadline = True, time.monotonic() + LAST_CALL_SECONDS
        # A sandbox that is gone has nothing more to say, which whoever takes the work from it will notice.
        with suppress(SandboxError, OSError, ValueError):
            while left and not self._flooded() and time.monotonic() < deadline:
                left = False
                events = [
                    event for event in collect(sandbox, TEAM_DIR, last_call=True) if event.verb in verbs
                ]
                # Something that takes its time, like a push, is no reason to keep the agent.
                if not self._serving.acquire(timeout=LAST_CALL_SECONDS):
                    return
                try:
                    for event in events:
                        left = self._serve(event) or left
                finally:
                    self._serving.release()

    def close(self) -> None:
        """Calling it again does nothing; no thread is left when it returns."""
        with self._lock:
            self._ended.set()
            courier = self._courier
        if courier is not None:
            courier.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10)

    def _open_courier(self) -> bool:
        assert self._sandbox is not None
        kind = StreamCourier if self._streams else PollingCourier
        courier: Courier = kind(self._sandbox, TEAM_DIR)
        with self._lock:
            self._courier = courier
            if not self._ended.is_set():
                return True
        courier.close()
        return False

    def _listen(self) -> None:
        for _ in range(_MOST_STARTS):
            # The sandbox is gone, or the courier's pipe was closed under us or by it.
            with suppress(SandboxError, OSError, ValueError):
                self._hear()
            if self._ended.wait(_PAUSE_SECONDS):
                return
            assert self._courier is not None
            self._courier.close()
            if not self._streams or self._flooded():
                return
            try:
                if not self._open_courier():
                    return
            except SandboxDead as error:
                if not self._ended.is_set():
                    self._on_lost(error)
                return
            except SandboxError:
                return
            self._on_restart()

    def _hear(self) -> None:
        assert self._courier is not None
        for event in self._courier.events():
            with self._serving:
                self._serve(event)
            if self._flooded():
                return

    def _flooded(self) -> bool:
        return len(self._known) >= MOST_REQUESTS

    def _serve(self, event: Event) -> bool:
        """Do what is asked for; False where it was done before or cannot be. For who holds `_serving`."""
        request = (event.verb, event.name)
        if request in self._known or event.verb not in self._handlers or not _NAME.fullmatch(event.name):
            return False
        self._known.add(request)
        if self._flooded():
            return False
        receipt = self._handled(event)
        if receipt is not None:
            self.put("receipts", event.name, f"{receipt.code}\n{receipt.text}".encode("utf-8", "replace"))
        return True

    def _handled(self, event: Event) -> Receipt | None:
        try:
            return self._handlers[event.verb](event.name, event.content)
        except Exception as error:  # one request that fails must not cost the agent all that follow
            return Receipt(1, f"the harness could not do it: {error}")
