"""The real programs from npm, installed once by version into the tests' cache, and sandboxes that show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.manager import open_sandbox
from tests.support.agents.frameworks import DATA, provide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.backends.local import LocalBackend
    from cooperbench.sandbox.contract import Sandbox


@pytest.fixture
def sandbox(local: LocalBackend) -> Iterator[Sandbox]:
    """With the smallest of the programs."""
    provide("gemini_cli")
    options = SandboxOptions("agent", programs=DATA / "agents" / "gemini_cli" / "programs")
    sandbox = open_sandbox(local, "host", timeout_seconds=300, options=options)
    yield sandbox
    sandbox.terminate()
