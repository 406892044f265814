"""The mailbox of a pair in Redis: one stream per agent. Nothing that was accepted is lost with the server.

Keys, all of which expire and are removed by `close`:

    run:{run_id}             hash: `sequence` (the newest), `message:{id}` (its sequence), `finished:{agent_id}`
    run:{run_id}:{agent_id}  stream of messages to an agent; the entry `7-0` is the pair's message number 7
    run:{run_id}:bell        stream: an agent has finished, or the mailbox closes; wakes blocked readers

One script assigns the sequence and appends, so the order in the streams is that of the sequences. A post carries an id
of its own: repeated after a lost answer it is not doubled. This process keeps a copy of all it posted and read, and
writes it back when the server has lost it. That, and `close`, assume that one process runs a pair; others may read
along. A Redis Cluster is not supported: the keys of a run lie in different slots. Passwords are never shown: every
message has the masked URL.
"""

from __future__ import annotations

import errno
import math
import re
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cooperbench.errors import InfraError, UserError
from cooperbench.models import Message
from cooperbench.storage import utc_now
from cooperbench.team.mailbox import Posted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

EXPIRY_SECONDS = 24 * 3600
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
"""How long an answer may take; blocking reads ask for less than this at a time."""
PATIENCE_SECONDS = 30.0
"""How long a Redis may be unavailable during a run before the attempt at the pair fails."""
_BLOCK_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
_MAX_CONNECTIONS = 10_000
_NOT_LISTENING = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENOENT}
_URL = re.compile(r"rediss?://[^/?#]+(?<!:0)(/[0-9]*)?(\?.*)?|unix://[^?#]*/[^?#]+(\?.*)?")
_URL_FORMS = (
    "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://… or unix://[[USER]:PASSWORD@]/PATH[?db=DB]"
)
_BELL = "bell"
_FROM_START, _FROM_NOW = "0-0", "$"
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


class RedisUnavailable(InfraError):
    """It does not answer (any more). Trying again may help."""

    not_listening = False
    """Nothing listens at the address, as opposed to a server that is slow, full or starting."""


class RedisRefused(InfraError):
    """It answers, but rejects the command. Trying again does not help."""


class RedisClient:
    """One pool of connections for all threads of a run. Making one does not connect yet."""

    def __init__(self, url: str) -> None:
        """UserError where the URL cannot be one."""
        self.masked_url = masked(url)
        options = _connection_options(url)
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # Retrying is the mailbox's, so that a restarted server gets its data back first.
        options |= {"retry": Retry(NoBackoff(), 0), "max_connections": _MAX_CONNECTIONS, "protocol": 2}
        options |= {"socket_timeout": _ANSWER_SECONDS, "socket_connect_timeout": _CONNECT_SECONDS}
        if not url.startswith("unix:"):
            options["socket_keepalive"] = True
        self._pool = redis.ConnectionPool(**options)
        self._redis: Any = redis.Redis(connection_pool=self._pool)
        # The shape that redis-py gives to streams differs between its versions; the protocol's does not.
        self._redis.set_response_callback("XREAD", lambda answer, **_: answer)

    def execute(self, *command: str | bytes | int) -> Any:
        """One command, tried once; RedisUnavailable or RedisRefused."""
        from redis import exceptions

        temporary = (
            exceptions.ConnectionError,
            exceptions.TimeoutError,
            exceptions.ReadOnlyError,
            exceptions.OutOfMemoryError,
            OSError,
        )
        try:
            return self._redis.execute_command(*command)
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            message = f"Redis at {self.masked_url} refuses the password or user: {_one_line(error)}"
            raise RedisRefused(message) from error
        except temporary as error:
            unavailable = RedisUnavailable(f"Redis at {self.masked_url} does not answer: {_one_line(error)}")
            unavailable.not_listening = _is_not_listening(error)
            raise unavailable from error
        except (exceptions.RedisError, TypeError, ValueError) as error:
            # TypeError and ValueError: options of the URL that the connection does not know.
            raise RedisRefused(f"Redis at {self.masked_url} refuses: {_one_line(error)}") from error

    def close(self) -> None:
        with suppress(Exception):
            self._pool.disconnect()


class _Outage:
    """How long one kind of call has been failing: when to try again, and when to give up."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._since: float | None = None

    def over(self) -> None:
        self._since = None

    def pause_seconds(self, error: RedisUnavailable) -> float:
        """How long to wait before the next try; InfraError when this one was the last."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        if lasted >= self._patience_seconds:
            raise InfraError(f"given up after {lasted:.0f} s: {error}") from error
        return min(max(lasted / 4, 0.05), 1.0)


class _Closing(Exception):
    """The mailbox was closed while a call waited for Redis."""


class _Entry(NamedTuple):
    """A message as it is in its stream."""

    message_id: str
    message: Message


class RedisMailbox:
    """A `Mailbox`. Every call goes to Redis, through an outage of up to `patience_seconds`; then InfraError."""

    def __init__(
        self,
        client: RedisClient,
        run_id: str,
        agent_ids: Sequence[str],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        if _BELL in agent_ids:
            raise ValueError(f"no agent can be named {_BELL!r}")
        self._client = client
        self._agent_ids = tuple(agent_ids)
        self._hash_key = f"run:{run_id}"
        self._patience_seconds = patience_seconds
        self._read_outages = {agent_id: _Outage(patience_seconds) for agent_id in agent_ids}
        self._entries: dict[int, _Entry] = {}
        self._newest = 0
        self._newest_to: dict[str, int] = {}
        self._finished: set[str] = set()
        self._bell_seen: dict[str, str] = {}
        """The last entry of the bell that each reader knows: what one has seen is still news to the others."""
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
            entry = _Entry(message_id, replace(draft.message, sequence=sequence))
            self._keep(entry)
        with self._state:
            return Posted(entry.message, finished or recipient in self._finished)

    def receive(self, agent_id: str, after: int, timeout_seconds: float) -> list[Message]:
        deadline = time.monotonic() + timeout_seconds
        outage = self._read_outages.get(agent_id) or _Outage(self._patience_seconds)
        with self._counted_reader():
            while True:
                # Before the check of the flag: the bell entry that comes with it must not count as seen.
                bell_seen = self._bell_seen.get(agent_id, _FROM_START)
                if self._closing.is_set():
                    break
                remaining = deadline - time.monotonic()
                known = self._newest_to.get(agent_id, 0) > after
                try:
                    block_seconds = 0 if known else min(remaining, _BLOCK_SECONDS)
                    found, bell = self._read({agent_id: after}, block_seconds, bell_seen)
                    self._bell_seen[agent_id] = bell or bell_seen
                    outage.over()
                    if known and not found:
                        # Accepted, and not there any more: do not wait for the next post to notice.
                        self._write_back_if_free()
                        break
                    if found or remaining <= 0 or (bell and not self._closing.is_set()):
                        return found
                except RedisUnavailable as error:
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
            self._patiently(lambda: self._write_finished(agent_id))

    def is_finished(self, agent_id: str) -> bool:
        with self._state:
            if agent_id in self._finished:
                return True
        command = ("HEXISTS", self._hash_key, f"finished:{agent_id}")
        try:
            return bool(self._patiently(lambda: self._client.execute(*command)))
        except _Closing:
            return False

    def messages(self) -> list[Message]:
        if not self._closing.is_set():
            with suppress(InfraError):
                self._read_all()
        return self._kept()

    def close(self) -> None:
        """Wake blocked readers and remove the pair's keys, if Redis answers; otherwise they expire."""
        with self._state:
            if self._closing.is_set():
                return
            self._closing.set()
        with suppress(InfraError):
            self._client.execute("XADD", self._key(_BELL), "*", "closed", 1)
            self._client.execute("EXPIRE", self._key(_BELL), EXPIRY_SECONDS)
        with self._state:
            # Only then is no reader left who would look for the bell after it is gone.
            self._state.wait_for(lambda: self._readers == 0, _CLOSE_SECONDS)
        with self._writing, suppress(InfraError):
            self._read_all()
            self._client.execute("DEL", self._hash_key, *map(self._key, (*self._agent_ids, _BELL)))

    def _key(self, name: str) -> str:
        return f"{self._hash_key}:{name}"

    def _run_script(self, script: str, keys: list[str], *args: str | bytes | int) -> Any:
        # The whole script each time: a restarted server has forgotten the digests.
        return self._client.execute("EVAL", script, len(keys), *keys, *args)

    def _write_finished(self, agent_id: str) -> None:
        self._run_script(_FINISH, [self._hash_key, self._key(_BELL)], EXPIRY_SECONDS, agent_id)

    def _patiently(self, work: Callable[[], T]) -> T:
        outage = _Outage(self._patience_seconds)
        while not self._closing.is_set():
            try:
                return work()
            except RedisUnavailable as error:
                self._closing.wait(outage.pause_seconds(error))
        raise _Closing

    def _append(self, draft: _Entry) -> tuple[int, bool]:
        with self._state:
            newest = self._newest
        sequence, finished = self._write(_POST, newest, draft)
        if not sequence:
            self._write_back()
            raise RedisUnavailable(f"Redis at {self._client.masked_url} has lost its data")
        return int(sequence), bool(finished)

    def _write(self, script: str, sequence: int, entry: _Entry) -> Any:
        message = entry.message
        keys = [self._hash_key, self._key(message.recipient)]
        args = (sequence, EXPIRY_SECONDS, entry.message_id, message.recipient)
        fields: list[str | bytes | int] = ["id", entry.message_id, "sender", message.sender]
        fields += ["text", message.text.encode("utf-8", "surrogatepass")]
        fields += ["timestamp", message.timestamp, "sender_step", message.sender_step]
        return self._run_script(script, keys, *args, *fields)

    def _write_back(self) -> None:
        """What this process knows, into a server that has lost it. The caller holds `_writing`."""
        with self._state:
            entries, finished = sorted(self._entries.items()), sorted(self._finished)
        for sequence, entry in entries:
            self._write(_WRITE_BACK, sequence, entry)
        for agent_id in finished:
            self._write_finished(agent_id)

    def _write_back_if_free(self) -> None:
        """For a reader that lost its connection; a thread that posts does it by itself."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            with suppress(RedisUnavailable):
                if int(self._client.execute("HGET", self._hash_key, "sequence") or 0) < self._newest:
                    self._write_back()
        finally:
            self._writing.release()

    def _read_all(self) -> None:
        self._read(dict.fromkeys(self._agent_ids, 0), 0, _FROM_NOW)

    def _read(self, after: dict[str, int], block_seconds: float, bell_seen: str) -> tuple[list[Message], str]:
        """New messages to these agents, in order, and the last new entry of the bell, if any; waits that long."""
        streams = {self._key(agent_id).encode(): agent_id for agent_id in after}
        blocking: list[str | int] = ["BLOCK", math.ceil(block_seconds * 1000)] if block_seconds > 0 else []
        starts = [f"{sequence}-0" for sequence in after.values()]
        command = ("XREAD", *blocking, "STREAMS", *streams, self._key(_BELL), *starts, bell_seen)
        found, bell = [], ""
        for key, items in self._client.execute(*command) or []:
            if key not in streams:
                bell = items[-1][0].decode()
                continue
            for entry_id, fields in items:
                entry = self._parsed(entry_id, fields, streams[key])
                self._keep(entry)
                found.append(entry.message)
        return sorted(found, key=lambda message: message.sequence), bell

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
        sequence, recipient = entry.message.sequence, entry.message.recipient
        with self._state:
            self._entries[sequence] = entry
            self._newest = max(self._newest, sequence)
            self._newest_to[recipient] = max(self._newest_to.get(recipient, 0), sequence)

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


def unique_run_id(*parts: str) -> str:
    """A namespace that no earlier attempt has used, readable in `redis-cli`: parts and a random end."""
    return "/".join("-".join(part.split()) for part in (*parts, secrets.token_hex(4)))


def masked(url: str) -> str:
    """The URL as it may be shown."""
    hidden = re.sub(r"(?<=[?&])(password|ssl_password)=[^&#]*", r"\1=***", url)
    scheme, separator, rest = hidden.partition("://")
    authority, at, place = rest.rpartition("@")
    if not at:
        return hidden
    user = authority.partition(":")[0] if ":" in authority else ""
    return f"{scheme}{separator}{user}{':***' if ':' in authority else '***'}@{place}"


def _connection_options(url: str) -> dict[str, Any]:
    from redis import connection

    parse: Callable[[str], dict[str, Any]] = connection.parse_url
    # The text of the ValueError may have a part of a password that was not quoted.
    with suppress(ValueError):
        if _URL.fullmatch(url):
            return parse(url)
    raise UserError(f"{masked(url)!r} is no Redis URL; it looks like {_URL_FORMS}")


def _is_not_listening(error: BaseException | None) -> bool:
    # Bounded: errors that redis-py raised again can lead back to themselves.
    for _ in range(10):
        if isinstance(error, OSError) and error.errno in _NOT_LISTENING:
            return True
        error = error and (error.__cause__ or error.__context__)
    return False


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:300]
