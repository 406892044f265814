"""The real OpenHands SDK on our sandboxes, against a model server whose answers are written beforehand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.errors import UserError
from tests.support.agents.frameworks import (
    KEY,
    MODEL,
    TONGUES,
    provide,
    settings,
    write_config,
)
from tests.support.modelserver import Answer, ModelServer, ToolCall, call, error, say
from tests.support.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver import Request
    from tests.support.modelserver.replies import Reply
    from tests.support.runner.helpers import Left

pytestmark = [
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.usefixtures("installed_frameworks"),
]
APP = "/workspace/repo/app.txt"
ARRIVED = "while ! ls /cooperbench/team/inbox/* >/dev/null 2>&1; do sleep 0.05; done"


@pytest.fixture(scope="module", autouse=True)
def _openhands() -> None:
    provide("openhands")


def play(
    tmp_path: Path, server: ModelServer, config: dict[str, Any] | None = None, **options: Any
) -> Left:
    path = write_config(
        tmp_path / "openhands.yaml", settings("openhands", server.openai_url) | (config or {})
    )
    return run_tiny(tmp_path, "openhands", agent_config=path, **({"model_name": MODEL} | options))


def builder(number: int) -> list[Reply]:
    """An agent that uses everything it has, and builds its feature."""
    place, teammate = f"line {number * 10 - 4}\n", f"agent{3 - number}"
    edit = TONGUES["openhands"].edit
    return [
        call("cd tests && export WORD=kept && pwd", tool="terminal"),
        call('echo "$WORD in $PWD"; exit 3', tool="terminal"),
        edit(command="view", path="/workspace/repo"),
        edit(command="view", path=APP, view_range=[1, 3]),
        edit(command="str_replace", path=APP, old_str="line", new_str="other"),
        edit(command="str_replace", path=APP, old_str=place, new_str=f"{place}feature {number}\n"),
        edit(command="create", path=f"/workspace/repo/new{number}.txt", file_text="grüße\n"),
        TONGUES["openhands"].tell(teammate, f"I am at {place.strip()}"),
        # Until the teammate's message is there, however much slower it is.
        Answer("", (ToolCall("terminal", {"command": ARRIVED, "timeout": 120}),)),
        call("sleep 60", tool="terminal"),
        *TONGUES["openhands"].last_words,
    ]


def test_two_agents_build_and_talk(tmp_path: Path, server: ModelServer) -> None:
    server.script("You are agent1", builder(1))
    server.script("You are agent2", builder(2))
    left = play(tmp_path, server, {"terminal": {"timeout_seconds": 3}})
    assert left.evaluation["overall_success"]
    agent = left.result["agents"]["agent1"]
    assert (agent["status"], agent["model_calls"], agent["unpriced_calls"]) == ("submitted", 11, 11)
    assert (agent["prompt_tokens"], agent["completion_tokens"]) == (1100, 110)
    assert agent["agent_version"].startswith("1.")
    assert "new1.txt" in left.patch()

    seen = [json.dumps(message) for message in server.requests_of("You are agent1")[-1].messages]
    told = "\n".join(seen)
    assert "kept in /workspace/repo/tests" in told
    assert "exit code 3" in told
    assert "Multiple occurrences" in told, "the SDK's own editor, with its rules"
    assert "it took longer than 3 seconds" in told
    assert "Message from agent2" in told
    assert "I am at line 16" in told
    assert str(tmp_path) not in told, "nothing of the host"

    steps = left.trajectory()["steps"]
    assert [step["action"] for step in steps].count("reply") == 11
    assert {"tell", "run", "write_file", "receive_message"} <= {step["action"] for step in steps}
    assert (left.folder / "agent1" / "openhands").is_dir(), "the SDK's own record"
    for path in left.folder.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


def solo(tmp_path: Path, server: ModelServer, script: Any, **options: Any) -> dict[str, Any]:
    server.script("", script)
    left = play(tmp_path, server, setting="solo", auto_eval=False, **options)
    agents: dict[str, Any] = left.result["agents"]
    return dict(agents["solo"])


def test_models_of_the_responses_api_are_accounted_for_too(
    tmp_path: Path, server: ModelServer
) -> None:
    script = [call("ls", tool="terminal"), *TONGUES["openhands"].last_words]
    llm = settings("openhands", server.openai_url)["llm"] | {"use_chat_completions_api": False}
    agent = solo(tmp_path, server, script, config={"llm": llm}, model_name="openai/gpt-5-codex")
    assert {request.path for request in server.requests} == {"/v1/responses"}
    assert (agent["status"], agent["model_calls"], agent["prompt_tokens"]) == ("submitted", 2, 200)
    assert agent["cost"] > 0


def test_limits_end_it_and_the_work_is_taken(tmp_path: Path, server: ModelServer) -> None:
    def script(request: Request) -> Reply:
        return call(f"echo {request.number} >>app.txt", tool="terminal")

    agent = solo(tmp_path, server, script, step_limit=3)
    assert (agent["status"], agent["steps"]) == ("step_limit", 3)
    assert agent["patch_bytes"] > 0


def test_a_full_context_is_an_outcome(tmp_path: Path, server: ModelServer) -> None:
    overflow = error(
        400, "This model's maximum context length is 8192 tokens.", code="context_length_exceeded"
    )
    # Whatever the SDK leaves out, it stays too much.
    agent = solo(
        tmp_path,
        server,
        lambda _: overflow if len(server.requests) > 1 else call("ls", tool="terminal"),
    )
    assert agent["status"] == "context_overflow"


def test_a_refusal_to_answer_is_an_outcome(tmp_path: Path, server: ModelServer) -> None:
    refusal = error(400, "Rejected by our safety system.", code="content_policy_violation")
    agent = solo(
        tmp_path,
        server,
        lambda _: refusal if len(server.requests) > 1 else call("ls", tool="terminal"),
    )
    assert (agent["status"], len(server.requests)) == ("content_policy", 4)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (error(413, "body too large"), "context_overflow"),
        (error(400, "too many tokens: 9 > 8"), "context_overflow"),
        (error(422, "messages.7: odd"), "request_rejected"),
    ],
)
def test_a_provider_that_refuses_later_on_is_an_outcome(
    tmp_path: Path, server: ModelServer, reply: Reply, status: str
) -> None:
    agent = solo(
        tmp_path,
        server,
        lambda _: reply if len(server.requests) > 1 else call("ls", tool="terminal"),
    )
    assert agent["status"] == status


@pytest.mark.parametrize("reply", [error(402, "pay"), error(400, "Payment required")])
def test_an_empty_account_stops_the_run_also_later_on(
    tmp_path: Path, server: ModelServer, reply: Reply
) -> None:
    server.script("", lambda _: reply if len(server.requests) > 1 else call("ls", tool="terminal"))
    with pytest.raises(UserError, match="the account's quota is exhausted"):
        play(tmp_path, server, setting="solo")


def test_provider_failures_are_retried(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would ask again; what it asks then is the pair's second attempt."""
    monkeypatch.setenv("COOPERBENCH_MODEL_RETRY_TIMEOUT", "0")
    server.script(
        "",
        lambda _: error(500) if len(server.requests) == 1 else TONGUES["openhands"].last_words[0],
    )
    llm = settings("openhands", server.openai_url)["llm"] | {"num_retries": 9, "retry_min_wait": 0}
    left = play(tmp_path, server, {"llm": llm}, setting="solo", auto_eval=False)
    assert (left.result["agents"]["solo"]["status"], left.result["attempt"]) == ("submitted", 2)


def test_agents_work_again_on_recorded_answers(tmp_path: Path, server: ModelServer) -> None:
    """The same agents without a provider: every request is the same, messages included."""
    for number in (1, 2):
        # What a command that takes too long still prints is not the same each time.
        *script, _, done = builder(number)
        server.script(f"You are agent{number}", [*script, done])
    then = play(tmp_path, server, record=True, auto_eval=False)
    server.close()
    again = run_tiny(
        tmp_path,
        "replay_model",
        run_name="again",
        replay_from="r",
        agent_config=tmp_path / "openhands.yaml",
    )
    assert again.evaluation["overall_success"]
    for agent_id, agent in then.result["agents"].items():
        now = again.result["agents"][agent_id]
        for name in ("agent", "model", "status", "steps", "model_calls", "prompt_tokens"):
            assert now[name] == agent[name], (agent_id, name)
        assert again.patch(agent_id) == then.patch(agent_id)


def test_words_without_an_action_end_the_conversation(tmp_path: Path, server: ModelServer) -> None:
    assert solo(tmp_path, server, [say("All is well.")])["status"] == "submitted"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"llm": {"temprature": 0, "api_key": KEY}}, "llm has no setting 'temprature'"),
        ({"tools": ["browser"]}, "tools must be a list of terminal, file_editor, task_tracker"),
        (
            {"large": {}},
            "it may only be a mapping with agent, conversation, llm, terminal, tools",
        ),
    ],
)
def test_settings_that_are_none_stop_the_run(
    tmp_path: Path, server: ModelServer, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        play(tmp_path, server, config, setting="solo")


def test_a_refused_key_stops_the_run(tmp_path: Path, server: ModelServer) -> None:
    server.script("", [error(401)])
    with pytest.raises(UserError, match="rejects the API key"):
        play(tmp_path, server, setting="solo")
