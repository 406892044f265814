"""The judged command: nothing that it starts can change what is reported of it."""

from __future__ import annotations

import hashlib
import platform
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import SandboxDead, SandboxDestroyed, SandboxError
from cooperbench.eval.test_runs import RUNNER, run_tests
from cooperbench.sandbox.contract import SandboxOptions
from tests.support.paths import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.backends.docker import DockerBackend
    from cooperbench.backends.docker.sandbox import DockerSandbox


@pytest.fixture
def sandbox(docker: DockerBackend, base_image: str) -> Iterator[DockerSandbox]:
    options = SandboxOptions(for_test_run=True)
    sandbox = docker.create_sandbox(base_image, timeout=300, workdir="/", options=options)
    yield sandbox
    sandbox.terminate()


@pytest.mark.parametrize("attack", ["memory", "trace", "rewrite", "answer", "kill"])
def test_an_exit_code_cannot_be_forged(sandbox: DockerSandbox, attack: str) -> None:
    if attack in ("memory", "trace") and platform.machine() != "x86_64":
        pytest.skip("the attack is written for another processor")
    sandbox.write_file("/forge.py", (SUPPORT / "docker" / "forge.py").read_bytes())
    sandbox.write_file(
        RUNNER, b"#!/bin/bash\npython3 /forge.py %s\necho end\nexit 3\n" % attack.encode()
    )
    run = run_tests(sandbox, b"", None, 60)
    assert run.exit_code == (1 if attack == "kill" else 3), run.output
    if attack in ("memory", "trace"):
        assert "own process: 0\n" in run.output, "the attack itself has to work"
        assert "not permitted" in run.output or "denied" in run.output


def test_a_runner_notices_no_difference(sandbox: DockerSandbox) -> None:
    runner = b"""#!/bin/bash
set -euo pipefail
trap 'echo cleaned >&2' EXIT
echo "$0 ${BASH_SOURCE[0]} $* $(id -u) $(id -g) $(pwd)"
exec bash -c 'kill -TERM $$'
"""
    sandbox.write_file(RUNNER, runner)
    run = run_tests(sandbox, b"tests", b"patch", 60)
    assert run.output.startswith(f"{RUNNER} {RUNNER} tests.patch feature.patch 0 0 /\n")
    assert run.exit_code == 143
    with pytest.raises(SandboxDead, match="its last command was run"):
        sandbox.run(["true"])


def test_output_is_apart_and_capped_and_time_is_limited(sandbox: DockerSandbox) -> None:
    script = "echo problem >&2; head -c 100000 /dev/zero; sleep 60"
    result = sandbox.run_last(["bash", "-c", script], timeout_seconds=3, output_limit=1000)
    assert (result.returncode, result.timed_out) == (124, True)
    assert result.stderr == b"problem\n"
    assert len(result.stdout) == 1000
    assert result.stdout_cut == 99_000


@pytest.mark.parametrize("deed", ["kill", "remove"])
def test_a_container_that_goes_from_outside_is_no_result(
    docker: DockerBackend, sandbox: DockerSandbox, deed: str
) -> None:
    def act() -> None:
        time.sleep(1)
        if deed == "kill":
            docker.engine.api.kill(sandbox.container)
        else:
            docker.engine.api.remove_container(sandbox.container, force=True)

    thread = threading.Thread(target=act)
    thread.start()
    with pytest.raises(SandboxError) as caught:
        sandbox.run_last(["sleep", "30"], timeout_seconds=60)
    thread.join()
    assert docker.engine.podman or not isinstance(caught.value, SandboxDestroyed)


def test_files_of_a_judged_command_arrive_whole(sandbox: DockerSandbox) -> None:
    large = bytes(range(256)) * 10_000
    sandbox.write_file("/new folder/it's.bin", large)
    sandbox.write_file("empty", b"")
    sandbox.write_file("/tool", b"#!/bin/sh\necho tool\n", 0o755)
    result = sandbox.run_last(
        ["sh", "-c", "/tool && sha256sum '/new folder/it'*; stat -c %s /empty; cat"],
        timeout_seconds=60,
    )
    digest = hashlib.sha256(large).hexdigest()
    assert result.stdout_read() == f"tool\n{digest}  /new folder/it's.bin\n0\n"
    assert result.returncode == 0


def test_what_a_judged_command_started_ends_with_the_harness(sandbox: DockerSandbox) -> None:
    def disconnect() -> None:
        time.sleep(1)
        sandbox._stream._socket.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=disconnect)
    thread.start()
    started = time.monotonic()
    result = sandbox.run_last(["bash", "-c", "sleep 60; exit 3"], timeout_seconds=50)
    thread.join()
    assert result.returncode == 3
    assert time.monotonic() - started < 30


def test_test_command_needs_its_files(sandbox: DockerSandbox) -> None:
    sandbox.write_file("/dev/full", b"x" * 100_000)
    # Podman may lose a container's last words when input of it is left.
    why = "No space left"
    if sandbox._engine.podman:
        why = "(No space left|connection reset by peer|broken pipe)"
    with pytest.raises(SandboxError, match=f"did not run its command: .*{why}") as caught:
        sandbox.run_last(["echo", "run"], timeout_seconds=60)
    assert not isinstance(caught.value, SandboxDestroyed)
