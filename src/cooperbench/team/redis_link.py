"""The wire to a Redis: its URL, one pool of connections for all threads of a run, and which failures may pass.

What the commands mean is the mailbox's business. Passwords are never shown: every message has the masked URL.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from cooperbench.errors import InfraError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from urllib.parse import SplitResult

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""How long an answer may take; blocking reads ask for less than this at a time."""
PATIENCE_SECONDS = 30.0
"""How long a Redis may stay away in mid-run before the pair is given up."""
_LONGEST_PAUSE_SECONDS = 1.0
_SHORTEST_PAUSE_SECONDS = 0.05
_MAX_CONNECTIONS = 10_000
_NOBODY_THERE = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENOENT}
_FORMS = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://… or unix://[[USER]:PASSWORD@]/PATH[?db=DB]"


class RedisAway(InfraError):
    """It does not answer (any more). Trying again may help."""

    nobody_there = False
    """Nothing listens at the address, as opposed to a server that is slow, full or starting."""


class RedisRefused(InfraError):
    """It answers, but not with what was asked for. Trying again does not help."""


class RedisLink:
    """A Redis for all threads of a run. Making one does not connect yet."""

    def __init__(self, url: str) -> None:
        """UserError where the URL cannot be one."""
        self.shown = masked(url)
        options = _options(url)
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # Retrying is ours, so that a restarted server gets its data back first.
        options |= {"retry": Retry(NoBackoff(), 0), "max_connections": _MAX_CONNECTIONS, "protocol": 2}
        options |= {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": CONNECT_SECONDS}
        if not url.startswith("unix:"):
            options["socket_keepalive"] = True
        self._pool = redis.ConnectionPool(**options)
        self._client: Any = redis.Redis(connection_pool=self._pool)
        # The shape that redis-py gives to streams differs between its versions; the wire's does not.
        self._client.set_response_callback("XREAD", lambda answer, **_: answer)

    def ask(self, *command: str | bytes | int) -> Any:
        """One command, tried once; RedisAway or RedisRefused."""
        from redis import exceptions

        passing = (
            exceptions.ConnectionError,
            exceptions.TimeoutError,
            exceptions.ReadOnlyError,
            exceptions.OutOfMemoryError,
            exceptions.ClusterDownError,
            exceptions.TryAgainError,
            OSError,
        )
        try:
            return self._client.execute_command(*command)
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise RedisRefused(
                f"Redis at {self.shown} refuses the password or user: {_line(error)}"
            ) from error
        except passing as error:
            away = RedisAway(f"Redis at {self.shown} does not answer: {_line(error)}")
            away.nobody_there = any(
                isinstance(cause, OSError) and cause.errno in _NOBODY_THERE for cause in _causes(error)
            )
            raise away from error
        except (exceptions.RedisError, TypeError, ValueError) as error:
            # TypeError and ValueError: options of the URL that the connection does not know.
            raise RedisRefused(f"Redis at {self.shown} refuses: {_line(error)}") from error

    def close(self) -> None:
        with suppress(Exception):
            self._pool.disconnect()


class Outage:
    """How long one kind of call has been failing: when to try again, and when to give up."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._since: float | None = None

    def over(self) -> None:
        self._since = None

    def pause_seconds(self, error: RedisAway) -> float:
        """How long to wait before the next try; InfraError when this one was the last."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        if lasted >= self._patience_seconds:
            raise InfraError(f"given up after {lasted:.0f} s: {error}") from error
        return min(max(lasted / 4, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)


def masked(url: str) -> str:
    """The URL as it may be shown."""
    hidden = re.sub(r"(?<=[?&])(password|ssl_password)=[^&#]*", r"\1=***", url)
    scheme, separator, rest = hidden.partition("://")
    authority, at, place = rest.rpartition("@")
    if not at:
        return hidden
    user = authority.partition(":")[0] if ":" in authority else ""
    return f"{scheme}{separator}{user}{':***' if ':' in authority else '***'}@{place}"


def is_on_this_machine(url: str) -> bool:
    """Whether a Redis that is not there may be replaced by one of ours: a host of localhost, by name or number."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        return False
    host = unquote(parts.hostname or "localhost")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _options(url: str) -> dict[str, Any]:
    from redis import connection

    parse: Callable[[str], dict[str, Any]] = connection.parse_url
    try:
        parts = urlsplit(url)
        problem = _problem(parts)
        if problem is None:
            return parse(url)
    except ValueError:
        # Its text may have a part of a password that was not quoted.
        problem = "its host, its port or an option is not valid"
    raise UserError(f"{masked(url)!r} is no Redis URL: {problem}; it looks like {_FORMS}")


def _problem(parts: SplitResult) -> str | None:
    if parts.scheme not in ("redis", "rediss", "unix"):
        return f"it begins with {parts.scheme!r}" if parts.scheme else "it has no scheme"
    if parts.scheme == "unix":
        return None if parts.path.strip("/") else "it has no path"
    if not parts.netloc:
        return "it has no host"
    # Reading the port raises ValueError where it is none.
    if parts.port == 0:
        return "port 0"
    database = unquote(parts.path).strip("/")
    if database and not database.isdecimal():
        return "what follows the host is no database number"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    # Errors that redis-py raised again can lead back to themselves.
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:300]
