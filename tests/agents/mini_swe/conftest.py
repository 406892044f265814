"""All tests of this folder go through LiteLLM, whose import takes seconds: one process for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.modelserver import ModelServer

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHERS_WARNINGS = (
    # LiteLLM hands pydantic objects of other classes than it has declared; nothing is lost by it.
    "ignore:Pydantic serializer warnings:UserWarning",
    "ignore:Item .* on TypedDict class:UserWarning",
    "ignore:Accessing the 'model_:DeprecationWarning",
    # It keeps its connections for the next call, until they are collected.
    "ignore:unclosed:ResourceWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "agents/mini_swe/" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("litellm"))
            for warning in OTHERS_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the user's keys or a provider's recovery."""
    monkeypatch.setenv("COOPERBENCH_MODEL_PATIENCE", "20")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
