"""Any HTTP answer counts as reachable; everything else is one line with the reason and the URL."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from cooperbench.cli import main
from cooperbench.errors import UserError
from cooperbench.runner.config import AgentSpec
from cooperbench.runner.model_server import check_model_servers
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/")))
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def spec(url: str) -> AgentSpec:
    return AgentSpec("mini_swe_agent", "openai/x", None, url)


@pytest.mark.parametrize("status", [200, 302, 401, 404, 405, 500])
def test_any_status_is_an_answer(server: str, status: int) -> None:
    check_model_servers([spec(f"{server}/{status}")])


def test_refused_connection_is_named_with_its_url() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        with pytest.raises(
            UserError, match=f"'openai/x' is not reachable at {url}: Connection ref"
        ):
            check_model_servers([spec(url)])


def test_agents_without_model_need_no_server() -> None:
    check_model_servers([AgentSpec("nop", None, None, "http://127.0.0.1:1")])


def test_answer_that_is_not_http(server: str) -> None:
    del server
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_with_a_banner, args=(listener,))
        thread.start()
        with pytest.raises(UserError, match="the answer is not HTTP"):
            check_model_servers([spec(f"http://127.0.0.1:{listener.getsockname()[1]}")])
        thread.join()


def _answer_with_a_banner(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(b"SSH-2.0-server\r\n")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8765", "--base-url 'localhost:8765' is not a URL; write it like http://"),
        ("http://", "--base-url 'http://' is not a URL"),
        ("http://host:x/v1", "is not a URL"),
        ("ftp://host/v1", "is not a URL"),
        ("http://127.0.0.1:9/v1", "is not reachable at http://127.0.0.1:9/v1: Connection refused"),
    ],
)
def test_run_with_a_wrong_server_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, message: str
) -> None:
    data, logs = write_tiny(tmp_path / "data"), tmp_path / "logs"
    argv = [
        "run",
        "-n",
        "r",
        "-a",
        "tests.integration.runner.test_first_attempt:Picky",
        "-m",
        "openai/x",
    ]
    argv += ["--backend", "local", "--dataset-dir", str(data), "--log-dir", str(logs)]
    assert main([*argv, "--base-url", url]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not logs.exists()
