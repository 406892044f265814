"""The real agent frameworks on a scripted provider, in containers: two agents, with messages."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import run
from cooperbench.agents.environments import DATA_VARIABLE
from cooperbench.errors import UserError
from tests.support.agents.builders import builders
from tests.support.agents.frameworks import DATA, TONGUES, provide, settings
from tests.support.agents.frameworks import write_config as write_settings
from tests.support.agents.mini_swe import SUBMIT, TOOLS, act, patching, write_config
from tests.support.docker.tasks import DOCKERFILE, write_buildable
from tests.support.modelserver import Answer, ModelServer, Request
from tests.support.tiny import golden

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cooperbench.backends.docker import DockerBackend


def script(feature: int, other: str) -> Callable[[Request], Answer]:
    def reply(request: Request) -> Answer:
        known = json.dumps(request.messages)
        if request.number == 1:
            return act(TOOLS, f"send_message {other} 'done soon'; env")
        if f"From {other}" not in known and f"Message from {other}" not in known:
            return act(TOOLS, "read_messages --wait 30")
        return act(TOOLS, SUBMIT if "git apply" in known else patching(golden(feature)))

    return reply


def framework_script(
    name: str, feature: int, other: str, told: threading.Event, heard: threading.Event
) -> Callable[[Request], Answer]:
    """The framework's terminal, its editor and its message tool; then it waits until its teammate has told it too."""
    tongue = TONGUES[name]
    place = f"line {feature * 10 - 4}\n"
    new = {"old_str": place, "new_str": f"{place}feature {feature}\n"}
    answers = [
        tongue.run("pwd; export WORD=kept; cut -d: -f1 /proc/net/dev"),
        tongue.run("echo $WORD in $PWD; touch seen"),
        tongue.edit(command="str_replace", path="/workspace/repo/app.txt", **new),
        tongue.tell(other, f"It's line ${feature}"),
        replace(tongue.run("rm seen; sleep 1"), hold=heard),
        *tongue.last_words,
    ]

    def reply(request: Request) -> Answer:
        if request.number == 5:
            told.set()
        return answers[request.number - 1]

    return reply


@pytest.mark.parametrize("name", ["openhands", "swe_agent"])
def test_frameworks_work_in_containers(
    name: str,
    docker: DockerBackend,  # makes the image
    engine_kind: str,
    base_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if engine_kind != "docker":
        pytest.skip("once is enough: to the framework both engines are the same sandbox")
    provide(name)
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    with ModelServer() as server:
        first, second = threading.Event(), threading.Event()
        server.script("You are agent1", framework_script(name, 1, "agent2", first, second))
        server.script("You are agent2", framework_script(name, 2, "agent1", second, first))
        config = write_settings(tmp_path / "agent.yaml", settings(name, server.openai_url))
        folder = in_containers(
            tmp_path, monkeypatch, base_image, agent=name, agent_config=str(config)
        )
        told = json.dumps(server.requests_of("You are agent1")[-1].messages)
    assert "kept in /workspace/repo" in told
    assert "eth0" not in told, "no network"
    assert "Message from agent2" in told
    assert "It's line $2" in told
    agents = json.loads((folder / "result.json").read_text())["agents"]
    assert {agent["status"] for agent in agents.values()} == {"submitted"}
    messages = json.loads((folder / "conversation.json").read_text())["messages"]
    assert sorted(message["message"] for message in messages) == ["It's line $1", "It's line $2"]


@pytest.mark.parametrize("names", [("claude_code", "codex"), ("gemini_cli", "opencode")])
def test_command_line_agents_work_in_containers(
    names: tuple[str, str],
    docker: DockerBackend,  # makes the image
    base_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    for name in names:
        provide(name)
    with ModelServer() as server:
        server.script("", builders(*names))
        config = write_settings(tmp_path / "agent.yaml", settings("codex", server.openai_url))
        folder = in_containers(
            tmp_path, monkeypatch, base_image, agent=",".join(names), agent_config=str(config)
        )
        told = json.dumps([request.messages for request in server.requests])
    agents = json.loads((folder / "result.json").read_text())["agents"].values()
    assert {(agent["status"], *agent["files_changed"]) for agent in agents} == {
        ("submitted", "app.txt")
    }
    assert "eth0" not in told, "no network"


def test_missing_libraries_are_one_line(
    docker: DockerBackend, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    provide("codex")
    write_buildable(tmp_path / "dataset", f"{DOCKERFILE}RUN rm -f /usr/lib/*/libstdc++.so.6*\n")
    with ModelServer() as server:
        config = write_settings(tmp_path / "agent.yaml", settings("codex", server.openai_url))
        with pytest.raises(UserError, match=r"an image with glibc 2.28 .*libstdc\+\+\.so"):
            in_containers(
                tmp_path, monkeypatch, base_image, agent="codex", agent_config=str(config)
            )


def in_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base_image: str, **options: Any
) -> Path:
    """Two agents on a pair that both of them solve; its folder."""
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={base_image}")
    if not (tmp_path / "dataset").exists():
        write_buildable(tmp_path / "dataset")
    run(
        "agents", model_name="openai/scripted", backend="docker", features=[1, 2],
        dataset_dir=tmp_path / "dataset", logs_dir=tmp_path / "logs", **options,
    )  # fmt: skip
    folder = tmp_path / "logs/agents/coop/tiny_task/7/f1_f2"
    assert json.loads((folder / "eval.json").read_text())["overall_success"] is True
    return folder


def test_models_work_together_in_containers(
    docker: DockerBackend, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment-1")
    with ModelServer() as server:
        server.script("You are agent1", script(1, "agent2"))
        server.script("You are agent2", script(2, "agent1"))
        config = write_config(tmp_path / "agent.yaml", server.openai_url)
        folder = in_containers(
            tmp_path, monkeypatch, base_image, agent=TOOLS, agent_config=str(config)
        )
        told = json.dumps([request.messages for request in server.requests])
    agents = json.loads((folder / "result.json").read_text())["agents"]
    assert {agent["status"] for agent in agents.values()} == {"submitted"}
    assert "PAGER=cat" in told
    assert "sk-from-the-environment-1" not in told
