"""The conformance suite, run against the local backend and a plain custom one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.sandbox.conformance import SandboxConformance
from cooperbench.sandbox.plain_sandbox import PlainSandbox
from tests.support.sandbox.plain import PlainBackend
from tests.support.team.tool_conformance import ToolConformance

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.local import LocalBackend
    from cooperbench.sandbox.contract import Sandbox


class TestLocal(ToolConformance, SandboxConformance):
    isolated = True

    @pytest.fixture
    def make_sandbox(self, local: LocalBackend) -> Callable[[], Sandbox]:
        return lambda: local.create_sandbox("host", timeout=300)


class TestPlain(SandboxConformance):
    @pytest.fixture
    def make_sandbox(self) -> Callable[[], Sandbox]:
        own = PlainBackend().create_sandbox("any")
        return lambda: PlainSandbox(own, lifetime_seconds=300, workdir=own.folder)
