"""The real SWE-agent on our sandboxes; its source tree is named by COOPERBENCH_TEST_SWE_AGENT."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.errors import UserError
from tests.support.agents.frameworks import (
    MODEL,
    TONGUES,
    provide,
    settings,
    write_config,
)
from tests.support.modelserver import ModelServer, call, error, say
from tests.support.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver.replies import Reply
    from tests.support.runner.helpers import Left

pytestmark = [
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.usefixtures("installed_frameworks"),
]
APP = "/workspace/repo/app.txt"


@pytest.fixture(scope="module", autouse=True)
def _swe_agent() -> None:
    provide("swe_agent")


def play(
    tmp_path: Path, server: ModelServer, config: dict[str, Any] | None = None, **options: Any
) -> Left:
    path = write_config(
        tmp_path / "swe.yaml", settings("swe_agent", server.openai_url) | (config or {})
    )
    return run_tiny(tmp_path, "swe_agent", agent_config=path, **({"model_name": MODEL} | options))


def builder(number: int) -> list[Reply]:
    place, teammate = f"line {number * 10 - 4}\n", f"agent{3 - number}"
    tongue = TONGUES["swe_agent"]
    return [
        call("cd tests && export WORD=kept"),
        call('echo "$WORD in $PWD"'),
        tongue.edit(
            command="str_replace", path=APP, old_str=place, new_str=f"{place}feature {number}\n"
        ),
        tongue.tell(teammate, "It's line $1"),
        call("sleep 2"),
        *tongue.last_words,
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
    ran = [
        step["args"]["command"] for step in left.trajectory()["steps"] if step["action"] == "run"
    ]
    assert ran[1] == 'echo "$WORD in $PWD"'
    assert list((left.folder / "agent1" / "swe_agent").rglob("*.traj")), "SWE-agent's own record"


def test_agents_work_again_on_recorded_answers(tmp_path: Path, server: ModelServer) -> None:
    server.script("You are agent1", builder(1))
    server.script("You are agent2", builder(2))
    then = play(tmp_path, server, record=True, auto_eval=False)
    server.close()
    again = run_tiny(
        tmp_path,
        "replay_model",
        run_name="again",
        replay_from="r",
        agent_config=tmp_path / "swe.yaml",
    )
    assert again.evaluation["overall_success"]
    for agent_id, agent in then.result["agents"].items():
        assert again.result["agents"][agent_id]["model_calls"] == agent["model_calls"]
        assert again.patch(agent_id) == then.patch(agent_id)


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
    return {
        "agent": {"model": {"api_base": server.openai_url, "api_key": "k", "retry": {"retries": 1}}}
    }


def test_limits_end_it_and_the_work_is_taken(tmp_path: Path, server: ModelServer) -> None:
    agent = solo(tmp_path, server, lambda request: call("echo more >>app.txt"), step_limit=2)
    assert (agent["status"], agent["steps"]) == ("step_limit", 2)
    assert agent["patch_bytes"] > 0


def test_a_limit_of_its_own_on_calls_is_a_limit_of_steps(
    tmp_path: Path, server: ModelServer
) -> None:
    config = settings("swe_agent", server.openai_url)
    config["agent"]["model"]["per_instance_call_limit"] = 3
    agent = solo(tmp_path, server, lambda request: call("ls"), config=config)
    # SWE-agent notices after the call that was one too many.
    assert (agent["status"], agent["model_calls"]) == ("step_limit", 4)
    assert "limit of 3 model calls" in agent["error"]


def test_replies_without_an_action_are_an_outcome(tmp_path: Path, server: ModelServer) -> None:
    assert solo(tmp_path, server, lambda request: say("Hm."))["status"] == "format_error"


@pytest.mark.parametrize(
    ("message", "code", "status"),
    [
        ("Rejected by our safety system.", "content_policy_violation", "content_policy"),
        (
            "This model's maximum context length is 8192.",
            "context_length_exceeded",
            "context_overflow",
        ),
    ],
)
def test_a_provider_that_does_not_go_on_is_an_outcome(
    tmp_path: Path, server: ModelServer, message: str, code: str, status: str
) -> None:
    end = error(400, message, code=code)
    agent = solo(tmp_path, server, lambda _: end if len(server.requests) > 1 else call("ls"))
    assert agent["status"] == status


def test_provider_failures_are_retried(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SWE-agent would ask again; what it asks then is the pair's second attempt."""
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0")
    server.script(
        "",
        lambda _: error(500) if len(server.requests) == 1 else TONGUES["swe_agent"].last_words[0],
    )
    config = settings("swe_agent", server.openai_url)
    config["agent"]["model"]["retry"]["retries"] = 9
    left = play(tmp_path, server, config, setting="solo", auto_eval=False)
    assert (left.result["agents"]["solo"]["status"], left.result["attempt"]) == ("submitted", 2)


def test_a_refused_key_stops_the_run(tmp_path: Path, server: ModelServer) -> None:
    server.script("", lambda request: error(401))
    with pytest.raises(UserError, match="rejects the API key"):
        play(tmp_path, server, setting="solo")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"extends": "nope.yaml"}, "has no config 'nope.yaml' to extend"),
        ({"agent": {"tool": {}}}, r"agent config: agent\.tool"),
        (
            {
                "agent": {
                    "tools": {"bundles": [{"path": "tools/registry"}, {"path": "tools/windowed"}]}
                }
            },
            "agent config: SWE-agent cannot use it: KeyError: 'WINDOW'",
        ),
    ],
)
def test_a_config_that_is_none_stops_the_run(
    tmp_path: Path, server: ModelServer, config: dict[str, Any], said: str
) -> None:
    config = {"agent": {"model": {"api_key": "k"}} | config.pop("agent", {}), **config}
    with pytest.raises(UserError, match=said):
        play(tmp_path, server, config, setting="solo")
