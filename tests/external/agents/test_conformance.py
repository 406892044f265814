"""Real frameworks and command-line agents go through the suite of all agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.conformance import AgentConformance, AgentUnderTest
from cooperbench.agents.environments import DATA_VARIABLE
from tests.support.agents.frameworks import (
    DATA,
    MODEL,
    TONGUES,
    provide,
    settings,
    write_config,
)
from tests.support.modelserver import ModelServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def framework(name: str, tmp_path: Path) -> Iterator[AgentUnderTest]:
    """A real one, with a model that looks around, writes to its teammate if it has one, and hands in."""
    provide(name)
    tongue = TONGUES[name]
    with ModelServer() as server:
        server.script(
            "", [tongue.run("ls"), tongue.run("echo more >>notes.txt"), *tongue.last_words]
        )
        for agent_id, teammate in (("agent1", "agent2"), ("agent2", "agent1")):
            server.script(
                f"You are {agent_id}",
                [tongue.run("ls"), tongue.tell(teammate, "hello"), *tongue.last_words],
            )
        config = write_config(tmp_path / "config" / "agent.yaml", settings(name, server.openai_url))
        yield AgentUnderTest(name, MODEL, config, {DATA_VARIABLE: str(DATA)})


@pytest.mark.xdist_group("frameworks")
class TestOpenHands(AgentConformance):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> Iterator[AgentUnderTest]:
        yield from framework("openhands", tmp_path)


class CliConformance(AgentConformance):
    name: str

    @pytest.fixture
    def agent(self, tmp_path: Path) -> Iterator[AgentUnderTest]:
        yield from framework(self.name, tmp_path)


class TestClaudeCode(CliConformance):
    name = "claude_code"


class TestCodex(CliConformance):
    name = "codex"


class TestGeminiCli(CliConformance):
    name = "gemini_cli"


class TestOpenCode(CliConformance):
    name = "opencode"


@pytest.mark.xdist_group("frameworks")
class TestSweAgent(AgentConformance):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> Iterator[AgentUnderTest]:
        yield from framework("swe_agent", tmp_path)
