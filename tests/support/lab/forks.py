"""Pairs to fork: agent2 succeeds if, and only if, agent1's message arrives before its second step."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from cooperbench.cli import main
from tests.support.agents.mini_swe import SUBMIT, TOOLS, act, patching, write_config
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import REPO, TASK_ID, golden

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver import ModelServer, Request
    from tests.support.modelserver.replies import Reply

MESSAGE = "the word is amber"
"""What agent1 sends to agent2."""
PAIR = f"{REPO}/{TASK_ID}/f1_f2"
_FEATURE = re.compile(r"# Feature (\d+)")


def feature_of(request: Request) -> int:
    found = _FEATURE.search(request.opening)
    assert found is not None
    return int(found[1])


def steps_of(request: Request) -> int:
    """How many replies the agent has had."""
    return sum(message.get("role") == "assistant" for message in request.messages)


class Laboratory:
    """A recorded run on the tiny dataset, and forks of it."""

    def __init__(self, tmp_path: Path, server: ModelServer, agent: str = TOOLS) -> None:
        self.tmp_path, self.server, self.agent = tmp_path, server, agent
        self.logs = tmp_path / "logs"
        self.word = "amber"
        self.first_step = "echo looking"
        self.second_step = "echo waiting"
        self.live = 0
        """Requests after the record was made."""
        self.is_recorded = False
        self._sent = threading.Event()
        self.config = write_config(tmp_path / "agent.yaml", server.openai_url)
        server.script("You are agent1", self.sender)
        server.script("You are agent2", self.recipient)

    def act(self, command: str) -> Reply:
        return act(self.agent, command)

    def _count(self) -> None:
        if self.is_recorded:
            self.live += 1

    def sender(self, request: Request) -> Reply:
        self._count()
        steps = steps_of(request)
        if steps == 1:
            self._sent.set()
        commands = [
            f"send_message agent2 'the word is {self.word}'",
            patching(golden(feature_of(request))),
            "echo checked",
            SUBMIT,
        ]
        return self.act(commands[steps])

    def recipient(self, request: Request) -> Reply:
        self._count()
        steps = steps_of(request)
        if steps == 0 and not self.is_recorded:
            assert self._sent.wait(30)
            self._sent.clear()
        commands = [self.first_step, self.decide(request), self.second_step, SUBMIT]
        return self.act(commands[steps])

    def decide(self, request: Request) -> str:
        """What agent2 does in its second step."""
        if any(self.means_yes(text) for text in request.texts("user")):
            return patching(golden(feature_of(request)))
        return "echo nobody told me"

    def means_yes(self, text: str) -> bool:
        return text.startswith("Message from agent1") and "amber" in text

    def record(self, features: tuple[int, ...] = (1, 2), **options: Any) -> None:
        settings: dict[str, Any] = {
            "model_name": "openai/x",
            "agent_config": str(self.config),
            "record": True,
            "auto_eval": False,
            "concurrency": 1,
        } | options
        run_tiny(self.tmp_path, self.agent, features, **settings)
        self.is_recorded = True

    def fork(self, *more: str) -> int:
        return main(self.words(*more))

    def words(self, *more: str) -> list[str]:
        return [
            "fork", "r", "--agent-config", str(self.config), "--backend", "local", "--no-canary",
            "--dataset-dir", str(self.tmp_path / "data"), "--log-dir", str(self.logs), *more,
        ]  # fmt: skip
