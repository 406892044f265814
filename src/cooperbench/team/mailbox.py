"""The mailbox of a pair: who told whom what, in which order; and which kind of mailbox a run uses.

`Mailbox` is the interface; `MemoryMailbox` keeps everything in this process, `redis_mailbox` has the one in Redis.
Nothing is removed while a pair runs: readers say after which message they want to continue, so one that was restarted
continues where it was, and a message sent before its recipient has started is there when it does.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from cooperbench.errors import UserError
from cooperbench.models import Message
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DEFAULT_REDIS_URL = "redis://localhost:6379"
MAX_MESSAGE_BYTES = 4_000_000
"""Longer ones are refused, and the sender is told so."""


@dataclass(frozen=True)
class Posted:
    """A message that was taken, and whether anybody will still read it."""

    message: Message
    recipient_finished: bool


class Mailbox(Protocol):
    """Of one pair. All methods may be called from several threads."""

    def post(self, sender: str, recipient: str, text: str, sender_step: int = 0) -> Posted:
        """Take a message: stamp it with time and order."""
        ...

    def receive(self, agent_id: str, after: int, timeout_seconds: float) -> list[Message]:
        """Messages to an agent with a sequence above `after`, in order; waits for the first one that long.

        Returns an empty list when the time is up or the mailbox was closed, and early when an agent has finished since
        this reader's last call: so whoever wants to know of that can wait long and need not ask often.
        """
        ...

    def finish(self, agent_id: str) -> None:
        """An agent is done: those who write to it from now on are told so."""
        ...

    def is_finished(self, agent_id: str) -> bool: ...

    def messages(self) -> list[Message]:
        """Everything so far, in order."""
        ...

    def close(self) -> None:
        """Wake whoever waits. Nothing is lost: `messages` still answers."""
        ...


class MemoryMailbox:
    """In this process: a list and a condition."""

    def __init__(self, agent_ids: Sequence[str]) -> None:
        self._agent_ids = tuple(agent_ids)
        self._messages: list[Message] = []
        self._finished: set[str] = set()
        self._told: dict[str, int] = {}
        """How many had finished when a reader's last call ended."""
        self._closed = False
        self._changed = threading.Condition()

    def post(self, sender: str, recipient: str, text: str, sender_step: int = 0) -> Posted:
        if recipient not in self._agent_ids:
            raise ValueError(f"no agent {recipient!r} in this pair")
        with self._changed:
            message = Message(len(self._messages) + 1, sender, recipient, text, utc_now(), sender_step)
            self._messages.append(message)
            self._changed.notify_all()
            return Posted(message, recipient in self._finished)

    def receive(self, agent_id: str, after: int, timeout_seconds: float) -> list[Message]:
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                # A sequence is its place in the list, so what follows `after` starts there.
                found = [message for message in self._messages[after:] if message.recipient == agent_id]
                remaining = deadline - time.monotonic()
                news = len(self._finished) > self._told.get(agent_id, 0)
                if found or news or self._closed or remaining <= 0:
                    self._told[agent_id] = len(self._finished)
                    return found
                self._changed.wait(remaining)

    def finish(self, agent_id: str) -> None:
        with self._changed:
            self._finished.add(agent_id)
            self._changed.notify_all()

    def is_finished(self, agent_id: str) -> bool:
        with self._changed:
            return agent_id in self._finished

    def messages(self) -> list[Message]:
        with self._changed:
            return list(self._messages)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass(frozen=True)
class MailboxFactory:
    """Makes a mailbox for each attempt at a pair of a run."""

    description: str
    """Where the messages are, for people."""
    make: Callable[[str, Sequence[str]], Mailbox]
    """Takes the pair's label and the ids of its agents."""


@contextmanager
def open_mailboxes(url: str, run_name: str) -> Iterator[MailboxFactory]:
    """In a Redis that answers, or that is started for the run and ends with the block; else in this process.

    UserError where the URL names a Redis that cannot be used.
    """
    if find_spec("redis") is None:
        if url != DEFAULT_REDIS_URL:
            raise UserError("messages over Redis need the redis package: pip install 'cooperbench[redis]'")
        yield _in_this_process("pip install 'cooperbench[redis]' for Redis")
        return
    from cooperbench.team.redis_mailbox import RedisClient, RedisMailbox, unique_run_id
    from cooperbench.team.redis_server import NoRedis, ensure_redis

    running, problem = None, ""
    try:
        running = ensure_redis(url)
    except NoRedis as error:
        problem = str(error)
    if running is None:
        yield _in_this_process(problem)
        return
    with running:
        client = RedisClient(running.url)
        try:
            yield MailboxFactory(
                running.description,
                lambda label, agent_ids: RedisMailbox(client, unique_run_id(run_name, label), agent_ids),
            )
        finally:
            client.close()


def _in_this_process(reason: str) -> MailboxFactory:
    return MailboxFactory(f"in this process ({reason})", lambda _label, agent_ids: MemoryMailbox(agent_ids))
