"""The real SWE-agent on our sandboxes; its source tree is named by COOPERBENCH_TEST_SWE_AGENT."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.errors import UserError
from tests.agents.frameworks import FIRST_TIME_SECONDS, provide, using_them, write_config
from tests.modelserver import Answer, ModelServer, ToolCall, call, error, say
from tests.runner.helpers import run_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.modelserver.replies import Reply
    from tests.runner.helpers import Left

SOURCE = os.environ.get("COOPERBENCH_TEST_SWE_AGENT")
pytestmark = [
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(FIRST_TIME_SECONDS),
    pytest.mark.skipif(
        not SOURCE, reason="SWE-agent has no release: COOPERBENCH_TEST_SWE_AGENT names no source tree"
    ),
]
APP = "/workspace/repo/app.txt"


@pytest.fixture(scope="module", autouse=True)
def _swe_agent() -> None:
    provide("swe_agent", SOURCE)


@pytest.fixture(autouse=True)
def _data() -> Iterator[None]:
    yield from using_them()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def play(tmp_path: Path, server: ModelServer, config: dict[str, Any] | None = None, **options: Any) -> Left:
    retry = {"retries": 1, "min_wait": 0.01, "max_wait": 0.02}
    agent = {"model": {"api_base": server.openai_url, "api_key": "key-0123456789", "retry": retry}}
    path = write_config(tmp_path / "swe.yaml", {"agent": agent} | (config or {}))
    return run_tiny(tmp_path, "swe_agent", model_name="openai/scripted-1", agent_config=path, **options)


def builder(number: int) -> list[Reply]:
    place, colleague = f"line {number * 10 - 4}\n", f"agent{3 - number}"
    replace = {
        "command": "str_replace",
        "path": APP,
        "old_str": place,
        "new_str": f"{place}feature {number}\n",
    }
    return [
        call("cd tests && export WORD=kept"),
        call('echo "$WORD in $PWD"'),
        Answer("Now the line.", (ToolCall("str_replace_editor", replace),)),
        Answer("", (ToolCall("send_message", {"to": colleague, "message": "It's line $1"}),)),
        call("sleep 2"),
        Answer("", (ToolCall("submit", {}),)),
        Answer("", (ToolCall("submit", {}),)),
    ]


def test_two_agents_build_and_talk(tmp_path: Path, server: ModelServer) -> None:
    server.script("You are agent1", builder(1))
    server.script("You are agent2", builder(2))
    left = play(tmp_path, server)
    assert left.evaluation["overall_success"]
    agent = left.result["agents"]["agent1"]
    assert (agent["status"], agent["steps"], agent["model_calls"]) == ("submitted", 7, 7)
    assert agent["prompt_tokens"] == 700
    told = json.dumps(server.requests_of("You are agent1")[-1].messages)
    assert "kept in /workspace/repo/tests" in told
    assert "Message from agent2" in told
    assert "It's line $1" in told
    shown = [step.get("shown") for step in left.trajectory()["steps"] if step["action"] == "run"]
    assert shown[1] == 'echo "$WORD in $PWD"'
    assert list((left.folder / "agent1" / "swe_agent").rglob("*.traj")), "SWE-agent's own record"


def solo(tmp_path: Path, server: ModelServer, script: Any, **options: Any) -> dict[str, Any]:
    server.script("", script)
    left = play(tmp_path, server, setting="solo", auto_eval=False, **options)
    agents: dict[str, Any] = left.result["agents"]
    return dict(agents["solo"])


def test_commands_as_text(tmp_path: Path, server: ModelServer) -> None:
    script = [say("THOUGHT: look\n\n```bash\nls\n```"), say("```bash\nsubmit\n```")]
    agent = solo(tmp_path, server, script, config={"extends": "bash_only.yaml"} | _short(server))
    assert (agent["status"], agent["steps"]) == ("submitted", 2)


def _short(server: ModelServer) -> dict[str, Any]:
    return {"agent": {"model": {"api_base": server.openai_url, "api_key": "k", "retry": {"retries": 1}}}}


def test_limits_end_it_and_the_work_is_taken(tmp_path: Path, server: ModelServer) -> None:
    agent = solo(tmp_path, server, lambda request: call("echo more >>app.txt"), step_limit=2)
    assert (agent["status"], agent["steps"]) == ("step_limit", 2)
    assert agent["patch_bytes"] > 0


def test_replies_without_an_action_are_an_outcome(tmp_path: Path, server: ModelServer) -> None:
    assert solo(tmp_path, server, lambda request: say("Hm."))["status"] == "format_error"


def test_a_refused_key_stops_the_run(tmp_path: Path, server: ModelServer) -> None:
    server.script("", lambda request: error(401))
    with pytest.raises(UserError, match="does not accept the key"):
        play(tmp_path, server, setting="solo")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"extends": "nope.yaml"}, "has no config 'nope.yaml' to extend; there are: bash_only.yaml"),
        ({"agent": {"tool": {}}}, r"agent config: agent\.tool"),
    ],
)
def test_a_config_that_is_none_stops_the_run(
    tmp_path: Path, server: ModelServer, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        play(tmp_path, server, config, setting="solo")
