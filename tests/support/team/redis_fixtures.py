"""Real Redis servers for tests: each on a socket or port of its own, killed and started again at will."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.errors import InfraError
from cooperbench.team.mailbox import RedisClient, find_server
from tests.support.requirements import skip_without

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.models import Message
    from cooperbench.team.mailbox import Mailbox

AGENTS = ("agent1", "agent2", "agent3")


def redis_program() -> str:
    return find_server() or skip_without("redis-server", "apt install redis-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A redis-server that a test owns."""

    def __init__(self, *options: str, url: str) -> None:
        self.url = url
        self._command = [redis_program(), *options, "--save", "", "--appendonly", "no"]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        client = RedisClient(self.url)
        deadline = time.monotonic() + 30
        try:
            while True:
                try:
                    client.execute("PING")
                    return
                except InfraError:
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        self.kill()
                        raise
                    time.sleep(0.01)
        finally:
            client.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def restart(self) -> None:
        """It comes back empty."""
        self.kill()
        self.start()

    def keys(self) -> set[str]:
        client = RedisClient(self.url)
        try:
            return {key.decode() for key in client.execute("KEYS", "*")}
        finally:
            client.close()


@contextmanager
def socket_server() -> Iterator[Server]:
    """On a unix socket, without a password."""
    with tempfile.TemporaryDirectory(prefix="cb-redis-") as folder:
        path = f"{folder}/redis.sock"
        server = Server("--port", "0", "--unixsocket", path, "--dir", folder, url=f"unix://{path}")
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def port_server(*options: str, url: str) -> Iterator[Server]:
    """On a TCP port of localhost; `PORT` in options and URL stands for it."""
    port = str(free_port())
    with tempfile.TemporaryDirectory(prefix="cb-redis-") as folder:
        filled = [option.replace("PORT", port) for option in options]
        server = Server(
            "--bind", "127.0.0.1", "--dir", folder, *filled, url=url.replace("PORT", port)
        )
        try:
            yield server
        finally:
            server.kill()


@dataclass(frozen=True)
class Certificates:
    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """An authority of our own and a certificate for localhost."""

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(
        "req", "-x509", *new_key, "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.pem",
        "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    openssl(
        "req",
        *new_key[:-2],
        "-subj",
        "/CN=localhost",
        "-keyout",
        "server.key",
        "-out",
        "server.csr",
    )
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl(
        "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
        "-extfile", "names", "-out", "server.pem",
    )  # fmt: skip
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")


def wait_for_message(server: Server, recipient: str = "agent2") -> None:
    """Until a pair of a run has sent something; the try before every run, which leaves the same kind of key, is none."""
    deadline = time.monotonic() + 600  # an image may have to be built before
    while not any(
        key.endswith(f":{recipient}") and "try-out" not in key for key in sorted(server.keys())
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def texts_in(server: Server, run_id: str, recipient: str) -> list[str]:
    """What the stream of an agent has, read as somebody else would."""
    client = RedisClient(server.url)
    try:
        entries = client.execute("XRANGE", f"run:{run_id}:{recipient}", "-", "+")
    finally:
        client.close()
    return [fields[b"text"].decode("utf-8", "surrogatepass") for _, fields in entries]


class Received:
    """What a mailbox has handed to one agent."""

    def __init__(self, mailbox: Mailbox, agent_id: str) -> None:
        self.messages: list[Message] = []
        self.finished: list[str] = []
        mailbox.subscribe(agent_id, self.messages.append, self.finished.append)

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]
