"""`cooperbench view`: the same page while a run goes on, for this machine's user alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.report.page.live_server import LiveServer
from tests.support.report.factory import TALK
from tests.support.report.live import finish, run_with, served

if TYPE_CHECKING:
    from pathlib import Path


def ask(
    server: LiveServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def cell(overview: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        pair["cells"][0] for pair in overview["pairs"] if pair["name"] == name
    )
    return found


def test_overview_and_details_follow_the_files(tmp_path: Path) -> None:
    with served(run_with(tmp_path, "killed")) as server:
        _, headers, body = ask(server, "/overview")
        overview = json.loads(body)
        assert (cell(overview, "f1_f2")["outcome"], cell(overview, "f1_f3")["outcome"]) == (
            "passed",
            "running",
        )
        assert overview["finished"] is False
        assert ask(server, "/overview", **{"If-None-Match": headers["ETag"]})[0] == 304
        place = f"/detail/{cell(overview, 'f1_f3')['id']}"
        _, running, _ = ask(server, place)
        finish(tmp_path, "conflict")
        status, _, body = ask(server, "/overview", **{"If-None-Match": headers["ETag"]})
        assert status == 200
        assert cell(json.loads(body), "f1_f3")["outcome"] == "conflict"
        status, _, body = ask(server, place, **{"If-None-Match": running["ETag"]})
        assert status == 200
        assert [one["text"] for one in json.loads(body)["messages"]] == [talk.text for talk in TALK]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""]
)
def test_other_names_for_this_server_get_nothing(tmp_path: Path, host: str) -> None:
    with served(run_with(tmp_path, "passed")) as server:
        port = server.server_port
        for path in ("/", "/overview", "/detail/0"):
            assert ask(server, path, Host=host.format(port=port))[0] == 403
        assert ask(server, "/", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/raw/going/config.json",
        "/../../etc/passwd",
        "/detail/99",
        "/detail/-1",
        "/detail/%C2%B2",
        "/elsewhere",
    ],
)
def test_nothing_but_the_page_and_its_pairs_can_be_asked_for(tmp_path: Path, path: str) -> None:
    with served(run_with(tmp_path, "passed")) as server:
        assert ask(server, path)[0] == 404
        good, headers, body = ask(server, "/detail/0")
        assert (good, headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert json.loads(body)["outcome"] == "passed"


def test_it_only_reads_and_says_what_a_browser_may_do(tmp_path: Path) -> None:
    with served(run_with(tmp_path, "passed")) as server:
        assert [ask(server, "/", method)[0] for method in ("POST", "PUT", "DELETE")] == [501] * 3
        _, headers, body = ask(server, "/")
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert policy.endswith("frame-ancestors 'none'")
        assert b"<script>" in body


def test_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    run_with(tmp_path, "passed")
    command = [
        sys.executable,
        "-m",
        "cooperbench",
        "view",
        "--no-browser",
        "--log-dir",
        str(tmp_path),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/", url)
        assert found, url
        connection = HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        connection.request("GET", "/overview")
        assert len(json.loads(connection.getresponse().read())["pairs"]) == 2
        # A connection that asks for nothing, as browsers keep them, must not hold up the end.
        connection.connect()
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        connection.close()
    assert (process.returncode, errors) == (0, "")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # At once: it may not serve yet.
        os.kill(process.pid, signal.SIGINT)
        assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nothing"], "no run 'nothing'"),
        (["--port", "70000"], "not a port"),
        (["--log-dir", "nowhere"], "no run in nowhere"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, words: list[str], line: str) -> None:
    run_with(tmp_path, "passed")
    command = [
        sys.executable,
        "-m",
        "cooperbench",
        "view",
        "--no-browser",
        "--log-dir",
        str(tmp_path),
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
