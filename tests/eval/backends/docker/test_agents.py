"""The real agent framework on a scripted provider, in containers: two of them, with messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cooperbench import run
from cooperbench.agents.environments.store import DATA_VARIABLE
from tests.agents.frameworks import DATA, FIRST_TIME_SECONDS, provide
from tests.agents.frameworks import write_config as write_settings
from tests.agents.mini_swe.conftest import OTHERS_WARNINGS
from tests.agents.mini_swe.helpers import SUBMIT, TOOLS, act, patching, write_config
from tests.eval.backends.docker.tasks import write_buildable
from tests.modelserver import Answer, ModelServer, Request, ToolCall, call
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


def openhands_script(feature: int, other: str) -> list[Answer]:
    """Its terminal, its editor and its message tool, each in the container."""
    place = f"line {feature * 10 - 4}\n"
    edit = {"command": "str_replace", "path": "/workspace/repo/app.txt", "old_str": place}
    return [
        call("pwd; export WORD=kept", tool="terminal"),
        call("echo $WORD; touch seen", tool="terminal"),
        Answer("", (ToolCall("file_editor", edit | {"new_str": f"{place}feature {feature}\n"}),)),
        Answer("", (ToolCall("send_message", {"to": other, "message": "done soon"}),)),
        call("rm seen; sleep 2", tool="terminal"),
        Answer("", (ToolCall("finish", {"message": "Done."}),)),
    ]


@pytest.mark.timeout(FIRST_TIME_SECONDS)
def test_openhands_works_in_containers(
    docker: DockerBackend,  # makes the image
    engine_kind: str,
    base_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if engine_kind != "docker":
        pytest.skip("once is enough: to the framework both engines are the same sandbox")
    provide("openhands")
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={base_image}")
    write_buildable(tmp_path / "dataset")
    with ModelServer() as server:
        server.script("You are agent1", openhands_script(1, "agent2"))
        server.script("You are agent2", openhands_script(2, "agent1"))
        settings = {"llm": {"base_url": server.openai_url, "api_key": "none", "num_retries": 0}}
        config = write_settings(tmp_path / "openhands.yaml", settings)
        run(
            "agents", agent="openhands", model_name="openai/scripted", backend="docker", features=[1, 2],
            agent_config=str(config), dataset_dir=tmp_path / "dataset", logs_dir=tmp_path / "logs",
        )  # fmt: skip
        told = json.dumps(server.requests_of("You are agent1")[-1].messages)
    folder = tmp_path / "logs/agents/coop/tiny_task/7/f1_f2"
    assert json.loads((folder / "eval.json").read_text())["overall_success"] is True
    assert "kept" in told
    assert "Message from agent2" in told


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
