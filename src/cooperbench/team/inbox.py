"""The inbox of one agent: incoming messages that were not shown yet, and messages it sends.

An incoming message becomes a file in the sandbox (for `read_messages`) and waits here for the
agent's next step. It is shown once, by whichever comes first. Notifications of the team's tools
are shown as one message from `team`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from cooperbench.errors import InfraError
from cooperbench.models import Message
from cooperbench.storage import utc_now
from cooperbench.team.channel import Channel
from cooperbench.team.mailbox import MAX_MESSAGE_BYTES, Mailbox
from cooperbench.team.sandbox_rpc import Response, SandboxRpc
from cooperbench.text import head_and_tail, plural

EVERYBODY = "*"
"""The recipient of a message to all teammates."""
MAX_SENT_MESSAGES = 1_000
"""Maximum number of messages per agent, so that a loop cannot fill disks and contexts."""
MAX_SENT_BYTES = 32_000_000
"""Maximum size of all messages of one agent together."""
MAX_MESSAGE_CHARACTERS = 10_000
"""Maximum number of characters of one message in a context: half its start, half its end."""
MAX_BATCH_CHARACTERS = 40_000
"""Maximum number of characters added to a context before one step; the rest waits for the next."""
FROM_TEAM = "team"
"""The sender of notifications from the team's tools; no agent has this name."""
_MESSAGE_OVERHEAD = 100
"""Characters that a message counts besides its text: it limits the number of short ones."""


class Delivery(NamedTuple):
    """When and how a message was shown to its recipient; part of conversation.json."""

    delivered_at: str | None = None
    """Time of delivery; None if the message was never shown."""
    delivered_step: int | None = None
    delivered_by: str | None = None
    """`context`: as a user message; `command`: by `read_messages` or `send_message --wait`."""


class Inbox:
    """The inbox of one agent. Create it before its RPC starts; `close` it when the agent ends."""

    def __init__(
        self,
        rpc: SandboxRpc,
        mailbox: Mailbox | None,
        on_sent: Callable[[Message], None] = lambda _: None,
        synchronize: Callable[[], None] = lambda: None,
        channel: Channel | None = None,
    ) -> None:
        """Store the arguments and register with the RPC and the mailbox.

        Args:
            rpc: Calls from commands in the agent's sandbox.
            mailbox: The pair's mailbox; None if agents cannot write to each other.
            on_sent: Called with every message that the agent has sent.
            synchronize: Called before a message is sent and before incoming ones are shown.
            channel: The rules for messages of this agent; None if there are none.
        """
        self.agent_id = rpc.agent_id
        self.teammates = rpc.teammates
        self.has_messages = mailbox is not None
        """False if only the team's tools write to this inbox."""
        self._rpc = rpc
        self._mailbox = mailbox
        self._on_sent = on_sent
        self._synchronize = synchronize
        self._channel = channel
        self._delayed: list[tuple[float, Message]] = []
        """Messages that the recipient gets with a later step, and the number of this step."""
        self._pending: dict[int, Message] = {}
        self._updates: dict[str, str] = {}
        self._deliveries: dict[int, Delivery] = {}
        self._failure: InfraError | None = None
        self._sent_messages = 0
        self._sent_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self.step = 0
        """Number of steps the agent has taken."""
        self.sent_in_step: list[tuple[str, str]] = []
        """Messages of the current step: recipient (or `all`) and text."""
        rpc.on_restart = self._rewrite_files
        rpc.on_lost = self._fail
        if mailbox is not None:
            rpc.handle("send", self._handle_send, "send_message")
            rpc.handle("read", self._handle_read, "read_messages")
            mailbox.subscribe(self.agent_id, self._receive, self._write_finished)

    def update(self, subject: str, text: str) -> None:
        """Show a notification before the next step; it replaces an earlier one on the subject."""
        with self._changed:
            self._updates.pop(subject, None)
            self._updates[subject] = text
            self._changed.notify_all()

    def begin_step(self, number: int) -> None:
        """Start counting sent messages for a new step, and deliver messages that are due."""
        with self._changed:
            self.step = number
            due = [message for step, message in self._delayed if step <= number]
            self._delayed = [entry for entry in self._delayed if entry[0] > number]
        self.sent_in_step = []
        for message in due:
            self._deliver(message)

    def incoming(self, limit: int | None = None) -> list[Message]:
        """Return new messages in order, shortened, and mark them as shown."""
        self._synchronize()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            messages = self._take_batch(limit)
            if self._pending and messages and limit is None:
                messages[-1] = _with_waiting_note(messages[-1], len(self._pending))
            updates, self._updates = self._updates, {}
        for message in messages:
            self._rpc.put("read", _file_name(message), b"")
        if updates:
            # Notifications are not part of the conversation: one message with sequence 0.
            text = head_and_tail("\n".join(updates.values()), MAX_MESSAGE_CHARACTERS)
            messages.append(Message(0, FROM_TEAM, self.agent_id, text, utc_now()))
        return messages

    def _take_batch(self, limit: int | None) -> list[Message]:
        """Remove as many pending messages as fit into one step; the caller holds the lock."""
        batch: list[Message] = []
        room = MAX_BATCH_CHARACTERS
        for sequence in sorted(self._pending)[:limit]:
            message = _shorten(self._pending[sequence], self._rpc.team_dir)
            room -= len(message.text) + _MESSAGE_OVERHEAD
            if batch and room < 0:
                break
            batch.append(message)
            del self._pending[sequence]
            self._deliveries[sequence] = Delivery(utc_now(), self.step, "context")
        return batch

    def wait(self, timeout_seconds: float, count: int | None = None) -> bool:
        """Wait for something to show, or for `count` messages; return whether there is something.

        Returns early when the inbox is closed.
        """

        def _is_over() -> bool:
            if self._closed or self._failure is not None:
                return True
            if count is None:
                return self._has_news()
            return len(self._pending) >= count

        with self._changed:
            self._changed.wait_for(_is_over, timeout_seconds)
            if self._failure is not None and not self._has_news():
                raise self._failure
            return self._has_news()

    def _has_news(self) -> bool:
        return bool(self._pending or self._updates)

    def delivery(self, sequence: int) -> Delivery:
        """Return when and how a message was shown."""
        with self._changed:
            return self._deliveries.get(sequence, Delivery())

    def close(self) -> None:
        """Stop receiving. Messages that were not shown by now are recorded as not delivered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fail(self, error: InfraError) -> None:
        """Make the agent's current or next read of the inbox raise a mailbox or sandbox error."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def send(self, recipient: str, text: str) -> Response:
        """Send a message for the agent, to a teammate or to `EVERYBODY`.

        The response to a success starts with the sequence number of the message.
        """
        recipients: tuple[str, ...] = (recipient,)
        if recipient == EVERYBODY:
            recipients = self._channel.recipients if self._channel else tuple(self.teammates)
        if refusal := self._check_message(recipient, recipients, text):
            return refusal
        self._synchronize()
        assert self._mailbox is not None
        # Who finishes after this line may have read the message.
        finished = [name for name in recipients if name in self._mailbox.finished]
        try:
            posted = [self._post(self._mailbox, name, text) for name in recipients]
        except InfraError as error:
            self._fail(error)
            raise
        self.sent_in_step.append(("all" if recipient == EVERYBODY else recipient, text))
        for message in posted:
            self._on_sent(message)
        note = f"{', '.join(finished)} has finished and will not read this"
        budget = self._channel.budget_text() if self._channel else ""
        if len(finished) == len(recipients):
            return Response(3, f"{note} ({budget})" if budget else note)
        output = f"{posted[0].sequence}\n"
        if finished:
            output += f"send_message: {note}\n"
        if budget:
            output += f"send_message: {budget}\n"
        return Response(0, output)

    def _post(self, mailbox: Mailbox, recipient: str, text: str) -> Message:
        is_lost = False
        if self._channel is not None:
            text, is_lost = self._channel.send(recipient, text)
        return mailbox.post(self.agent_id, recipient, text, self.step, lost=is_lost)

    def _check_message(
        self, recipient: str, recipients: tuple[str, ...], text: str
    ) -> Response | None:
        """Return a refusal, or count the message towards the agent's limits."""
        size = len(text.encode("utf-8", "replace"))
        if not set(recipients) <= set(self.teammates):
            return Response(2, f"no teammate {recipient!r}")
        if not text.strip():
            return Response(2, "the text is empty")
        if size > MAX_MESSAGE_BYTES:
            return Response(2, f"the text is too long: at most {MAX_MESSAGE_BYTES} bytes")
        with self._changed:
            sent_messages = self._sent_messages + len(recipients)
            sent_bytes = self._sent_bytes + size * len(recipients)
            if sent_messages > MAX_SENT_MESSAGES or sent_bytes > MAX_SENT_BYTES:
                limits = f"at most {MAX_SENT_MESSAGES} messages and {MAX_SENT_BYTES} bytes"
                return Response(2, f"message limit reached: {limits}")
            refusal = self._channel.spend(recipients, text) if self._channel else None
            if refusal is not None:
                return Response(2, refusal)
            self._sent_messages = sent_messages
            self._sent_bytes = sent_bytes
        return None

    def _handle_send(self, _name: str, content: bytes) -> Response:
        """Handle `send_message`: the recipient's line, then the text."""
        recipient, _, text = content.decode("utf-8", "replace").partition("\n")
        return self.send(recipient, text.removesuffix("\n"))

    def _handle_read(self, name: str, _content: bytes) -> None:
        """Mark a message as shown by `read_messages`; `name` is its file."""
        with self._changed:
            if name.isdigit() and self._pending.pop(int(name), None) is not None:
                self._deliveries[int(name)] = Delivery(utc_now(), self.step, "command")

    def _receive(self, message: Message) -> None:
        if self._channel is not None:
            with self._changed:
                delivery_step = self._channel.delivery_step(message, self.step)
                if delivery_step > self.step:
                    self._delayed.append((delivery_step, message))
                    return
        self._deliver(message)

    def _deliver(self, message: Message) -> None:
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

    def _rewrite_files(self) -> None:
        """Write all files again, after the RPC in the sandbox was restarted."""
        with self._changed:
            pending = list(self._pending.values())
        for message in pending:
            self._write_message(message)
        if self._mailbox is not None:
            for teammate in self._mailbox.finished:
                self._write_finished(teammate)


def _file_name(message: Message) -> str:
    return f"{message.sequence:08d}"


def _with_waiting_note(message: Message, waiting: int) -> Message:
    note = (
        f"\n[{plural(waiting, 'more message')} will be shown to you before your next step;"
        " `read_messages` shows them now]"
    )
    return replace(message, text=message.text + note)


def _shorten(message: Message, team_dir: str) -> Message:
    """Return a message as it is added to a context, at most `MAX_MESSAGE_CHARACTERS` long."""
    path = f"{team_dir}/inbox/{_file_name(message)}"
    note = (
        f"\n[… {{cut}} of {len(message.text)} characters left out;"
        f" the whole text is in {path} in your sandbox …]\n"
    )
    return replace(message, text=head_and_tail(message.text, MAX_MESSAGE_CHARACTERS, note))
