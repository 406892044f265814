"""One agent's inbox: messages that came and were not shown yet, and what the agent sends.

An incoming message becomes a file in the sandbox (for `read_messages`) and waits here for the agent's next step; it is
shown once, by the way that comes first. What the team's tools have to say comes as one message from `team`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from cooperbench.errors import InfraError
from cooperbench.models import Message
from cooperbench.storage import utc_now
from cooperbench.team.mailbox import MAX_MESSAGE_BYTES, Mailbox
from cooperbench.team.sandbox_rpc import TEAM_DIR, Response, SandboxRpc
from cooperbench.text import head_and_tail, plural

EVERYBODY = "*"
MAX_SENT_MESSAGES = 1_000
"""Messages of one agent in all: the sender is told so, instead of filling disks and contexts."""
MAX_SENT_BYTES = 32_000_000
"""The same, in bytes."""
MAX_MESSAGE_CHARACTERS = 10_000
"""Characters of one message that are put into a context: half from its beginning, half from its end."""
MAX_BATCH_CHARACTERS = 40_000
"""Characters that are put into a context before one step. What is left over waits for the next."""
FROM_TEAM = "team"
"""The sender of what the team's tools have to say; no agent has this name."""
_FRAME = 100
"""Characters that every message costs besides its text, so that a thousand short ones are not shown at once."""


class Delivery(NamedTuple):
    """When and how a message was shown to its recipient, as it stands in conversation.json."""

    delivered_at: str | None = None
    """None: never."""
    delivered_step: int | None = None
    delivered_by: str | None = None
    """`context`: as a user message; `command`: by `read_messages` or `send_message --wait`."""


class Inbox:
    """Of one agent. Made before its RPC is started; `close` when the agent is done."""

    def __init__(
        self,
        rpc: SandboxRpc,
        mailbox: Mailbox | None,
        on_sent: Callable[[Message], None] = lambda _: None,
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        """`synchronize` is called before something is sent, and before it is said what is new."""
        self.agent_id = rpc.agent_id
        self.teammates = rpc.teammates
        self.has_messages = mailbox is not None
        """False: only the team's tools speak here."""
        self._rpc = rpc
        self._mailbox = mailbox
        self._on_sent = on_sent
        self._synchronize = synchronize
        self._pending: dict[int, Message] = {}
        self._updates: dict[str, str] = {}
        self._deliveries: dict[int, Delivery] = {}
        self._failure: InfraError | None = None
        self._sent = 0
        self._sent_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self.step = 0
        """How many steps the agent has taken."""
        self.sent_in_step: list[tuple[str, str]] = []
        """What was sent in the current step: to whom (or `all`), and the text."""
        rpc.on_restart = self._write_files_again
        rpc.on_lost = self._fail
        if mailbox is not None:
            rpc.handle("send", self._send, "send_message")
            rpc.handle("read", self._shown_by_command, "read_messages")
            mailbox.subscribe(self.agent_id, self._take_in, self._write_finished)

    def update(self, subject: str, text: str) -> None:
        """Something to be shown before the next step; a later one about the same takes its place."""
        with self._changed:
            self._updates.pop(subject, None)
            self._updates[subject] = text
            self._changed.notify_all()

    def begin_step(self, number: int) -> None:
        self.step = number
        self.sent_in_step = []

    def incoming(self, most: int | None = None) -> list[Message]:
        """What has come and was not shown yet, in order and cut to size; from now on it counts as shown."""
        self._synchronize()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            shown: list[Message] = []
            room = MAX_BATCH_CHARACTERS
            for sequence in sorted(self._pending)[:most]:
                message = _cut_to_size(self._pending[sequence])
                room -= len(message.text) + _FRAME
                if shown and room < 0:
                    break
                shown.append(message)
                del self._pending[sequence]
                self._deliveries[sequence] = Delivery(utc_now(), self.step, "context")
            if self._pending and shown and most is None:
                waiting = plural(len(self._pending), "more message")
                note = f"\n[{waiting} will be shown to you before your next step; `read_messages` shows them now]"
                shown[-1] = replace(shown[-1], text=shown[-1].text + note)
            updates, self._updates = self._updates, {}
        for message in shown:
            self._rpc.put("read", _file_name(message), b"")
        if updates:
            # One message, without a place among those of the conversation.
            text = head_and_tail("\n".join(updates.values()), MAX_MESSAGE_CHARACTERS)
            shown.append(Message(0, FROM_TEAM, self.agent_id, text, utc_now()))
        return shown

    def wait(self, timeout_seconds: float, count: int | None = None) -> bool:
        """Until there is something to show (or so many messages); False when the time is up or the inbox was closed."""
        with self._changed:
            came = self._has_news if count is None else lambda: len(self._pending) >= count
            self._changed.wait_for(lambda: came() or self._closed or self._failure, timeout_seconds)
            if self._failure is not None and not self._has_news():
                raise self._failure
            return self._has_news()

    def _has_news(self) -> bool:
        return bool(self._pending or self._updates)

    def delivery(self, sequence: int) -> Delivery:
        with self._changed:
            return self._deliveries.get(sequence, Delivery())

    def close(self) -> None:
        """What has not been shown by now is on record as not delivered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fail(self, error: InfraError) -> None:
        """Mailbox or sandbox have failed: the agent's next or current look into the inbox raises this."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def send(self, recipient: str, text: str) -> Response:
        """On behalf of the agent, to a teammate or to `EVERYBODY`; says which number the message has."""
        recipients = self.teammates if recipient == EVERYBODY else (recipient,)
        size = len(text.encode("utf-8", "replace"))
        if not set(recipients) <= set(self.teammates):
            return Response(2, f"no teammate {recipient!r}")
        if not text.strip():
            return Response(2, "the text is empty")
        if size > MAX_MESSAGE_BYTES:
            return Response(2, f"the text is too long: at most {MAX_MESSAGE_BYTES} bytes")
        with self._changed:
            sent, sent_bytes = (
                self._sent + len(recipients),
                self._sent_bytes + size * len(recipients),
            )
            if sent > MAX_SENT_MESSAGES or sent_bytes > MAX_SENT_BYTES:
                limits = f"at most {MAX_SENT_MESSAGES} messages and {MAX_SENT_BYTES} bytes"
                return Response(2, f"you have sent enough: {limits}")
            self._sent, self._sent_bytes = sent, sent_bytes
        self._synchronize()
        try:
            assert self._mailbox is not None
            posted = [
                self._mailbox.post(self.agent_id, name, text, self.step) for name in recipients
            ]
        except InfraError as error:
            self._fail(error)
            raise
        self.sent_in_step.append(("all" if recipient == EVERYBODY else recipient, text))
        for message in posted:
            self._on_sent(message)
        gone = [name for name in recipients if name in self._mailbox.finished]
        said = f"{', '.join(gone)} has finished and will not read this"
        if len(gone) == len(recipients):
            return Response(3, said)
        return Response(0, f"{posted[0].sequence}\n" + (f"send_message: {said}\n" if gone else ""))

    def _send(self, _name: str, content: bytes) -> Response:
        recipient, _, text = content.decode("utf-8", "replace").partition("\n")
        return self.send(recipient, text.removesuffix("\n"))

    def _shown_by_command(self, name: str, _content: bytes) -> None:
        with self._changed:
            if name.isdigit() and self._pending.pop(int(name), None) is not None:
                self._deliveries[int(name)] = Delivery(utc_now(), self.step, "command")

    def _take_in(self, message: Message) -> None:
        with self._changed:
            if self._closed:
                return
            self._pending[message.sequence] = message
            self._changed.notify_all()
        self._write_message(message)

    def _write_message(self, message: Message) -> None:
        data = f"{message.sender}\n{message.text}\n".encode("utf-8", "replace")
        self._rpc.put("inbox", _file_name(message), data)

    def _write_finished(self, teammate: str) -> None:
        self._rpc.put("finished", teammate, b"")

    def _write_files_again(self) -> None:
        with self._changed:
            pending = list(self._pending.values())
        for message in pending:
            self._write_message(message)
        for teammate in self._mailbox.finished if self._mailbox is not None else ():
            self._write_finished(teammate)


def _file_name(message: Message) -> str:
    return f"{message.sequence:08d}"


def _cut_to_size(message: Message) -> Message:
    """As it is put into a context."""
    whole = f"{TEAM_DIR}/inbox/{_file_name(message)}"
    note = f"\n[… {{cut}} of {len(message.text)} characters left out; the whole text is in {whole} in your sandbox …]\n"
    return replace(message, text=head_and_tail(message.text, MAX_MESSAGE_CHARACTERS, note))
