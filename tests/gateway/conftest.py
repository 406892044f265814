"""Agents at the gateway, with a scripted provider behind it."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.agents.base import Limits
from cooperbench.agents.recorder import Recorder, read_trajectory
from cooperbench.agents.session import Session
from cooperbench.dataset.discovery import discover
from cooperbench.gateway.server import Gateway
from cooperbench.models import seats_of
from cooperbench.storage import AgentPaths
from tests.agents.mini_swe.conftest import OTHERS_WARNINGS
from tests.modelserver import ModelServer
from tests.team.agent_sandboxes import AgentSandboxes
from tests.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cooperbench.gateway.access import Access
    from cooperbench.sandbox.contract import RichSandbox

KEY = "sk-provider-key-0123456789"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gateway/" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("litellm"))
            for warning in OTHERS_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a provider's recovery, or uses the user's keys."""
    monkeypatch.setenv("COOPERBENCH_MODEL_PATIENCE", "20")
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RichSandbox]:
    with ExitStack() as stack:
        yield AgentSandboxes(stack).open().sandbox


@dataclass
class At:
    """An agent at the gateway."""

    access: Access
    session: Session
    paths: AgentPaths
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def record(self) -> list[dict[str, Any]]:
        trajectory = read_trajectory(self.paths)
        assert trajectory is not None
        return list(trajectory["steps"])


class Agents:
    """Makes agents; each has a folder of its own."""

    def __init__(self, tmp_path: Any, sandbox: RichSandbox, provider: str) -> None:
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
        paths = AgentPaths(self._folder / str(self._count), "agent1")
        recorder = Recorder(paths, seats_of(self._pair, "solo")[0], agent="cli", model=model)
        session = Session(
            pair=self._pair,
            seat=seats_of(self._pair, "solo")[0],
            setting="solo",
            model=model,
            config_path=None,
            sandbox=self._sandbox,
            recorder=recorder,
            limits=limits or Limits(),
            inbox=None,
            stop=stop or threading.Event(),
        )
        gateway = Gateway.shared()
        given = {"api_base": self._base(model), "api_key": KEY, **(settings or {})}
        try:
            with gateway.open(session, model, given) as access:
                yield At(access, session, paths, gateway.port)
        finally:
            recorder.abandon()

    def _base(self, model: str) -> str:
        if model.startswith("anthropic/"):
            return self._provider
        return f"{self._provider}/v1beta" if "gemini/" in model else f"{self._provider}/v1"


@pytest.fixture
def agents(tmp_path: Any, sandbox: RichSandbox, server: ModelServer) -> Agents:
    return Agents(tmp_path, sandbox, server.anthropic_url)
