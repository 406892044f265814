"""Networks of machines in the kernel: a machine with Docker's bridge and its filter, a container on it, the world outside.

A machine and a container are namespaces of processes that are there already, or of nobody. The world has Google's metadata
server at its real address; the host that the tests run on sees only a link to each machine, for SSH.
"""

from __future__ import annotations

import ctypes
import os
import random
import secrets
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

METADATA_SERVER = "169.254.169.254"
PLACES = [(METADATA_SERVER, 53), (METADATA_SERVER, 80), ("8.8.8.8", 53), ("8.8.8.8", 80)]
ALLOWED_PLACES = [place for place in PLACES if place != (METADATA_SERVER, 80)]
"""To containers: names are resolved by the metadata server too."""
_MACHINE = """
-n machine link set lo up
-n machine link add name docker0 type bridge
-n machine address add 172.30.0.1/24 dev docker0
-n machine link set docker0 up
netns exec machine sysctl -qw net.ipv4.ip_forward=1
-n machine link add name ssh type veth peer name {link} netns {here}
-n machine address add {address}/30 dev ssh
-n machine link set ssh up
address add {first}/30 dev {link}
link set {link} up
-n machine link add name vpc type veth peer name eth0 netns outside
-n machine address add 10.5.0.1/24 dev vpc
-n machine link set vpc up
-n outside address add 10.5.0.2/24 dev eth0
-n outside address add 8.8.8.8/32 dev eth0
-n outside address add 169.254.169.254/32 dev eth0
-n outside link set eth0 up
-n outside route add default via 10.5.0.1
-n machine route add 8.8.8.8/32 via 10.5.0.2
-n machine route add 169.254.169.254/32 via 10.5.0.2
"""
_DOCKERS_FILTER = """
netns exec machine iptables -N DOCKER-USER
netns exec machine iptables -A FORWARD -j DOCKER-USER
"""
_CONTAINER = """
-n machine link add name one type veth peer name docker netns container
-n machine link set one master docker0 up
-n container address add 172.30.0.11/24 dev docker
-n container link set docker up
-n container route replace default via 172.30.0.1
"""
_SERVE = """
import socket, sys
places = [word.split(":") for word in sys.argv[1:]]
listening = [socket.create_server((address, int(port))) for address, port in places]
print("there", flush=True)
sys.stdin.read()
"""
_TRY = (
    "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).getpeername()"
)
"""Asked for its peer too: now and then Python takes a connection that was rejected for one that was made."""
_NEW_NETWORK = 0x40000000


def attempt(place: tuple[str, int]) -> list[str]:
    """The command that connects to it."""
    return ["python3", "-c", _TRY, place[0], str(place[1])]


class Site:
    """A world at first; it ends with all that is added."""

    def __init__(self) -> None:
        self._mark = f"cb{secrets.token_hex(3)}-"
        # A range for measurements: nobody is there.
        first = f"198.{random.randint(18, 19)}.{random.randint(0, 255)}.{4 * random.randint(0, 63)}"
        network, _, last = first.rpartition(".")
        self._host, self.address = f"{network}.{int(last) + 1}", f"{network}.{int(last) + 2}"
        """Of the machine, for SSH."""
        self._made = ExitStack()
        self._spaces: list[str] = []
        self._add("outside")

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._made.close()

    def add_machine(self, process: int | None = None, *, filters: bool = True) -> None:
        """With a bridge as Docker makes it, and with the chain for rules of others where Docker filters."""
        self._add("machine", process)
        if filters:
            self._lay(_DOCKERS_FILTER)
        self._lay(_MACHINE)

    def add_container(self, process: int | None = None) -> None:
        """On the machine's bridge."""
        self._add("container", process)
        self._lay(_CONTAINER)

    def reached(self, start: str, places: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Those of them that are reached from a namespace."""
        return [
            place
            for place in places
            if self.ip(["netns", "exec", start, *attempt(place)], check=False).returncode == 0
        ]

    def listen(self, space: str, address: str, port: int) -> socket.socket:
        """A socket of this process in that namespace."""

        def enter_and_listen() -> socket.socket:
            with Path(f"/run/netns/{self._mark}{space}").open() as place:
                assert ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _NEW_NETWORK) == 0
            return socket.create_server((address, port))

        # A namespace is a thread's, and this thread ends.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(enter_and_listen).result()

    @contextmanager
    def serving(self, space: str, *places: str) -> Iterator[None]:
        """At each of these, as `address:port`."""
        words = ["netns", "exec", space, sys.executable, "-c", _SERVE, *places]
        pipe = subprocess.PIPE
        with subprocess.Popen(self._command(words), stdin=pipe, stdout=pipe) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"there\n"
            yield

    def ip(self, words: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self._command(words), capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"ip {' '.join(words)}: {done.stderr}"
        return done

    def _add(self, space: str, process: int | None = None) -> None:
        self._spaces.append(space)
        self.ip(
            ["netns", "add", space] if process is None else ["netns", "attach", space, str(process)]
        )
        self._made.callback(self.ip, ["netns", "del", space], check=False)

    def _lay(self, layout: str) -> None:
        link = f"{self._mark}ssh"
        filled = layout.format(link=link, here=os.getpid(), first=self._host, address=self.address)
        for line in filled.strip().splitlines():
            self.ip(line.split())

    def _command(self, words: Sequence[str]) -> list[str]:
        return ["ip", *(f"{self._mark}{word}" if word in self._spaces else word for word in words)]
