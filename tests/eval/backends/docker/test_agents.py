"""The real agent framework on a scripted provider, in containers: two of them, with messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cooperbench import run
from tests.agents.mini_swe.conftest import OTHERS_WARNINGS
from tests.agents.mini_swe.helpers import SUBMIT, TOOLS, act, patching, write_config
from tests.eval.backends.docker.tasks import write_buildable
from tests.modelserver import Answer, ModelServer, Request
from tests.tiny import golden

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cooperbench.eval.backends.docker import DockerBackend

pytestmark = [pytest.mark.filterwarnings(warning) for warning in OTHERS_WARNINGS]


def script(feature: int, other: str) -> Callable[[Request], Answer]:
    def reply(request: Request) -> Answer:
        known = json.dumps(request.messages)
        if request.number == 1:
            return act(TOOLS, f"send_message {other} 'done soon'; env")
        if f"From {other}" not in known and f"Message from {other}" not in known:
            return act(TOOLS, "read_messages --wait 30")
        return act(TOOLS, SUBMIT if "git apply" in known else patching(golden(feature)))

    return reply


def test_models_work_together_in_containers(
    docker: DockerBackend, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={base_image}")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment-1")
    write_buildable(tmp_path / "dataset")
    with ModelServer() as server:
        server.script("You are agent1", script(1, "agent2"))
        server.script("You are agent2", script(2, "agent1"))
        config = write_config(tmp_path / "agent.yaml", server.openai_url)
        run(
            "agents", agent=TOOLS, model_name="openai/scripted", backend="docker", features=[1, 2],
            agent_config=str(config), dataset_dir=tmp_path / "dataset", logs_dir=tmp_path / "logs",
        )  # fmt: skip
        told = json.dumps([request.messages for request in server.requests])
    folder = tmp_path / "logs/agents/coop/tiny_task/7/f1_f2"
    assert json.loads((folder / "eval.json").read_text())["overall_success"] is True
    agents = json.loads((folder / "result.json").read_text())["agents"]
    assert {agent["status"] for agent in agents.values()} == {"submitted"}
    assert "PAGER=cat" in told
    assert "sk-from-the-environment-1" not in told
