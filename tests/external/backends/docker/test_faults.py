"""No engine, no permission, no package: one line that says what to do. No engine is needed for these."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.engine import NotThere, connect, connection_error, translate
from cooperbench.cli import main
from cooperbench.errors import InfraError, UserError
from tests.support.requirements import require_module

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "CONTAINER_HOST", "DOCKER_CONTEXT", "MSWEA_DOCKER_EXECUTABLE"):
        monkeypatch.delenv(name, raising=False)


def test_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    backend = DockerBackend()
    with pytest.raises(
        UserError, match=r"cannot connect to the Docker daemon.*systemctl start docker"
    ) as caught:
        backend.create_sandbox("any")
    assert "\n" not in str(caught.value)


def test_a_client_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSWEA_DOCKER_EXECUTABLE", "nosuch")
    with pytest.raises(
        UserError, match="no program 'nosuch' found; MSWEA_DOCKER_EXECUTABLE is docker"
    ):
        DockerBackend().check()


def test_a_run_without_an_engine_stops_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said once, not for each pair, and no pair counts as tried."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    words = [
        "-n",
        "r",
        "-a",
        "oracle",
        "--no-messaging",
        "--dataset-dir",
        "demo",
        "--log-dir",
        str(tmp_path / "logs"),
    ]
    assert main(["run", "--backend", "docker", *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("cooperbench: cannot connect to the Docker daemon")
    assert said.err.count("\n") == 1
    assert not list((tmp_path / "logs").rglob("result.json"))


def test_no_engine_is_said_once_with_asserts_switched_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    argv = [sys.executable, "-O", "-m", "cooperbench", "images", "build", "--dataset-dir", "demo"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("cooperbench: cannot connect to the Docker daemon")
    assert done.stderr.count("\n") == 1


def test_a_package_for_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    require_module("docker")
    if find_spec("paramiko"):
        pytest.skip("paramiko is installed here")
    monkeypatch.setenv("DOCKER_HOST", "ssh://nobody@127.0.0.1")
    with pytest.raises(UserError, match=r"pip install 'docker\[ssh\]'"):
        connect()


def test_nobody_listens_at_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(UserError, match=r"--backend local \(\[Errno 111\] Connection refused\)$"):
        connect()


def test_no_podman(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONTAINER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(UserError, match=r"cannot connect to Podman.*CONTAINER_HOST"):
        connect("/opt/bin/podman")


def test_podman_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(UserError, match=r"no program '.*/podman' found"):
        connect(str(tmp_path / "podman"))


def test_no_permission() -> None:
    error = connection_error(
        PermissionError(13, "Permission denied"), "unix:///run/docker.sock", "Docker"
    )
    assert "usermod -aG docker" in str(error)


def test_something_that_is_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "odd.sock"))
        server.listen()

        def answer() -> None:
            while True:
                client, _ = server.accept()
                with client:
                    # The first only knocks.
                    if client.recv(1000):
                        client.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n[]")
                        return

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/odd.sock")
        with pytest.raises(UserError, match="cannot connect"):
            connect()
        thread.join()


def test_an_unknown_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "no-such-context")
    with pytest.raises(UserError, match=r"no-such-context.*available: .*default"):
        connect()


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ("write /var/lib/docker: no space left on device", UserError, "docker system prune -a"),
        ("the --mount option requires BuildKit", UserError, "needs BuildKit"),
        ("container abc is not running", NotThere, "not running"),
        (
            "container abc does not exist in database: no such container",
            NotThere,
            "no such container",
        ),
        ("something unheard of", InfraError, "something unheard of"),
    ],
)
def test_the_engines_words_decide(words: str, kind: type[Exception], message: str) -> None:
    error = translate(RuntimeError(words), "doing it")
    assert isinstance(error, kind)
    assert message in str(error)


def test_without_the_package_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['docker'] = None\n"
        "from cooperbench.eval.backends import get_backend\n"
        "from cooperbench.errors import UserError\n"
        "try:\n    get_backend('docker').create_sandbox('any')\n"
        "except UserError as error:\n    print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "pip install 'cooperbench[docker]'" in said


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = "import sys, cooperbench.backends.docker; print('docker' in sys.modules, 'requests' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == ["False", "False"]
