"""Connections to processes in containers: an engine's answers, however they arrive."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.docker.attached import Refused, attach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENGINE = SimpleNamespace(api_version="1.41", base_url="http+docker://localhost")
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
GONE = b'{"message": "No such container: abc"}'
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(GONE)


@contextmanager
def engine_that_sends(folder: Path, *pieces: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of an engine that answers one request, and its requests."""
    path = folder / "engine.sock"
    requests: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(10_000))
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.01)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"unix://{path}", requests
        thread.join()


def attach_to(where: str, api: Any = ENGINE) -> tuple[bytes, bytes]:
    """Return the bytes that arrived with the answer, and all that follow."""
    connection, first_bytes = attach(api, where, "/exec/1/start", {"Tty": False}, 30)
    with connection:
        rest = b""
        while data := connection.recv(1000):
            rest += data
    return first_bytes, rest


def test_output_that_arrives_with_the_answer(tmp_path: Path) -> None:
    with engine_that_sends(tmp_path, UPGRADED + b"first", b"second") as (where, requests):
        first_bytes, rest = attach_to(where)
    assert first_bytes + rest == b"firstsecond"
    assert requests[0].startswith(b"POST /v1.41/exec/1/start HTTP/1.1\r\n")
    assert requests[0].endswith(b'\r\n\r\n{"Tty": false}')


def test_an_answer_in_pieces(tmp_path: Path) -> None:
    with engine_that_sends(tmp_path, UPGRADED[:20], UPGRADED[20:-1], b"\n", b"all") as (where, _):
        assert b"".join(attach_to(where)) == b"all"


@pytest.mark.parametrize("cut", [0, 10])
def test_a_refusal_has_the_message_of_the_engine(cut: int, tmp_path: Path) -> None:
    answer = (NOT_FOUND + GONE[:cut], GONE[cut:])
    with (
        engine_that_sends(tmp_path, *answer) as (where, _),
        pytest.raises(Refused, match=r"^No such container: abc$") as caught,
    ):
        attach_to(where)
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("answer", "reason"), [(b"", "without an answer"), (b"no\r\n\r\n", "HTTP")]
)
def test_something_else_than_an_answer(answer: bytes, reason: str, tmp_path: Path) -> None:
    with (
        engine_that_sends(tmp_path, answer) as (where, _),
        pytest.raises(ConnectionError, match=reason),
    ):
        attach_to(where)


def test_nothing_listens(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        attach_to(f"unix://{tmp_path}/none.sock")


def test_a_request_without_content(tmp_path: Path) -> None:
    """Podman would pass it on to the process."""
    with engine_that_sends(tmp_path, UPGRADED) as (where, requests):
        connection, _ = attach(ENGINE, where, "/containers/1/attach?stdin=1", None, 30)
        connection.close()
    assert requests[0].endswith(b"Content-Length: 0\r\n\r\n")
