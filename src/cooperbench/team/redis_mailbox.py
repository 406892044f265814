"""The mailbox of a pair in Redis: one stream an agent, and nothing that was accepted is lost with the server.

Keys, all of them expiring by themselves and removed by `close`:

    run:{run_id}             hash: `sequence` (the newest), `message:{id}` (its sequence), `finished:{agent_id}`
    run:{run_id}:{agent_id}  stream of what was sent to an agent; the entry `7-0` is the pair's message number 7
    run:{run_id}:bell        stream: an agent has finished, or the mailbox closes; wakes who waits

Order and place are decided by one script, so the order in the streams is that of the sequences. A post carries an id of
its own: repeated after a lost answer it is not doubled. This process keeps a copy of all it posted and read, and writes
it back when the server has lost it. That, and `close`, assume that one process runs a pair; others may read along.
A Redis Cluster is not supported: the keys of a run lie in different slots.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from cooperbench.errors import InfraError
from cooperbench.models import Message
from cooperbench.storage import utc_now
from cooperbench.team.mailbox import Posted
from cooperbench.team.redis_link import PATIENCE_SECONDS, Outage, RedisAway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cooperbench.team.redis_link import RedisLink

EXPIRY_SECONDS = 24 * 3600
_BLOCK_SECONDS = 5.0
_LEAVE_SECONDS = 2.0
_BELL = "bell"
_NEVER, _FROM_NOW = "0-0", "$"
T = TypeVar("T")

# KEYS: hash, stream. ARGV: sequence known to the caller, expiry, message id, recipient, fields and values.
# Answers {0, 0} where the server knows less than the caller: it has lost its data.
_POST = """
local last = tonumber(redis.call('HGET', KEYS[1], 'sequence') or '0')
if last < tonumber(ARGV[1]) then return {0, 0} end
local sequence = tonumber(redis.call('HGET', KEYS[1], 'message:' .. ARGV[3]) or '0')
if sequence == 0 then
    sequence = last + 1
    redis.call('XADD', KEYS[2], sequence .. '-0', 'sequence', sequence, unpack(ARGV, 5))
    redis.call('HSET', KEYS[1], 'sequence', sequence, 'message:' .. ARGV[3], sequence)
    redis.call('EXPIRE', KEYS[1], ARGV[2])
    redis.call('EXPIRE', KEYS[2], ARGV[2])
end
return {sequence, redis.call('HEXISTS', KEYS[1], 'finished:' .. ARGV[4])}
"""
# The same arguments; the first is the sequence that the message had.
_WRITE_BACK = """
if redis.call('HSETNX', KEYS[1], 'message:' .. ARGV[3], ARGV[1]) == 1 then
    redis.call('XADD', KEYS[2], ARGV[1] .. '-0', 'sequence', ARGV[1], unpack(ARGV, 5))
    redis.call('HSET', KEYS[1], 'sequence', ARGV[1])
    redis.call('EXPIRE', KEYS[1], ARGV[2])
    redis.call('EXPIRE', KEYS[2], ARGV[2])
end
"""
# KEYS: hash, bell. ARGV: expiry, agent.
_FINISH = """
redis.call('HSET', KEYS[1], 'finished:' .. ARGV[2], 1)
redis.call('XADD', KEYS[2], '*', 'finished', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[1])
"""
_RING = """
redis.call('XADD', KEYS[1], '*', 'closed', 1)
redis.call('EXPIRE', KEYS[1], ARGV[1])
"""


class _Closing(Exception):
    """The mailbox was closed while a call waited for Redis."""


@dataclass(frozen=True)
class _Entry:
    """A message as it lies in its stream."""

    message_id: str
    message: Message


def unique_run_id(*parts: str) -> str:
    """A namespace that no earlier attempt has used, readable in `redis-cli`: parts and a random end."""
    return "/".join("-".join(part.split()) for part in (*parts, secrets.token_hex(4)))


class RedisMailbox:
    """A `Mailbox`. Every call goes to Redis, through an outage of up to `patience_seconds`; then InfraError."""

    def __init__(
        self,
        link: RedisLink,
        run_id: str,
        agent_ids: Sequence[str],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        if _BELL in agent_ids:
            raise ValueError(f"no agent can be named {_BELL!r}")
        self._link = link
        self._agent_ids = tuple(agent_ids)
        self._space = f"run:{run_id}"
        self._patience_seconds = patience_seconds
        self._reading = {agent_id: Outage(patience_seconds) for agent_id in agent_ids}
        self._entries: dict[int, _Entry] = {}
        self._newest = 0
        self._newest_to: dict[str, int] = {}
        self._finished: set[str] = set()
        self._heard: dict[str, str] = {}
        """The last ring of the bell that each reader knows of: what one has heard is still news to the others."""
        self._readers = 0
        self._state = threading.Condition()
        """Guards the copy above."""
        self._writing = threading.Lock()
        """Held while messages are written, so that only one can be without an answer when a server dies."""
        self._closing = threading.Event()

    def post(self, sender: str, recipient: str, text: str, sender_step: int = 0) -> Posted:
        if recipient not in self._agent_ids:
            raise ValueError(f"no agent {recipient!r} in this pair")
        message_id = secrets.token_hex(8)
        with self._writing:
            draft = _Entry(message_id, Message(0, sender, recipient, text, utc_now(), sender_step))
            try:
                sequence, finished = self._patiently(lambda: self._append(draft))
            except _Closing:
                # Too late for anybody to read, but it is on record.
                sequence, finished = self._newest + 1, False
            message = Message(sequence, sender, recipient, text, draft.message.timestamp, sender_step)
            self._keep(_Entry(message_id, message))
        with self._state:
            return Posted(message, finished or recipient in self._finished)

    def receive(self, agent_id: str, after: int, timeout_seconds: float) -> list[Message]:
        deadline = time.monotonic() + timeout_seconds
        outage = self._reading.get(agent_id) or Outage(self._patience_seconds)
        with self._counted_reader():
            while True:
                # Before the look at the flag: the bell that comes with it is not to be taken for heard.
                heard = self._heard.get(agent_id, _NEVER)
                if self._closing.is_set():
                    break
                remaining = deadline - time.monotonic()
                known = self._newest_to.get(agent_id, 0) > after
                try:
                    block_seconds = 0 if known else min(remaining, _BLOCK_SECONDS)
                    found, rung = self._read({agent_id: after}, block_seconds, heard)
                    self._heard[agent_id] = rung or heard
                    outage.over()
                    if known and not found:
                        # Accepted, and not there any more: it must not wait for the next one to be noticed.
                        self._write_back_if_free()
                        break
                    if found or remaining <= 0 or (rung and not self._closing.is_set()):
                        return found
                except RedisAway as error:
                    pause = outage.pause_seconds(error)
                    if remaining <= 0:
                        break
                    self._closing.wait(min(pause, remaining))
                    self._write_back_if_free()
        return [
            message for message in self._kept() if message.recipient == agent_id and message.sequence > after
        ]

    def finish(self, agent_id: str) -> None:
        with self._state:
            self._finished.add(agent_id)
        with suppress(_Closing):
            self._patiently(lambda: self._ask_finish(agent_id))

    def is_finished(self, agent_id: str) -> bool:
        with self._state:
            if agent_id in self._finished:
                return True
        try:
            return bool(
                self._patiently(lambda: self._link.ask("HEXISTS", self._space, f"finished:{agent_id}"))
            )
        except _Closing:
            return False

    def messages(self) -> list[Message]:
        if not self._closing.is_set():
            with suppress(InfraError):
                self._read(dict.fromkeys(self._agent_ids, 0), 0, _FROM_NOW)
        return self._kept()

    def close(self) -> None:
        """Wake whoever waits and remove the pair's keys, if Redis is there; they expire by themselves otherwise."""
        with self._state:
            if self._closing.is_set():
                return
            self._closing.set()
        with suppress(InfraError):
            self._ask_script(_RING, [self._key(_BELL)], EXPIRY_SECONDS)
        with self._state:
            # Only then is nobody left who would look for the bell after it is gone.
            self._state.wait_for(lambda: self._readers == 0, _LEAVE_SECONDS)
        with self._writing, suppress(InfraError):
            self._read(dict.fromkeys(self._agent_ids, 0), 0, _FROM_NOW)
            self._link.ask("DEL", self._space, *map(self._key, (*self._agent_ids, _BELL)))

    def _key(self, name: str) -> str:
        return f"{self._space}:{name}"

    def _ask_script(self, script: str, keys: list[str], *args: str | bytes | int) -> Any:
        # The whole script each time: a restarted server has forgotten the digests.
        return self._link.ask("EVAL", script, len(keys), *keys, *args)

    def _ask_finish(self, agent_id: str) -> None:
        self._ask_script(_FINISH, [self._space, self._key(_BELL)], EXPIRY_SECONDS, agent_id)

    def _patiently(self, work: Callable[[], T]) -> T:
        outage = Outage(self._patience_seconds)
        while not self._closing.is_set():
            try:
                return work()
            except RedisAway as error:
                self._closing.wait(outage.pause_seconds(error))
        raise _Closing

    def _append(self, draft: _Entry) -> tuple[int, bool]:
        with self._state:
            newest = self._newest
        sequence, finished = self._script(_POST, newest, draft)
        if not sequence:
            self._write_back()
            raise RedisAway(f"Redis at {self._link.shown} has lost its data; it is being written back")
        return int(sequence), bool(finished)

    def _script(self, script: str, sequence: int, entry: _Entry) -> Any:
        message = entry.message
        fields: dict[str, str | bytes | int] = {
            "id": entry.message_id,
            "sender": message.sender,
            "text": message.text.encode("utf-8", "surrogatepass"),
            "timestamp": message.timestamp,
            "sender_step": message.sender_step,
        }
        flat = [item for pair in fields.items() for item in pair]
        keys = [self._space, self._key(message.recipient)]
        return self._ask_script(
            script, keys, sequence, EXPIRY_SECONDS, entry.message_id, message.recipient, *flat
        )

    def _write_back(self) -> None:
        """What this process knows, into a server that has lost it. For who holds `_writing`."""
        with self._state:
            entries, finished = sorted(self._entries.items()), sorted(self._finished)
        for sequence, entry in entries:
            self._script(_WRITE_BACK, sequence, entry)
        for agent_id in finished:
            self._ask_finish(agent_id)

    def _write_back_if_free(self) -> None:
        """A reader that lost its connection looks after the data; whoever posts does so by itself."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            if int(self._link.ask("HGET", self._space, "sequence") or 0) < self._newest:
                self._write_back()
        except RedisAway:
            return
        finally:
            self._writing.release()

    def _read(self, after: dict[str, int], block_seconds: float, heard: str) -> tuple[list[Message], str]:
        """What has come to these agents, in order, and the bell's last ring if there was one; waits that long."""
        streams = {self._key(agent_id).encode(): agent_id for agent_id in after}
        blocking: list[str | int] = ["BLOCK", math.ceil(block_seconds * 1000)] if block_seconds > 0 else []
        starts = [f"{sequence}-0" for sequence in after.values()]
        answer = self._link.ask("XREAD", *blocking, "STREAMS", *streams, self._key(_BELL), *starts, heard)
        found, rung = [], ""
        for key, items in answer or []:
            if key not in streams:
                rung = items[-1][0].decode()
                continue
            for entry_id, fields in items:
                entry = self._parsed(entry_id, fields, streams[key])
                self._keep(entry)
                found.append(entry.message)
        return sorted(found, key=lambda message: message.sequence), rung

    def _parsed(self, entry_id: bytes, flat: list[bytes], recipient: str) -> _Entry:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        try:
            message = Message(
                sequence=int(entry_id.partition(b"-")[0]),
                sender=fields[b"sender"].decode(),
                recipient=recipient,
                text=fields[b"text"].decode("utf-8", "surrogatepass"),
                timestamp=fields[b"timestamp"].decode(),
                sender_step=int(fields[b"sender_step"]),
            )
            return _Entry(fields[b"id"].decode(), message)
        except (KeyError, ValueError) as error:
            key = self._key(recipient)
            raise InfraError(f"the entry {entry_id.decode()} of {key} in Redis is not one of ours") from error

    def _keep(self, entry: _Entry) -> None:
        with self._state:
            self._entries[entry.message.sequence] = entry
            message = entry.message
            self._newest = max(self._newest, message.sequence)
            self._newest_to[message.recipient] = max(
                self._newest_to.get(message.recipient, 0), message.sequence
            )

    def _kept(self) -> list[Message]:
        with self._state:
            return [entry.message for _, entry in sorted(self._entries.items())]

    @contextmanager
    def _counted_reader(self) -> Iterator[None]:
        with self._state:
            self._readers += 1
        try:
            yield
        finally:
            with self._state:
                self._readers -= 1
                self._state.notify_all()
