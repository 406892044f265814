"""Whatever way a harness ends, nothing of it stays; and nothing of anybody else's is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.containers import remove_leftovers
from cooperbench.backends.ownership import this_owner
from tests.support.docker.killed_harness import COUNT
from tests.support.paths import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cooperbench.backends.docker.engine import Engine


def names(engine: Engine, **labels: str) -> set[str]:
    filters = {"label": [f"{name}={value}" for name, value in labels.items()]} if labels else {}
    return {
        found["Names"][0].lstrip("/") for found in engine.api.containers(all=True, filters=filters)
    }


def start_harness(image: str) -> tuple[subprocess.Popen[str], list[str]]:
    """A harness in its own process, with two sandboxes open."""
    script = str(SUPPORT / "docker" / "killed_harness.py")
    process = subprocess.Popen([sys.executable, script, image], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, [process.stdout.readline().strip() for _ in range(COUNT)]


def end_harness(process: subprocess.Popen[str], number: int) -> int:
    process.send_signal(number)
    with process:
        return process.wait(60)


@pytest.fixture
def foreign(docker: DockerBackend, base_image: str) -> Iterator[str]:
    """A container of somebody else's: not labelled by us."""
    made = docker.engine.api.create_container(
        base_image, ["sleep", "300"], labels={"somebody": "else"}
    )
    docker.engine.api.start(made["Id"])
    yield docker.engine.api.inspect_container(made["Id"])["Name"].lstrip("/")
    docker.engine.api.remove_container(made["Id"], force=True)


def test_what_a_killed_harness_left_is_removed_at_the_next_start(
    docker: DockerBackend, another: Callable[..., DockerBackend], base_image: str, foreign: str
) -> None:
    mine = docker.create_sandbox(base_image)
    process, sandboxes = start_harness(base_image)
    end_harness(process, signal.SIGKILL)
    assert set(sandboxes) <= names(docker.engine)
    another().check()
    assert not set(sandboxes) & names(docker.engine)
    assert {mine.container, foreign} <= names(docker.engine)
    session = sandboxes[0].rpartition("-")[0]
    assert not [
        found for found in docker.engine.api.networks() if found["Name"].startswith(session)
    ]
    mine.terminate()


def test_the_command_clean_does_the_same(docker: DockerBackend, base_image: str) -> None:
    process, sandboxes = start_harness(base_image)
    end_harness(process, signal.SIGKILL)
    DockerBackend.clean()
    assert not set(sandboxes) & names(docker.engine)


def test_the_sandboxes_of_a_killed_harness_end_by_themselves(
    docker: DockerBackend, base_image: str
) -> None:
    """Long before their time is over: the line to the harness has ended."""
    process, sandboxes = start_harness(base_image)
    end_harness(process, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while any(docker.engine.api.inspect_container(name)["State"]["Running"] for name in sandboxes):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    remove_leftovers(docker.engine)


def test_an_interrupted_harness_leaves_nothing(docker: DockerBackend, base_image: str) -> None:
    process, sandboxes = start_harness(base_image)
    assert end_harness(process, signal.SIGINT) != 0
    assert not set(sandboxes) & names(docker.engine)


def test_only_dead_owners_of_this_machine_lose_their_containers(
    docker: DockerBackend, base_image: str
) -> None:
    me = this_owner()
    gone = me._replace(pid=2**22 + 1, start="1")
    owners = {
        "alive": str(me),
        "dead": str(gone),
        "same pid, other process": str(me._replace(start="1")),
        "other machine": str(gone._replace(machine="another")),
        "other user": str(gone._replace(user=str(os.getuid() + 1))),
        "other namespace": str(gone._replace(namespace="1")),
        "nonsense": "a/b",
        "empty": "",
    }
    api = docker.engine.api
    made = {
        name: api.create_container(base_image, ["true"], labels={"cooperbench.owner": owner})["Id"]
        for name, owner in owners.items()
    }
    try:
        remove_leftovers(docker.engine)
        left = {found["Id"] for found in api.containers(all=True)}
        removed = {name for name, container in made.items() if container not in left}
        assert removed == {"dead", "same pid, other process"}
    finally:
        for name, container in made.items():
            if name not in removed:
                api.remove_container(container, force=True)
