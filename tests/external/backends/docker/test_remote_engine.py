"""Connections to processes of an engine at a TCP port, with and without TLS."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.docker.attached import attach
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from pathlib import Path

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\n\r\n"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of localhost, which vouches for itself, and its key."""
    openssl = require_program("openssl")
    paths = (tmp_path / "certificate.pem", tmp_path / "key.pem")
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = [openssl, "req", "-x509", "-nodes", "-newkey", "rsa:2048", *name]
    command += ["-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(command, check=True, capture_output=True)
    return paths


def test_a_port_without_tls() -> None:
    assert talk(None, verify=False) == b"helloworld"


@pytest.mark.parametrize("verified", [True, False])
def test_a_port_with_tls(verified: bool, certificate: tuple[Path, Path]) -> None:
    assert talk(certificate, verify=str(certificate[0]) if verified else False) == b"helloworld"


def test_a_certificate_that_nobody_vouches_for(certificate: tuple[Path, Path]) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(certificate, verify=True)


def talk(certificate: tuple[Path, Path] | None, *, verify: bool | str) -> bytes:
    """Attach to an engine that sends `hello`, waits for input and sends it back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server, certificate))
        thread.start()
        scheme = "https" if certificate else "http"
        api = SimpleNamespace(
            api_version="1.41",
            base_url=f"{scheme}://localhost:{server.getsockname()[1]}",
            verify=verify,
            cert=certificate,
        )
        try:
            connection, output = attach(api, "tcp://localhost", "/exec/1/start", {}, 30)
            with connection:
                connection.sendall(b"world")
                while data := connection.recv(100):
                    output += data
        finally:
            thread.join()
    return output


def answer(server: socket.socket, certificate: tuple[Path, Path] | None) -> None:
    connection, _ = server.accept()
    with connection:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            try:
                connection = context.wrap_socket(connection, server_side=True)
            except ssl.SSLError:
                return
        with connection:
            connection.recv(10_000)
            connection.sendall(UPGRADED + b"hello")
            connection.sendall(connection.recv(100))
