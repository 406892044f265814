"""The mailbox of a pair: who told whom what, in which order; and where the messages of a run are kept.

`Mailbox` keeps them in this process, which runs the pair; `redis_mailbox` writes them to a Redis as well. Nothing is
removed while a pair runs, so a message sent before its recipient has started is there when it does.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import UserError
from cooperbench.models import Message
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DEFAULT_REDIS_URL = "redis://localhost:6379"
MAX_MESSAGE_BYTES = 4_000_000
"""Longer ones are refused, and the sender is told so."""


class Posted(NamedTuple):
    """A message that was taken, and whether anybody will still read it."""

    message: Message
    recipient_finished: bool


class Reader(NamedTuple):
    """What is called for one agent, in order and one call at a time. Must not block, nor call the mailbox."""

    on_message: Callable[[Message], None]
    on_finished: Callable[[str], None]
    """With the id of another agent that is done."""


class Mailbox:
    """Of one pair. All methods may be called from several threads."""

    def __init__(self, agent_ids: Sequence[str]) -> None:
        self._agent_ids = tuple(agent_ids)
        self._messages: list[Message] = []
        self._finished: list[str] = []
        self._readers: dict[str, Reader] = {}
        self._lock = threading.Lock()

    def post(self, sender: str, recipient: str, text: str, sender_step: int = 0) -> Posted:
        """Take a message: stamp it with time and order, and hand it to its recipient."""
        if recipient not in self._agent_ids:
            raise ValueError(f"no agent {recipient!r} in this pair")
        with self._lock:
            message = Message(len(self._messages) + 1, sender, recipient, text, utc_now(), sender_step)
            self._store_message(message)
            self._messages.append(message)
            if recipient in self._readers:
                self._readers[recipient].on_message(message)
            return Posted(message, recipient in self._finished)

    def subscribe(self, agent_id: str, reader: Reader) -> None:
        """Call `reader` for everything that concerns an agent, beginning with what was there before."""
        with self._lock:
            for message in self._messages:
                if message.recipient == agent_id:
                    reader.on_message(message)
            for other in self._finished:
                reader.on_finished(other)
            self._readers[agent_id] = reader

    def finish(self, agent_id: str) -> None:
        """An agent is done: the others are told so, and those who write to it from now on."""
        with self._lock:
            if agent_id in self._finished:
                return
            self._store_finished(agent_id)
            self._finished.append(agent_id)
            for other, reader in self._readers.items():
                if other != agent_id:
                    reader.on_finished(agent_id)

    def messages(self) -> list[Message]:
        """Everything so far, in order; also after `close`, and while a post waits."""
        return list(self._messages)

    def close(self) -> None:
        """The pair is over."""

    def _store_message(self, message: Message) -> None:
        """Before it is handed to anybody; the caller holds the lock."""

    def _store_finished(self, agent_id: str) -> None:
        """The same."""


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
    from cooperbench.team.redis_mailbox import NoRedis, RedisMailbox, ensure_redis, unique_run_id

    with ExitStack() as stack:
        try:
            redis = stack.enter_context(ensure_redis(url))
        except NoRedis as error:
            factory = _in_this_process(str(error))
        else:
            factory = MailboxFactory(
                redis.description,
                lambda label, agent_ids: RedisMailbox(
                    redis.client, unique_run_id(run_name, label), agent_ids
                ),
            )
        yield factory


def _in_this_process(reason: str) -> MailboxFactory:
    return MailboxFactory(f"in this process ({reason})", lambda _label, agent_ids: Mailbox(agent_ids))
