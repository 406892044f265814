"""The conformance suite against Docker and Podman."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.sandbox.conformance import SandboxConformance
from tests.support.team.tool_conformance import ToolConformance

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.docker import DockerBackend
    from cooperbench.sandbox.contract import Sandbox


class TestContainers(ToolConformance, SandboxConformance):
    isolated = True
    shared = True

    @pytest.fixture(autouse=True)
    def _engine(self, docker: DockerBackend) -> None:
        # Those of the other engine ended with it.
        self.spare[:] = [sandbox for sandbox in self.spare if sandbox in docker._open]

    @pytest.fixture
    def make_sandbox(self, docker: DockerBackend, base_image: str) -> Callable[[], Sandbox]:
        return lambda: docker.create_sandbox(base_image, timeout=900)

    def test_a_sandbox_whose_processes_were_all_killed(self, sandbox: Sandbox) -> None:
        """The supervisor is process 1, which cannot be killed from inside: it goes on."""
        assert sandbox.run(["bash", "-c", "kill -9 -1"]).returncode == 137
        assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"
