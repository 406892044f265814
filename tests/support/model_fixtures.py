"""For tests of whatever asks a model: a scripted provider, no keys of the user's, and what LiteLLM warns of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.modelserver import ModelServer

if TYPE_CHECKING:
    from collections.abc import Iterator

_IN_ONE_PROCESS = (
    "tests/unit/gateway/",
    "tests/unit/agents/test_mini_swe",
    "tests/integration/author/test_describe_with_model",
    "tests/integration/gateway/",
    "tests/integration/agents/mini_swe/",
)
"""Tests that import LiteLLM, which takes seconds: they share two processes."""
_GATEWAY_SERVER = "tests/integration/gateway/test_server"
"""The slowest of them have a process of their own."""
_GO_THROUGH_LITELLM = (
    *_IN_ONE_PROCESS,
    "tests/external/agents/cli_agents/",
    "tests/external/backends/docker/test_agents.py",
    "tests/external/backends/docker/test_forks.py",
    "tests/external/backends/local/test_image_agents.py",
    "tests/external/lab/",
    "tests/integration/lab/",
)
_OTHERS_WARNINGS = (
    # LiteLLM hands pydantic objects of other classes than it has declared; nothing is lost by it.
    "ignore:Pydantic serializer warnings:UserWarning",
    "ignore:Item .* on TypedDict class:UserWarning",
    "ignore:Accessing the 'model_:DeprecationWarning",
    # It keeps its connections for the next call, until they are collected.
    "ignore:unclosed:ResourceWarning",
)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist then finds the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(_GO_THROUGH_LITELLM):
            for warning in _OTHERS_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))
        if item.nodeid.startswith(_IN_ONE_PROCESS):
            is_server_test = item.nodeid.startswith(_GATEWAY_SERVER)
            group = "gateway_server" if is_server_test else "litellm"
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a provider's recovery, or uses the user's keys."""
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "20")
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
