"""One agent's letterbox: what came in and was not shown yet, and the courier between its sandbox and the mailbox.

The agent's `send_message` drops a file; the courier takes it, the harness stamps sender, time and order. What comes in
is put into the sandbox as files at once (for `read_messages` and `--wait`) and waits here to be shown to the agent
before its next step; each message is shown once, by whichever way comes first.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from cooperbench.errors import SandboxError
from cooperbench.storage import utc_now
from cooperbench.team.courier import PollingCourier, StreamCourier
from cooperbench.team.mailbox import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cooperbench.eval.backends.base import RichSandbox
    from cooperbench.models import Message
    from cooperbench.team.courier import Courier
    from cooperbench.team.mailbox import Mailbox, Posted

TEAM_DIR = "/cooperbench/team"
BIN_DIR = "/cooperbench/bin"
EVERYBODY = "*"
_INSTALL = """set -e
mkdir -p "$1/outbox" "$1/inbox" "$1/receipts" "$1/read" "$1/finished" "$1/drafts"
[ -p "$1/bell" ] || mkfifo "$1/bell"
for name in send_message read_messages; do
    command -v "$name" >/dev/null || ln -sf "$2/$name" "/usr/local/bin/$name"
    command -v "$name" >/dev/null
done"""


@dataclass(frozen=True)
class Delivery:
    """When and how a message was shown to its recipient."""

    delivered_at: str
    step: int
    how: str
    """`context`: as a user message; `command`: by `read_messages` or `send_message --wait`."""


class PostBox:
    """Of one agent. `start` once its sandbox is there, `close` when the agent is done."""

    def __init__(self, agent_id: str, colleagues: Sequence[str], mailbox: Mailbox) -> None:
        self.agent_id = agent_id
        self.colleagues = tuple(colleagues)
        self._mailbox = mailbox
        self._pending: dict[int, Message] = {}
        self._deliveries: dict[int, Delivery] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._courier: Courier | None = None
        self._threads: list[threading.Thread] = []
        self.on_sent: Callable[[Message], None] = lambda _: None
        self.step = 0
        """How many steps the agent has taken; kept by its session."""

    def start(self, sandbox: RichSandbox, *, streams: bool) -> None:
        """Put the commands into the sandbox and begin to carry messages both ways."""
        install_commands(sandbox, self.colleagues)
        self._courier = StreamCourier(sandbox, TEAM_DIR) if streams else PollingCourier(sandbox, TEAM_DIR)
        for name, work in (("up", self._carry_up), ("down", self._carry_down)):
            thread = threading.Thread(target=work, name=f"courier-{self.agent_id}-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def incoming(self) -> list[Message]:
        """What has come and was not shown yet, in order; from now on it counts as shown."""
        with self._changed:
            fresh = [self._pending.pop(sequence) for sequence in sorted(self._pending)]
            for message in fresh:
                self._deliveries[message.sequence] = Delivery(utc_now(), self.step, "context")
        for message in fresh:
            self._put("read", _file_name(message), b"")
        return fresh

    def wait(self, timeout_seconds: float) -> bool:
        """Until there is something to show; False when the time is up or the box was closed."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._pending and not self._closed:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)
            return bool(self._pending)

    def delivery(self, sequence: int) -> Delivery | None:
        with self._changed:
            return self._deliveries.get(sequence)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._courier is not None:
            self._courier.close()

    def _carry_up(self) -> None:
        assert self._courier is not None
        try:
            for verb, name, content in self._courier.events():
                if verb == "send":
                    code, text = self._send(content)
                    self._put("receipts", name, f"{code}\n{text}".encode())
                elif verb == "read" and name.isdigit():
                    self._shown_by_command(int(name))
        except (SandboxError, OSError, ValueError):
            # The sandbox is gone, or its pipe was closed under us: nothing more can come.
            return

    def _send(self, content: bytes) -> tuple[int, str]:
        """The receipt: an exit code for `send_message` and what it says where that is not 0."""
        first, _, rest = content.partition(b"\n")
        recipient = first.decode("utf-8", "replace")
        if len(rest) > MAX_MESSAGE_BYTES:
            return 2, f"the text is too long: {len(rest)} bytes, at most {MAX_MESSAGE_BYTES}"
        recipients = self.colleagues if recipient == EVERYBODY else (recipient,)
        if not set(recipients) <= set(self.colleagues):
            return 2, f"no colleague {recipient!r}"
        text = rest.decode("utf-8", "replace").removesuffix("\n")
        posted = [self._mailbox.post(self.agent_id, name, text, self.step) for name in recipients]
        for one in posted:
            self.on_sent(one.message)
        return _receipt(posted)

    def _shown_by_command(self, sequence: int) -> None:
        with self._changed:
            if self._pending.pop(sequence, None) is not None:
                self._deliveries[sequence] = Delivery(utc_now(), self.step, "command")

    def _carry_down(self) -> None:
        seen = 0
        told: set[str] = set()
        while not self._closed:
            fresh = self._mailbox.receive(self.agent_id, seen, timeout_seconds=0.5)
            for message in fresh:
                seen = message.sequence
                with self._changed:
                    self._pending[message.sequence] = message
                    self._changed.notify_all()
                self._put("inbox", _file_name(message), f"{message.sender}\n{message.text}\n".encode())
            for colleague in self.colleagues:
                if colleague not in told and self._mailbox.is_finished(colleague):
                    told.add(colleague)
                    self._put("finished", colleague, b"")

    def _put(self, folder: str, name: str, data: bytes) -> None:
        if self._courier is None or self._closed:
            return
        try:
            self._courier.put(folder, name, data)
        except (SandboxError, OSError, ValueError):
            # The agent is ending; the message stays in the mailbox and on record as not delivered.
            return


def _receipt(posted: Sequence[Posted]) -> tuple[int, str]:
    gone = [one.message.recipient for one in posted if one.recipient_finished]
    if len(gone) == len(posted):
        return 3, f"{', '.join(gone)} has finished and will not read this"
    return 0, ""


def _file_name(message: Message) -> str:
    return f"{message.sequence:08d}"


def install_commands(sandbox: RichSandbox, colleagues: Sequence[str]) -> None:
    """`send_message` and `read_messages` as real commands, and the folders that they use."""
    home = files("cooperbench.team") / "sandbox"
    for name in ("send_message", "read_messages"):
        sandbox.write_file(f"{BIN_DIR}/{name}", (home / name).read_bytes(), 0o755)
    sandbox.write_file(f"{TEAM_DIR}/colleagues", "\n".join(colleagues).encode() + b"\n")
    done = sandbox.run(["bash", "-c", _INSTALL, "install", TEAM_DIR, BIN_DIR], timeout_seconds=60)
    if done.returncode != 0:
        raise SandboxError(
            f"send_message could not be put into the sandbox: {done.stderr_read().strip()[:300]}"
        )
