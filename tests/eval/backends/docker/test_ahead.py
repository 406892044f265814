"""Sandboxes that are started before anybody asks for them are as good as any, and stay nobody's burden."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import SandboxDead, UserError
from cooperbench.eval.backends.base import SandboxOptions
from cooperbench.eval.backends.docker import DockerBackend

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_SECONDS = 60.0


class Waiting:
    """The containers of one label of ours, which each test has for itself."""

    def __init__(self, backend: DockerBackend, run: str) -> None:
        self._backend = backend
        self.options = SandboxOptions(
            "agent", "none", {"run": run, "pair": "a/task1 f1_f2", "agent": "agent1"}
        )
        self._filters = {"label": [f"cooperbench.run={run}"]}

    def containers(self) -> list[str]:
        found = self._backend.engine.api.containers(all=True, filters=self._filters)
        return [container["Id"] for container in found if container["State"] == "running"]

    def start(self, image: str, timeout: int = 300) -> str:
        """Have one started ahead; its container."""
        self._backend.expect(image, timeout, options=self.options)
        (started,) = self.until(1)
        return started

    def until(self, count: int) -> list[str]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(found := self.containers()) != count:
            assert time.monotonic() < deadline, f"{len(found)} containers, not {count}"
            time.sleep(0.05)
        return found


@pytest.fixture
def backend(docker: DockerBackend) -> Iterator[DockerBackend]:
    """One of the test's own, which it may close."""
    backend = DockerBackend(cache_dir=docker._cache_dir)
    yield backend
    backend.close()


@pytest.fixture
def waiting(backend: DockerBackend, request: pytest.FixtureRequest) -> Waiting:
    return Waiting(backend, request.node.name)


def test_whoever_asks_gets_the_one_that_was_started(
    backend: DockerBackend, base_image: str, waiting: Waiting
) -> None:
    started = waiting.start(base_image)
    sandbox = backend.create_sandbox(base_image, 300, options=waiting.options)
    assert waiting.containers() == [started]
    assert sandbox.run(["echo", "hello"]).stdout == b"hello\n"
    labels = backend.engine.api.inspect_container(started)["Config"]["Labels"]
    assert (labels["cooperbench.pair"], labels["cooperbench.agent"]) == ("a/task1 f1_f2", "agent1")
    sandbox.terminate()
    assert waiting.containers() == []
    assert not sandbox_is_there(backend, started)


def test_one_is_taken_while_it_starts(backend: DockerBackend, base_image: str, waiting: Waiting) -> None:
    for _ in range(2):
        backend.expect(base_image, 300, options=waiting.options)
    sandboxes = [backend.create_sandbox(base_image, 300, options=waiting.options) for _ in range(2)]
    assert [sandbox.run(["echo", "hello"]).stdout for sandbox in sandboxes] == [b"hello\n"] * 2
    assert len(waiting.containers()) == 2


def test_its_lifetime_counts_from_when_it_is_asked_for(
    backend: DockerBackend, base_image: str, waiting: Waiting
) -> None:
    started = waiting.start(base_image, 3)
    time.sleep(3.5)
    sandbox = backend.create_sandbox(base_image, 3, options=waiting.options)
    assert waiting.containers() == [started]
    began = time.monotonic()
    with pytest.raises(SandboxDead, match="lifetime of 3 s"):
        sandbox.run(["sleep", "60"])
    assert time.monotonic() - began > 1.5


def test_one_with_other_arguments_is_left_alone(
    backend: DockerBackend, base_image: str, waiting: Waiting
) -> None:
    started = waiting.start(base_image)
    other = backend.create_sandbox(base_image, 301, options=waiting.options)
    assert started in waiting.containers()
    assert len(waiting.containers()) == 2
    other.terminate()


def test_one_that_died_meanwhile_is_replaced(
    backend: DockerBackend, base_image: str, waiting: Waiting
) -> None:
    started = waiting.start(base_image)
    backend.engine.api.kill(started)
    sandbox = backend.create_sandbox(base_image, 300, options=waiting.options)
    assert sandbox.run(["echo", "hello"]).stdout == b"hello\n"
    assert not sandbox_is_there(backend, started)


def test_one_that_is_called_off_goes(backend: DockerBackend, base_image: str, waiting: Waiting) -> None:
    call_off = backend.expect(base_image, 300, options=waiting.options)
    waiting.until(1)
    call_off()
    waiting.until(0)
    call_off()
    backend.expect(base_image, 300, options=waiting.options)()  # while it starts
    waiting.until(0)


def test_nothing_stays_when_the_backend_is_closed(
    docker: DockerBackend, base_image: str, request: pytest.FixtureRequest
) -> None:
    backend = DockerBackend(cache_dir=docker._cache_dir)
    waiting = Waiting(backend, request.node.name)
    waiting.start(base_image)
    backend.expect(base_image, 300, options=waiting.options)  # closed while it starts
    backend.close()
    assert Waiting(docker, request.node.name).containers() == []


def test_an_image_that_is_not_there_is_told_when_it_is_asked_for(backend: DockerBackend) -> None:
    backend.expect("cooperbench-test-none:1")
    with pytest.raises(UserError, match="there is no image cooperbench-test-none:1"):
        backend.create_sandbox("cooperbench-test-none:1")


def test_an_image_in_which_no_channel_works(
    backend: DockerBackend, image_without_split: str, waiting: Waiting
) -> None:
    started = waiting.start(image_without_split)
    sandbox = backend.create_sandbox(image_without_split, 300, options=waiting.options)
    assert waiting.containers() == [started]
    assert sandbox.without_channel
    assert sandbox.run(["echo", "hello"]).stdout == b"hello\n"


def sandbox_is_there(backend: DockerBackend, container: str) -> bool:
    found = backend.engine.api.containers(all=True, filters={"id": [container]})
    return bool(found)
