"""One agent's letterbox: what came in and was not shown yet, and what the agent sends.

The agent's `send_message` asks over the link; the harness stamps sender, time and order. What comes in is put into the
sandbox as files at once (for `read_messages` and `--wait`) and waits here to be shown to the agent before its next
step; each message is shown once, by whichever way comes first.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.errors import InfraError
from cooperbench.storage import utc_now
from cooperbench.team.link import Receipt
from cooperbench.team.mailbox import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cooperbench.models import Message
    from cooperbench.team.link import TeamLink
    from cooperbench.team.mailbox import Mailbox, Posted

EVERYBODY = "*"
MAX_SENT_BYTES = 64_000_000
"""Of one agent in all: one that floods is told so, instead of filling the harness's memory."""


@dataclass(frozen=True)
class Delivery:
    """When and how a message was shown to its recipient."""

    delivered_at: str
    step: int
    how: str
    """`context`: as a user message; `command`: by `read_messages` or `send_message --wait`."""


class PostBox:
    """Of one agent. Made before its link is started; `start` after that, `close` when the agent is done."""

    def __init__(self, link: TeamLink, mailbox: Mailbox) -> None:
        self.agent_id = link.agent_id
        self.colleagues = link.colleagues
        self._link = link
        self._mailbox = mailbox
        self._pending: dict[int, Message] = {}
        self._deliveries: dict[int, Delivery] = {}
        self._finished: set[str] = set()
        self._failure: InfraError | None = None
        self._sent_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.on_sent: Callable[[Message], None] = lambda _: None
        self.step = 0
        """How many steps the agent has taken; kept by its session."""
        link.offer("send_message", "read_messages")
        link.handle("send", self._send)
        link.handle("read", self._shown_by_command)
        link.on_restart(self._put_again)

    def start(self) -> None:
        """Begin to carry what comes in."""
        self._thread = threading.Thread(target=self._carry_down, name=f"postbox-{self.agent_id}", daemon=True)
        self._thread.start()

    def incoming(self) -> list[Message]:
        """What has come and was not shown yet, in order; from now on it counts as shown."""
        with self._changed:
            self._check()
            fresh = [self._pending.pop(sequence) for sequence in sorted(self._pending)]
            for message in fresh:
                self._deliveries[message.sequence] = Delivery(utc_now(), self.step, "context")
        for message in fresh:
            self._link.put("read", _file_name(message), b"")
        return fresh

    def wait(self, timeout_seconds: float) -> bool:
        """Until there is something to show; False when the time is up or the box was closed."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._pending and not self._closed:
                self._check()
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)
            return bool(self._pending)

    def delivery(self, sequence: int) -> Delivery | None:
        with self._changed:
            return self._deliveries.get(sequence)

    def close(self) -> None:
        """What has not been shown by now is on record as not delivered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Until its thread has ended, which it does soon after `close`, at once if the mailbox is closed too."""
        if self._thread is not None:
            self._thread.join(10)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: InfraError) -> None:
        """The mailbox is of no more use: the agent's next look into the box says so."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _send(self, _name: str, content: bytes) -> Receipt:
        first, _, rest = content.partition(b"\n")
        recipient = first.decode("utf-8", "replace")
        recipients = self.colleagues if recipient == EVERYBODY else (recipient,)
        if not set(recipients) <= set(self.colleagues):
            return Receipt(2, f"no colleague {recipient!r}")
        if len(rest) > MAX_MESSAGE_BYTES:
            return Receipt(2, f"the text is too long: at most {MAX_MESSAGE_BYTES} bytes")
        if self._sent_bytes + len(rest) > MAX_SENT_BYTES:
            return Receipt(2, f"you have sent enough: at most {MAX_SENT_BYTES} bytes in all")
        self._sent_bytes += len(rest)
        text = rest.decode("utf-8", "replace").removesuffix("\n")
        try:
            posted = [self._mailbox.post(self.agent_id, name, text, self.step) for name in recipients]
        except InfraError as error:
            self._fail(error)
            raise
        for one in posted:
            self.on_sent(one.message)
        return _receipt(posted)

    def _shown_by_command(self, name: str, _content: bytes) -> None:
        if not name.isdigit():
            return
        with self._changed:
            if self._pending.pop(int(name), None) is not None:
                self._deliveries[int(name)] = Delivery(utc_now(), self.step, "command")

    def _carry_down(self) -> None:
        try:
            seen = 0
            while not self._closed:
                # Asked before the messages: those that a colleague sent before it finished go in front.
                gone = [name for name in self.colleagues if self._mailbox.is_finished(name)]
                for message in self._mailbox.receive(self.agent_id, seen, timeout_seconds=0.5):
                    seen = message.sequence
                    self._take_in(message)
                for colleague in gone:
                    if colleague not in self._finished:
                        self._finished.add(colleague)
                        self._link.put("finished", colleague, b"")
        except InfraError as error:
            self._fail(error)

    def _take_in(self, message: Message) -> None:
        with self._changed:
            if self._closed:
                return
            self._pending[message.sequence] = message
            self._changed.notify_all()
        self._put_into_inbox(message)

    def _put_into_inbox(self, message: Message) -> None:
        letter = f"{message.sender}\n{message.text}\n".encode("utf-8", "replace")
        self._link.put("inbox", _file_name(message), letter)

    def _put_again(self) -> None:
        with self._changed:
            pending = list(self._pending.values())
        for message in pending:
            self._put_into_inbox(message)
        for colleague in list(self._finished):
            self._link.put("finished", colleague, b"")


def _receipt(posted: Sequence[Posted]) -> Receipt:
    """With the number of the message, after which answers come."""
    gone = [one.message.recipient for one in posted if one.recipient_finished]
    if len(gone) == len(posted):
        return Receipt(3, f"{', '.join(gone)} has finished and will not read this")
    note = f"send_message: {', '.join(gone)} has finished and will not read this\n" if gone else ""
    return Receipt(0, f"{posted[0].message.sequence}\n{note}")


def _file_name(message: Message) -> str:
    return f"{message.sequence:08d}"
