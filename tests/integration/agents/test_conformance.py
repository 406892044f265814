"""Agents of every make go through the same suite: in process, as a program in Python, in plain shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.conformance import AgentConformance, AgentUnderTest
from tests.support.agents.worker_programs import program
from tests.support.paths import SUPPORT

if TYPE_CHECKING:
    from pathlib import Path

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
        return AgentUnderTest(str(SUPPORT / "agents" / "shell_agent.sh"))


class TestPythonWorker(AgentConformance):
    @pytest.fixture
    def agent(self, tmp_path: Path) -> AgentUnderTest:
        return AgentUnderTest(program(tmp_path / "their", TALKER))
