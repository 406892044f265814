"""Agents at the gateway, with a scripted provider behind it."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.agents.base import Limits
from cooperbench.dataset.discovery import discover
from cooperbench.gateway.server import Gateway
from tests.support.gateway.sessions import make_session, recorded_steps
from tests.support.team.agent_sandboxes import AgentSandboxes
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cooperbench.agents.session import AgentSession
    from cooperbench.gateway.access import Access
    from cooperbench.sandbox.contract import Sandbox
    from tests.support.modelserver import ModelServer

KEY = "sk-provider-key-0123456789"


@pytest.fixture(autouse=True)
def _impatient(impatient: None) -> None:
    """All tests of this folder ask a model."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with ExitStack() as stack:
        yield AgentSandboxes(stack).open().sandbox


@dataclass
class At:
    """An agent at the gateway."""

    access: Access
    session: AgentSession
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def record(self) -> list[dict[str, Any]]:
        return recorded_steps(self.session)


class Agents:
    """Makes agents; each has a folder of its own."""

    def __init__(self, tmp_path: Any, sandbox: Sandbox, provider: str) -> None:
        self._folder, self._sandbox, self._provider = tmp_path, sandbox, provider
        (self._pair,) = discover(write_tiny(tmp_path / "data"), features=[1, 2]).pairs
        self._count = 0

    @contextmanager
    def open(
        self,
        model: str = "openai/gpt-4o",
        limits: Limits | None = None,
        settings: Mapping[str, Any] | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[At]:
        self._count += 1
        session = make_session(
            self._folder / str(self._count),
            self._pair,
            "solo",
            model=model,
            sandbox=self._sandbox,
            limits=limits or Limits(),
            stop=stop or threading.Event(),
        )
        gateway = Gateway.shared()
        given = {"api_base": self._base(model), "api_key": KEY, **(settings or {})}
        try:
            with gateway.open(session, given) as access:
                yield At(access, session, gateway.port)
        finally:
            session.recorder.abandon()

    def _base(self, model: str) -> str:
        if model.startswith("anthropic/"):
            return self._provider
        return f"{self._provider}/v1beta" if "gemini/" in model else f"{self._provider}/v1"


@pytest.fixture
def agents(tmp_path: Any, sandbox: Sandbox, server: ModelServer) -> Agents:
    return Agents(tmp_path, sandbox, server.anthropic_url)
