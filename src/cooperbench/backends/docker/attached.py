"""Connections to the stdin and stdout of processes in containers.

With `Upgrade: tcp` in a request, the engine uses the connection of that request for the process.
docker-py has no public way to this connection, nor to the bytes that arrive together with the
response. So this module opens a connection and sends the request itself.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_UPGRADED = (101, 200)
"""Statuses of a response after which the connection belongs to the process."""
_MAX_RESPONSE_BYTES = 1 << 20
_READ_SIZE = 1 << 16
_END_OF_HEADERS = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.\d (\d{3})")
_CONTENT_LENGTH = re.compile(rb"^content-length: *(\d+) *\r?$", re.IGNORECASE | re.MULTILINE)
_SSH_COMMAND = "docker system dial-stdio"
"""Connects stdin and stdout of an SSH session with the engine on that machine, as docker does."""


class Refused(Exception):
    """The engine did not hand over the connection; the text is its message."""

    def __init__(self, status: int, message: str) -> None:
        """Store the status of the HTTP response."""
        super().__init__(message)
        self.status = status


class Attached(NamedTuple):
    """A connection to a process."""

    connection: socket.socket
    """A socket, or paramiko's SSH channel, which has the same methods."""
    first_bytes: bytes
    """Output of the process that arrived with the response."""


def attach(
    api: Any, address: str, path: str, body: Mapping[str, object] | None, timeout_seconds: float
) -> Attached:
    """Send a request that connects a process, and return the connection.

    Args:
        api: docker-py's client. It has the certificates and the SSH session.
        address: The engine's address.
        path: The path in the engine's API, with its query.
        body: The content of the request. Where the API has none it must be None: Podman would pass
            it on to the process.
        timeout_seconds: Time limit of each step.

    Raises:
        Refused: The engine sent an error, for example because the container has ended.
        OSError: The engine is not reachable or does not answer.
    """
    connection = _connect(api, address, timeout_seconds)
    try:
        connection.settimeout(timeout_seconds)
        connection.sendall(_request(f"/v{api.api_version}{path}", body))
        headers, _, rest_of_response = _receive_headers(connection).partition(_END_OF_HEADERS)
        status = _status_of(headers)
        if status not in _UPGRADED:
            message = _receive_message(connection, headers, rest_of_response)
            raise Refused(status, message)
    except BaseException:
        connection.close()
        raise
    return Attached(connection, rest_of_response)


def _connect(api: Any, address: str, timeout_seconds: float) -> socket.socket:
    if address.startswith(("unix://", "http+unix://")):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_seconds)
        try:
            connection.connect(address.partition("://")[2])
        except OSError:
            connection.close()
            raise
        return connection
    if address.startswith("ssh://"):
        transport = api.get_adapter(api.base_url).ssh_client.get_transport()
        channel: Any = transport.open_session(timeout=timeout_seconds)
        channel.exec_command(_SSH_COMMAND)
        return channel  # type: ignore[no-any-return]  # paramiko's channel has a socket's methods
    url = urlsplit(api.base_url)
    connection = socket.create_connection((url.hostname, url.port), timeout_seconds)
    if url.scheme != "https":
        return connection
    try:
        return _tls_context(api).wrap_socket(connection, server_hostname=url.hostname)
    except OSError:
        connection.close()
        raise


def _tls_context(api: Any) -> ssl.SSLContext:
    """Return the context for the certificates that docker-py's client uses."""
    if isinstance(api.verify, str):
        context = ssl.create_default_context(cafile=api.verify)
    else:
        context = ssl.create_default_context()
    if not api.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if api.cert:
        certificate, key = api.cert
        context.load_cert_chain(certificate, key)
    return context


def _request(path: str, body: Mapping[str, object] | None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "User-Agent: cooperbench",
        "Connection: Upgrade",
        "Upgrade: tcp",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + content


def _receive_headers(connection: socket.socket) -> bytes:
    """Return a response up to the end of its headers, with the bytes that arrived after them."""
    response = b""
    while _END_OF_HEADERS not in response:
        data = connection.recv(_READ_SIZE)
        if not data or len(response) > _MAX_RESPONSE_BYTES:
            raise ConnectionError("the engine closed the connection without an answer")
        response += data
    return response


def _status_of(headers: bytes) -> int:
    match = _STATUS_LINE.match(headers)
    if match is None:
        raise ConnectionError("the engine's answer is not HTTP")
    return int(match[1])


def _receive_message(connection: socket.socket, headers: bytes, body: bytes) -> str:
    """Return the message in an error response, of which `body` has arrived already."""
    match = _CONTENT_LENGTH.search(headers)
    size = min(int(match[1]), _MAX_RESPONSE_BYTES) if match else 0
    while len(body) < size:
        data = connection.recv(_READ_SIZE)
        if not data:
            break
        body += data
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace").strip()
        return text or headers.partition(b"\r\n")[0].decode("latin-1")
