"""What a machine's rules let through, tried in the kernel: a machine, a container on its bridge, and the world outside."""

from __future__ import annotations

import secrets
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

METADATA_SERVER, IN_THE_WORLD = "169.254.169.254", "8.8.8.8"
_LAYOUT = """
-n machine link set lo up
-n machine link add name docker0 type bridge
-n machine address add 172.30.0.1/24 dev docker0
-n machine link set docker0 up
-n machine link add name one type veth peer name eth0 netns container
-n machine link set one master docker0 up
-n container address add 172.30.0.11/24 dev eth0
-n container link set eth0 up
-n container route add default via 172.30.0.1
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
netns exec machine sysctl -qw net.ipv4.ip_forward=1
netns exec machine iptables -N DOCKER-USER
netns exec machine iptables -A FORWARD -j DOCKER-USER
"""
_SPACES = ("machine", "container", "outside")
_SERVE = """
import socket, sys
listening = [socket.create_server(("0.0.0.0", int(port))) for port in sys.argv[1:]]
print("there", flush=True)
sys.stdin.read()
"""
_TRY = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).getpeername()"
"""Asked for its peer too: now and then Python takes a connection that was rejected for one that was made."""


class Site:
    """Made by `site`."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def reaches(self, start: str, address: str, port: int) -> bool:
        command = ["netns", "exec", start, sys.executable, "-c", _TRY, address, str(port)]
        return self.ip(command, check=False).returncode == 0

    def reached(self, start: str, addresses: Sequence[str], ports: Sequence[int]) -> list[tuple[str, int]]:
        return [
            (address, port) for address in addresses for port in ports if self.reaches(start, address, port)
        ]

    def ip(self, words: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self._command(words), capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"ip {' '.join(words)}: {done.stderr}"
        return done

    @contextmanager
    def serving(self, space: str, *ports: int) -> Iterator[None]:
        words = ["netns", "exec", space, sys.executable, "-c", _SERVE, *map(str, ports)]
        pipe = subprocess.PIPE
        with subprocess.Popen(self._command(words), stdin=pipe, stdout=pipe) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"there\n"
            yield

    def _command(self, words: Sequence[str]) -> list[str]:
        return ["ip", *(f"{self._mark}{word}" if word in _SPACES else word for word in words)]


@contextmanager
def site(rules: Sequence[str], ports: Sequence[int]) -> Iterator[Site]:
    """With these rules of iptables on the machine; what is outside serves at the ports."""
    place = Site(f"cb{secrets.token_hex(3)}-")
    with ExitStack() as stack:
        for space in _SPACES:
            place.ip(["netns", "add", space])
            stack.callback(place.ip, ["netns", "del", space], check=False)
        for line in _LAYOUT.strip().splitlines():
            place.ip(line.split())
        for rule in rules:
            place.ip(["netns", "exec", "machine", "iptables", *rule.split()])
        with place.serving("outside", *ports):
            yield place
