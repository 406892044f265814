"""Sandboxes on machines: through Google's own client, a real SSH connection and a real engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.gcp import GCPBatchBackend
from cooperbench.sandbox.conformance import SandboxConformance
from tests.support.sandbox.programs import check_programs
from tests.support.team.tool_conformance import ToolConformance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cooperbench.sandbox.contract import Sandbox
    from tests.support.gcp.compute_server import ComputeServer


class TestOverSsh(ToolConformance, SandboxConformance):
    isolated = True
    shared = True
    backend: GCPBatchBackend | None = None

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _machine(cls, compute_session: ComputeServer, gcp_base: str) -> Iterator[None]:
        """One machine for the whole suite."""
        from tests.external.backends.gcp.conftest import gcp_variables

        patch = pytest.MonkeyPatch()
        for name, value in gcp_variables(compute_session, gcp_base).items():
            patch.setenv(name, value)
        cls.backend = GCPBatchBackend()
        yield
        for sandbox in cls.spare:
            sandbox.terminate()
        cls.spare.clear()
        assert len(compute_session.vms) == 1
        cls.backend.close()
        assert not compute_session.vms
        patch.undo()

    @pytest.fixture
    def make_sandbox(self, gcp_base: str) -> Callable[[], Sandbox]:
        backend = self.backend
        assert backend is not None
        return lambda: backend.create_sandbox(gcp_base, timeout=900)

    def test_programs_are_copied_to_the_machine(self, gcp_base: str, tmp_path: Path) -> None:
        assert self.backend is not None
        check_programs(self.backend, gcp_base, tmp_path / "programs")
