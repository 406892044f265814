"""Tunnels of the control plane of ours: TLS ends on loopback, and goes on to a port inside a sandbox.

The sandbox behind a tunnel has no network but its own loopback: each connection is brought in by a command in there.
Sandboxes with an allowlist share the machine's network; those that are blocked reach no tunnel.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

from modal_proto import api_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.sandbox.contract import Stream
    from tests.backends.modal.guest import Guest

DOMAIN = "tunnels.localhost"
"""What ends in .localhost is loopback for git, whatever the machine's resolver says."""
_RELAY = """
import os, socket, sys, threading

inside = socket.create_connection(("127.0.0.1", int(sys.argv[1])))


def pass_in():
    while data := os.read(0, 65536):
        inside.sendall(data)
    inside.shutdown(socket.SHUT_WR)


threading.Thread(target=pass_in, daemon=True).start()
while data := inside.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""


class Tunnels:
    """Of one plane; everything but `close` runs on its loop."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._certificate = folder / "tunnels.pem"
        self._context: ssl.SSLContext | None = None
        self._key = folder / "tunnels.key"
        self._open: dict[str, list[asyncio.Server]] = {}
        self.connections = 0

    @property
    def certificate(self) -> bytes:
        """What a client must trust; made when first asked for."""
        if not self._certificate.exists():
            command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=tunnels"
            subprocess.run(
                [*command.split(), "-addext", f"subjectAltName=DNS:*.{DOMAIN}", "-keyout", self._key, "-out", self._certificate],
                check=True,
                capture_output=True,
            )  # fmt: skip
        return self._certificate.read_bytes()

    async def open(self, guest: Guest) -> list[api_pb2.TunnelData]:
        """For each port that the sandbox was to open."""
        return [
            await self._open_port(guest, spec.port)
            for spec in guest.definition.open_ports.ports
            if not spec.unencrypted
        ]

    def close(self, guest: Guest) -> None:
        """From any thread."""
        for server in self._open.pop(guest.sandbox_id, []):
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(server.close)

    async def _open_port(self, guest: Guest, port: int) -> api_pb2.TunnelData:
        if self._context is None:
            assert self.certificate
            self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._context.load_cert_chain(self._certificate, self._key)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            with contextlib.suppress(OSError, ssl.SSLError):
                await _carry(guest, port, reader, writer)
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=self._context)
        self._open.setdefault(guest.sandbox_id, []).append(server)
        outside = int(server.sockets[0].getsockname()[1])
        return api_pb2.TunnelData(host=f"{guest.sandbox_id}.{DOMAIN}", port=outside, container_port=port)


async def _carry(guest: Guest, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    local = guest.local
    assert local is not None
    try:
        stream: Stream = await asyncio.to_thread(
            local.open_stream, ["python3", "-IS", "-c", _RELAY, str(port)]
        )
    except Exception:
        return  # the sandbox has ended

    async def inward() -> None:
        while data := await reader.read(65536):
            await asyncio.to_thread(stream.stdin.write, data)
        await asyncio.to_thread(stream.stdin.close)

    async def outward() -> None:
        output: Any = stream.stdout
        while data := await asyncio.to_thread(output.read1, 65536):
            writer.write(data)
            await writer.drain()

    sending = asyncio.ensure_future(inward())
    try:
        await outward()
    finally:
        sending.cancel()
        await asyncio.to_thread(_end, stream)


def _end(stream: Stream) -> None:
    with contextlib.suppress(Exception):
        stream.close()
    for end in (stream.stdin, stream.stdout):
        with contextlib.suppress(OSError, ValueError):
            end.close()
