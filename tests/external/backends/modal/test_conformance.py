"""The conformance suite against Modal's client and a control plane of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.sandbox.conformance import SandboxConformance
from tests.support.modal.plane import HOST_IMAGE
from tests.support.team.tool_conformance import ToolConformance

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.modal import ModalBackend
    from cooperbench.sandbox.contract import Sandbox


class TestChannel(ToolConformance, SandboxConformance):
    isolated = True
    shared = True

    @pytest.fixture
    def make_sandbox(self, modal_of_class: ModalBackend) -> Callable[[], Sandbox]:
        return lambda: modal_of_class.create_sandbox(HOST_IMAGE, timeout=300)
