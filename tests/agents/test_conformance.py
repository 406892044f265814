"""Agents of every make go through the same suite: in process, as a program in Python, in plain shell, real frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.conformance import AgentConformance, AgentUnderTest
from cooperbench.agents.environments import DATA_VARIABLE
from tests.agents.frameworks import (
    DATA,
    MODEL,
    TONGUES,
    provide,
    settings,
    write_config,
)
from tests.agents.worker.programs import program
from tests.modelserver import ModelServer

if TYPE_CHECKING:
    from collections.abc import Iterator

TALKER = """
harness.tell("You are a test.", "system")
for number in range(3):
    for message in harness.incoming():
        harness.think(f"{message['from']} wrote")
    harness.check_limits()
    harness.reply(f"step {number}", cost=0.01, prompt_tokens=5, completion_tokens=1)
    harness.exec(f"echo {number} >>notes.txt")
    for teammate in harness.start["teammates"]:
        harness.send_message(teammate, f"I am at step {number}")
harness.done()
"""


class TestInProcess(AgentConformance):
    @pytest.fixture
    def agent(self) -> AgentUnderTest:
        return AgentUnderTest("oracle")


class TestShellWorker(AgentConformance):
    @pytest.fixture
    def agent(self) -> AgentUnderTest:
        return AgentUnderTest(str(Path(__file__).parent / "worker" / "shell_agent.sh"))


class TestPythonWorker(AgentConformance):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> AgentUnderTest:
        return AgentUnderTest(program(tmp_path / "their", TALKER))


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
@pytest.mark.external
class TestOpenHands(AgentConformance):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> Iterator[AgentUnderTest]:
        yield from framework("openhands", tmp_path)


@pytest.mark.external
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
@pytest.mark.external
class TestSweAgent(AgentConformance):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> Iterator[AgentUnderTest]:
        yield from framework("swe_agent", tmp_path)
