"""What only a container does: its ways to end, its limits, its network, its privileges, its labels."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.docker import DockerBackend
from cooperbench.errors import (
    InfraError,
    SandboxDead,
    SandboxDestroyed,
    SandboxError,
    SandboxTimeout,
    UserError,
)
from cooperbench.sandbox.contract import SandboxOptions
from tests.external.backends.docker.conftest import build_image
from tests.support.sandbox.programs import check_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cooperbench.backends.docker.sandbox import DockerSandbox


class Relay:
    """A socket through which an engine is reached, until it is cut: then whoever calls is hung up on."""

    def __init__(self, target: str, path: Path) -> None:
        self.path = path
        self._target = target
        self._is_cut = False
        self._open: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def sandbox(docker: DockerBackend, base_image: str) -> Iterator[DockerSandbox]:
    sandbox = docker.create_sandbox(base_image, timeout=300)
    yield sandbox
    sandbox.terminate()


def exists(docker: DockerBackend, container: str) -> bool:
    return bool(docker.engine.api.containers(all=True, filters={"name": [container]}))


def test_it_ends_by_itself_when_its_time_is_over(docker: DockerBackend, base_image: str) -> None:
    sandbox = docker.create_sandbox(base_image, timeout=4)
    with pytest.raises(SandboxDead, match="lifetime of 4 s"):
        sandbox.run(["sleep", "60"])
    with pytest.raises(SandboxDead, match="lifetime of 4 s"):
        sandbox.run(["true"])
    assert not exists(docker, sandbox.container)


def test_killing_the_timer_does_not_end_it(sandbox: DockerSandbox) -> None:
    script = """
        for file in /proc/[0-9]*/cmdline; do
            mapfile -d '' -t words <"$file" && [[ ${words[0]} == sleep ]] && kill "${file//[^0-9]/}"
        done
        true
    """
    assert sandbox.run(["bash", "-c", script]).returncode == 0
    assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"


def test_a_command_that_kills_the_channel(sandbox: DockerSandbox) -> None:
    script = "kill -9 $(awk '/^PPid/ {print $2}' /proc/$PPID/status)"
    assert sandbox.run(["bash", "-c", script]).returncode == 137
    assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"


def test_a_container_that_somebody_kills(docker: DockerBackend, sandbox: DockerSandbox) -> None:
    """Podman has it in no log, and only what is proven is nobody's fault."""
    docker.engine.api.kill(sandbox.container)
    with pytest.raises(SandboxDead, match="killed") as caught:
        sandbox.run(["true"])
    assert isinstance(caught.value, SandboxDestroyed) == docker.engine.podman


def test_a_container_that_somebody_removes(docker: DockerBackend, sandbox: DockerSandbox) -> None:
    docker.engine.api.remove_container(sandbox.container, force=True)
    with pytest.raises(SandboxDead, match="removed") as caught:
        sandbox.run(["true"])
    assert not isinstance(caught.value, SandboxDestroyed)


def test_an_engine_that_goes(
    docker: DockerBackend, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from here: nobody answers any more, and all connections are closed."""
    relay = Relay(docker.engine.where.removeprefix("unix://"), tmp_path / "engine.sock")
    for name in ("DOCKER_HOST", "CONTAINER_HOST"):
        monkeypatch.setenv(name, f"unix://{relay.path}")
    backend = DockerBackend(cache_dir=docker._cache_dir)
    try:
        sandbox = backend.create_sandbox(base_image)
        assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"
        relay.cut()
        with pytest.raises(InfraError, match="engine is gone") as caught:
            sandbox.run(["true"])
        assert not isinstance(caught.value, SandboxDestroyed)
    finally:
        backend.close()
        relay.close()
        docker.engine.remove_container(sandbox.container)


def shim_of(sandbox: DockerSandbox) -> int:
    stat = Path(f"/proc/{sandbox._state()['Pid']}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def kill_shim(sandbox: DockerSandbox) -> None:
    os.kill(shim_of(sandbox), signal.SIGKILL)


def test_an_engine_that_does_not_answer_about_one_container(
    docker: DockerBackend, base_image: str, engine_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits for a process which an agent stops: whether it answers about others, the caller finds out."""
    if engine_kind != "docker":
        pytest.skip("Podman has no process beside a container that it asks")
    sandbox = docker.create_sandbox(base_image)
    monkeypatch.setattr("cooperbench.sandbox.channel.BACKSTOP_SECONDS", 0.5)
    monkeypatch.setattr(docker.engine.api, "timeout", 2)
    shim = shim_of(sandbox)
    os.kill(shim, signal.SIGSTOP)
    try:
        with pytest.raises(SandboxTimeout):
            sandbox.run(["true"], timeout_seconds=0.5)
    finally:
        os.kill(shim, signal.SIGCONT)
        monkeypatch.undo()
        docker.engine.remove_container(sandbox.container)


@pytest.mark.parametrize("judged", [False, True])
def test_killed_shim_is_not_the_agents_fault(
    docker: DockerBackend, base_image: str, engine_kind: str, judged: bool
) -> None:
    if engine_kind != "docker":
        pytest.skip("Podman has others")
    sandbox = docker.create_sandbox(base_image, options=SandboxOptions(for_test_run=judged))
    timer = threading.Timer(1, kill_shim, [sandbox])
    timer.start()
    run = partial(sandbox.run_last, timeout_seconds=60) if judged else sandbox.run
    with pytest.raises(SandboxError) as caught:
        run(["sleep", "60"])
    assert not isinstance(caught.value, SandboxDestroyed)
    timer.join()
    sandbox.terminate()


@pytest.mark.parametrize(
    "deed",
    [
        "rm -f /bin/bash /usr/bin/bash; kill -9 -1",
        "kill -USR1 1; kill -9 -1",
    ],
)
def test_a_sandbox_that_is_destroyed_from_inside(sandbox: DockerSandbox, deed: str) -> None:
    with pytest.raises(SandboxDestroyed):
        sandbox.run(["bash", "-c", deed])
    with pytest.raises(SandboxDestroyed):
        sandbox.run(["true"])


def test_a_command_that_stops_everything_is_timed_out(
    sandbox: DockerSandbox, engine_kind: str
) -> None:
    if engine_kind != "docker":
        pytest.skip("takes long, and is the same on both engines")
    result = sandbox.run(["sh", "-c", "kill -STOP -1"], timeout_seconds=1)
    assert (result.returncode, result.timed_out) == (124, True)
    assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"


def test_a_sandbox_whose_supervisor_dies_of_its_memory(
    another: Callable[..., DockerBackend], base_image: str
) -> None:
    sandbox = another(memory="64m").create_sandbox(base_image)
    script = "echo 1000 >/proc/1/oom_score_adj; head -c 400M /dev/zero | tail; sleep 30"
    with pytest.raises(SandboxDestroyed, match="it exceeded its memory limit"):
        sandbox.run(["bash", "-c", script])


def test_a_command_that_runs_out_of_memory(
    another: Callable[..., DockerBackend], base_image: str
) -> None:
    sandbox = another(memory="64m").create_sandbox(base_image)
    result = sandbox.run(["python3", "-c", "bytearray(400_000_000)"])
    assert result.returncode == 137
    assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"


def test_the_number_of_processes_is_limited(
    another: Callable[..., DockerBackend], base_image: str
) -> None:
    sandbox = another(pids_limit=40).create_sandbox(base_image)
    result = sandbox.run(
        ["sh", "-c", "for i in $(seq 100); do sleep 30 & done; wait"], timeout_seconds=10
    )
    assert b"fork" in result.stderr.lower()


def test_no_network_unless_asked_for(docker: DockerBackend, base_image: str) -> None:
    interfaces = ["sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1"]
    closed = docker.create_sandbox(base_image)
    assert closed.run(interfaces).stdout.split() == [b"lo"]
    closed.terminate()
    opened = docker.create_sandbox(base_image, options=SandboxOptions(network="public"))
    assert set(opened.run(interfaces).stdout.split()) > {b"lo"}
    opened.terminate()


def test_servers_on_the_loopback_work_without_a_network(sandbox: DockerSandbox) -> None:
    script = """
import socket
for name in ("localhost", "127.0.0.1", socket.gethostname()):
    with socket.create_server((name, 0)) as server, socket.create_connection(server.getsockname()[:2], 5) as client:
        print(client.getpeername()[0].split(".")[0])
"""
    assert sandbox.run(["python3", "-c", script]).stdout_read().split() == ["127"] * 3


def test_privileges_are_few_and_cannot_grow(sandbox: DockerSandbox) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in sandbox.run(["cat", "/proc/self/status"]).stdout_read().splitlines()
    )
    assert status["NoNewPrivs"] == "1"
    # CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0b100_1111_1011
    assert sandbox.run(["mknod", "/tmp/device", "b", "8", "0"]).returncode != 0
    assert sandbox.run(["mount", "-t", "tmpfs", "none", "/mnt"]).returncode != 0


def test_commands_of_ours_are_found_first(sandbox: DockerSandbox) -> None:
    sandbox.write_file("/cooperbench/bin/git", b"#!/bin/sh\necho ours\n", 0o755)
    assert sandbox.run(["git"]).stdout == b"ours\n"


def test_labels_tell_whose_it_is(docker: DockerBackend, base_image: str) -> None:
    options = SandboxOptions(
        "agent", "none", {"run": "my run", "pair": "a/task1 f1_f2", "agent": "agent1"}
    )
    sandbox = docker.create_sandbox(base_image, options=options)
    labels = docker.engine.api.inspect_container(sandbox.container)["Config"]["Labels"]
    sandbox.terminate()
    names = ("run", "pair", "agent", "purpose")
    expected = ["my run", "a/task1 f1_f2", "agent1", "agent"]
    assert [labels[f"cooperbench.{name}"] for name in names] == expected
    assert "cooperbench.owner" in labels


def test_streams_talk_and_end_with_all_their_processes(sandbox: DockerSandbox) -> None:
    script = "sleep 987 & echo ready; read -r line; echo got $line; sleep 987"
    stream = sandbox.open_stream(["bash", "-c", script])
    assert stream.stdout.readline() == b"ready\n"
    stream.stdin.write(b"hello\n")
    assert stream.stdout.readline() == b"got hello\n"
    stream.close()
    stream.close()
    count = sandbox.run(["sh", "-c", "grep -l -s '98[7]' /proc/[0-9]*/cmdline | wc -l"]).stdout
    assert int(count) == 0


def test_mounts(another: Callable[..., DockerBackend], base_image: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from outside")
    sandbox = another(mounts=[f"{tmp_path}:/mnt/a", f"{tmp_path}:/mnt/b:rw"]).create_sandbox(
        base_image
    )
    assert sandbox.read_file("/mnt/a/file") == b"from outside"
    assert sandbox.run(["touch", "/mnt/a/new"]).returncode != 0
    assert sandbox.run(["touch", "/mnt/b/new"]).returncode == 0
    assert (tmp_path / "new").exists()


def test_a_mount_of_nothing(
    another: Callable[..., DockerBackend], base_image: str, tmp_path: Path
) -> None:
    mounted = another(mounts=[f"{tmp_path}/not-there:/mnt/a"])
    with pytest.raises(UserError, match=r"not-there.*mount's source"):
        mounted.create_sandbox(base_image)


def test_an_image_that_is_not_there(docker: DockerBackend) -> None:
    with pytest.raises(
        UserError, match=r"there is no image nobody/has:this; get it: (docker|podman) pull"
    ):
        docker.create_sandbox("nobody/has:this")


def test_an_image_without_sh(docker: DockerBackend, base_image: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("nothing else")
    image = build_image(docker, tmp_path, "empty", "FROM scratch\nCOPY file /file\n")
    with pytest.raises(UserError, match="no sh"):
        docker.create_sandbox(image)


def test_an_image_that_runs_as_another_user(
    docker: DockerBackend, base_image: str, tmp_path: Path
) -> None:
    image = build_image(
        docker, tmp_path, "user", f"FROM {base_image}\nRUN useradd -m worker\nUSER worker\n"
    )
    sandbox = docker.create_sandbox(image, workdir="/home/worker")
    sandbox.write_file("/patches/a.patch", b"content")
    assert sandbox.run(["sh", "-c", "id -un; cat /patches/a.patch"]).stdout == b"worker\ncontent"
    sandbox.terminate()


@pytest.mark.parametrize(("tool", "path"), [("bash", "/bin/bash"), ("split", "/usr/bin/split")])
def test_an_image_without_a_tool_is_refused_in_one_line(
    docker: DockerBackend, base_image: str, tmp_path: Path, tool: str, path: str
) -> None:
    image = build_image(docker, tmp_path, f"no-{tool}", f"FROM {base_image}\nRUN rm {path}\n")
    with pytest.raises(UserError) as caught:
        docker.create_sandbox(image)
    assert str(caught.value).startswith(
        f"the image {image} cannot be used: {tool} is missing; tasks need sh, bash"
    )
    assert not docker._open


def test_closing_the_backend_ends_everything(docker: DockerBackend, base_image: str) -> None:
    backend = DockerBackend(cache_dir=docker._cache_dir)
    sandbox = backend.create_sandbox(base_image, options=SandboxOptions(network="public"))
    label = f"cooperbench.session={backend.session.name}"
    backend.close()
    with pytest.raises(SandboxDead, match="closed"):
        sandbox.run(["true"])
    assert docker.engine.api.containers(all=True, filters={"label": [label]}) == []
    assert docker.engine.api.networks(filters={"label": [label]}) == []


def test_programs_are_shown_read_only(
    docker: DockerBackend, base_image: str, tmp_path: Path
) -> None:
    check_programs(docker, base_image, tmp_path / "programs")
