"""Interrupted while an image is built or pulled: a run or `images build` ends at once, and so does what the engine was doing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.runner.test_phases import SIGNALS
from tests.support.docker.tasks import DOCKERFILE, write_buildable
from tests.support.runner.harness import Harness

if TYPE_CHECKING:
    from collections.abc import Callable


PHASE_SECONDS = 120.0


def start(
    folder: Path, dockerfile: str, command: str = "run", **variables: str
) -> subprocess.Popen[str]:
    folder.mkdir()
    run = Harness(folder)
    write_buildable(folder / "buildable", dockerfile)
    if command != "run":
        run.words = [sys.executable, "-m", "cooperbench", *command.split()]
    run.words += ["-f", "1,2", "--backend", "docker", "--dataset-dir", str(folder / "buildable")]
    return run.start(**variables)


def wait_until(
    what: Callable[[], object], processes: list[subprocess.Popen[str]] | None = None
) -> None:
    deadline = time.monotonic() + PHASE_SECONDS
    while not what():
        for process in processes or []:
            assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def interrupt(processes: list[subprocess.Popen[str]]) -> None:
    for process, signals in zip(processes, SIGNALS, strict=True):
        for number in signals:
            process.send_signal(number)
            time.sleep(0.1)
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
        assert "Rerun the same command to resume" in output


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def sleeping(words: str) -> list[int]:
    """Processes with just these arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().rstrip(b"\0").split(b"\0") == words.encode().split():
                found.append(int(path.parent.name))
    return found


@pytest.mark.usefixtures("hangup", "docker")
@pytest.mark.parametrize("command", ["run", "images build"])
def test_interrupted_while_an_image_is_built(
    engine_kind: str, base_image: str, tmp_path: Path, command: str
) -> None:
    token = f"sleep 30{os.getpid()}"
    processes = [
        start(
            tmp_path / str(number),
            f"{DOCKERFILE}RUN echo {number} && {token}\n",
            command,
            COOPERBENCH_BUILD_ARGS=f"BASE_IMAGE={base_image}",
        )
        for number in range(len(SIGNALS))
    ]
    try:
        wait_until(lambda: len(sleeping(token)) >= len(SIGNALS), processes)
        interrupt(processes)
        # Podman 4 carries a build to its end although nobody waits for it any more.
        if engine_kind == "docker":
            wait_until(lambda: not sleeping(token))
    finally:
        end(processes)
        for pid in sleeping(token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("hangup", "docker")
def test_interrupted_while_an_image_is_pulled(tmp_path: Path) -> None:
    """From a registry that never answers."""
    registries = [socket.create_server(("127.0.0.1", 0)) for _ in SIGNALS]
    asked: list[socket.socket] = []
    processes = [
        start(
            tmp_path / str(number),
            DOCKERFILE,
            COOPERBENCH_DOCKER_PULL="always",
            COOPERBENCH_IMAGE_TEMPLATE=f"127.0.0.1:{registry.getsockname()[1]}/{{repo}}:task{{task_id}}",
        )
        for number, registry in enumerate(registries)
    ]
    try:
        for registry in registries:
            registry.settimeout(PHASE_SECONDS)
            asked.append(registry.accept()[0])
        interrupt(processes)
    finally:
        end(processes)
        for one in (*asked, *registries):
            one.close()
