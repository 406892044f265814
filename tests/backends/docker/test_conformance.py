"""The conformance suite against Docker and Podman, with a channel and without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import SandboxDead
from cooperbench.sandbox.conformance import SandboxConformance

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.docker import DockerBackend
    from cooperbench.sandbox.contract import RichSandbox


class InContainers(SandboxConformance):
    isolated = True
    shared = True

    @pytest.fixture(autouse=True)
    def _engine(self, docker: DockerBackend) -> None:
        self.has_init = docker.engine.has_init
        self.podman = docker.engine.podman
        # Those of the other engine ended with it.
        self.spare[:] = [sandbox for sandbox in self.spare if sandbox in docker._open._open]


class TestChannel(InContainers):
    @pytest.fixture
    def make_sandbox(self, docker: DockerBackend, base_image: str) -> Callable[[], RichSandbox]:
        return lambda: docker.create_sandbox(base_image, timeout=900)

    def test_a_sandbox_whose_processes_were_all_killed(self, sandbox: RichSandbox) -> None:
        if self.has_init:
            super().test_a_sandbox_whose_processes_were_all_killed(sandbox)
        else:
            # The guardian is process 1, which cannot be killed from inside: it goes on.
            assert sandbox.run(["bash", "-c", "kill -9 -1"]).returncode == 137
            assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"


class TestWithoutChannel(InContainers):
    @pytest.fixture
    def make_sandbox(self, docker: DockerBackend, image_without_split: str) -> Callable[[], RichSandbox]:
        return lambda: docker.create_sandbox(image_without_split, timeout=900)

    def test_a_background_process_can_write_after_its_command_has_ended(self, sandbox: RichSandbox) -> None:
        if not self.podman:
            super().test_a_background_process_can_write_after_its_command_has_ended(sandbox)
            return
        # Podman closes the output of an exec that has ended: only what is redirected lives on.
        script = "(while [ ! -e go ]; do sleep 0.05; done; echo written >late) >/dev/null 2>&1 & echo $!"
        pid = sandbox.run(["bash", "-c", script]).stdout_read().strip()
        wait = 'touch go; while kill -0 "$1" 2>/dev/null; do sleep 0.05; done'
        sandbox.run(["bash", "-c", wait, "bash", pid], timeout_seconds=30)
        assert sandbox.read_file("late") == b"written\n"

    def test_a_sandbox_whose_processes_were_all_killed(self, sandbox: RichSandbox) -> None:
        """The command that kills may get to its end before the container does."""
        if not self.has_init:
            pytest.skip("without an init the guardian cannot be killed from inside")
        with pytest.raises(SandboxDead):
            kill_all_until_dead(sandbox)


def kill_all_until_dead(sandbox: RichSandbox) -> None:
    for _ in range(100):
        sandbox.run(["bash", "-c", "kill -9 -1"])
