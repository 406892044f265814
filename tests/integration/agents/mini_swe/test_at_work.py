"""The real framework on real LiteLLM, against a scripted provider: alone, together, with everything on record."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench import run
from cooperbench.dataset.discovery import DEMO, demo_dir
from cooperbench.errors import UserError
from tests.support.agents.mini_swe import (
    KEY,
    MODEL,
    SUBMIT,
    TEXT,
    TOOLS,
    act,
    patching,
    run_solo,
    write_config,
)
from tests.support.modelserver import Request, Tokens, ToolCall, say
from tests.support.runner.helpers import Left, run_tiny
from tests.support.tiny import golden

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.modelserver import Answer, ModelServer

REPO, TASK = "coinage_task", 3


@pytest.mark.parametrize("agent", [TEXT, TOOLS])
def test_two_models_talk_to_each_other_and_pass_on_the_demo(
    tmp_path: Path, server: ModelServer, agent: str
) -> None:
    """Each sends a message first, and goes on once the other's has come into its context."""

    def script(feature: int, other_feature: int, other: str) -> Callable[[Request], Answer]:
        patch = (
            demo_dir() / REPO / f"task{TASK}" / f"feature{feature}" / "feature.patch"
        ).read_text()

        def reply(request: Request) -> Answer:
            known = json.dumps(request.messages)
            if request.number == 1:
                text = f"send_message {other} 'feature {feature} is mine'"
                return act(agent, text, tokens=Tokens(1000, 20, cached=600))
            if f"feature {other_feature} is mine" not in known:
                return act(agent, "read_messages --wait 20")
            return act(agent, SUBMIT if "git apply" in known else patching(patch))

        return reply

    server.script("You are agent1", script(1, 3, "agent2"))
    server.script("You are agent2", script(3, 1, "agent1"))
    config = write_config(tmp_path / "agent.yaml", server.openai_url)
    run(
        "r", repo=REPO, features=[1, 3], agent=agent, model_name="openai/one,openai/two", backend="local",
        agent_config=str(config), dataset_dir=DEMO, logs_dir=tmp_path / "logs",
    )  # fmt: skip
    left = Left(tmp_path / "logs/r/coop" / REPO / str(TASK) / "f1_f3")
    assert left.evaluation["overall_success"] is True
    assert left.result["messages"] == 2
    for own, other, model in (
        ("agent1", "feature 3 is mine", "one"),
        ("agent2", "feature 1 is mine", "two"),
    ):
        requests = server.requests_of(f"You are {own}")
        assert {request.model for request in requests} == {model}
        heard = "\n".join(requests[-1].texts("user") + requests[-1].texts("tool"))
        assert other in heard
        record = left.result["agents"][own]
        calls = len(requests)
        assert (record["status"], record["steps"], record["model_calls"]) == (
            "submitted",
            calls,
            calls,
        )
        assert record["model"] == f"openai/{model}"
        assert record["prompt_tokens"] == 900 + 100 * calls
        assert record["completion_tokens"] == 10 + 10 * calls
        assert record["cached_tokens"] == 600
        assert (record["cost"], record["unpriced_calls"]) == (0.0, calls)
        assert record["model_seconds"] > 0
        assert record["sandbox_seconds"] > 0


def test_message_arrives_before_the_next_step(tmp_path: Path, server: ModelServer) -> None:
    """agent2 is held up until agent1 has written; then it is asked again, with the message."""

    def second(request: Request) -> Answer:
        if request.number == 1:
            return act(
                TOOLS, "while ! ls /cooperbench/team/inbox/* >/dev/null 2>&1; do sleep 0.05; done"
            )
        return act(TOOLS, SUBMIT)

    def first(request: Request) -> Answer:
        if request.number > 1:
            return act(TOOLS, SUBMIT)
        deadline = time.monotonic() + 30
        while not server.requests_of("You are agent2") and time.monotonic() < deadline:
            time.sleep(0.01)
        return act(TOOLS, "send_message agent2 'mind line 5'")

    server.script("You are agent1", first)
    server.script("You are agent2", second)
    config = write_config(
        tmp_path / "agent.yaml", server.openai_url, {"environment": {"timeout": 5}}
    )
    left = run_tiny(
        tmp_path, TOOLS, agent_config=str(config), model_name="openai/x", auto_eval=False
    )
    (sent,) = [
        step for step in left.trajectory("agent1")["steps"] if step["action"] == "send_message"
    ]
    assert (sent["args"]["to"], sent["args"]["content"]) == ("agent2", "mind line 5")
    assert (sent["step"], sent["observation"]) == (1, "Message sent.\n")
    roles = [
        (message["role"], str(message["content"]))
        for message in server.requests_of("You are agent2")[1].messages
    ]
    assert [role for role, _ in roles] == ["system", "user", "assistant", "tool", "user"]
    assert roles[-1][1] == "Message from agent1:\n\nmind line 5"


def test_everything_is_on_record_and_no_key_is_anywhere(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", "key-in-the-environment-77")
    script = [
        act(TOOLS, "env; echo out; echo err >&2; echo out again; exit 3"),
        say(f"A word, and {KEY}."),
        act(TOOLS, f"echo {KEY}; {patching(golden(1, 2))}"),
        act(TOOLS, SUBMIT),
    ]
    left = run_solo(
        tmp_path, server, script, auto_eval=True, config={"environment": {"env": {"ANSWER": "4 2"}}}
    )
    assert left.evaluation["overall_success"] is True
    trajectory = left.trajectory("solo")
    actions = [step["action"] for step in trajectory["steps"]]
    assert actions == [
        "tell",
        "tell",
        "reply",
        "run",
        "reply",
        "tell",
        "reply",
        "run",
        "reply",
        "run",
    ]
    first = next(step for step in trajectory["steps"] if step["action"] == "run")
    assert first["returncode"] == 3
    assert "out\nerr\nout again\n" in first["observation"]
    assert "ANSWER=4 2" in first["observation"]
    assert "PAGER=cat" in first["observation"]
    assert first["args"]["command"].startswith("env; ")
    assert first["executed"].endswith(first["args"]["command"])
    kinds = [step["args"]["kind"] for step in trajectory["steps"] if step["action"] == "tell"]
    assert kinds == ["system", "task", "format_error"]
    assert "no known price" in (left.folder / "solo.log").read_text()
    seen = json.dumps([request.messages for request in server.requests])
    assert "key-in-the-environment-77" not in seen
    everything = "\n".join(
        path.read_text() for path in tmp_path.joinpath("logs").rglob("*") if path.is_file()
    )
    assert KEY not in everything
    assert "[redacted api_key]" in everything
    assert "key-in-the-environment-77" not in everything


def test_several_tool_calls_in_one_reply_are_several_steps(
    tmp_path: Path, server: ModelServer
) -> None:
    calls = tuple(
        ToolCall("bash", {"command": command}) for command in ("echo one", "echo two", SUBMIT)
    )
    left = run_solo(tmp_path, server, [say("Three at once.", calls=calls)])
    assert left.result["agents"]["solo"]["status"] == "submitted"
    assert left.observations("solo")[:2] == ["one\n", "two\n"]


def test_a_server_of_the_users_own(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.script("", [act(TOOLS, SUBMIT)])
    options: dict[str, Any] = {
        "model_name": MODEL,
        "base_url": server.openai_url,
        "setting": "solo",
        "auto_eval": False,
    }
    left = run_tiny(tmp_path, TOOLS, **options)
    assert left.result["agents"]["solo"]["status"] == "submitted"
    assert [request.api_key for request in server.requests] == [KEY]
    with pytest.raises(UserError, match="LiteLLM does not know its provider"):
        run_tiny(tmp_path, TOOLS, run_name="other", **options | {"model_name": "scripted"})


def test_anthropic_models_cache_their_prompts_and_have_a_price(
    tmp_path: Path, server: ModelServer
) -> None:
    tokens = Tokens(prompt=10_000, completion=100, cached=8000, written=1000)
    script = [act(TOOLS, "ls", tokens=tokens), act(TOOLS, SUBMIT, tokens=tokens)]
    left = run_solo(
        tmp_path,
        server,
        script,
        model_name="anthropic/claude-sonnet-4-5",
        config={"model": {"model_kwargs": {"api_base": server.anthropic_url}}},
    )
    record = left.result["agents"]["solo"]
    assert record["status"] == "submitted"
    assert (record["prompt_tokens"], record["cached_tokens"]) == (20_000, 16_000)
    assert record["unpriced_calls"] == 0
    # 1000 at $3, 8000 at a tenth, 1000 at five quarters, 100 at $15 per million; twice.
    assert record["cost"] == pytest.approx(2 * (0.003 + 0.0024 + 0.00375 + 0.0015))
    second = server.requests[1]
    assert second.path == "/v1/messages"
    assert second.api_key == KEY
    assert '"cache_control": {"type": "ephemeral"}' in json.dumps(second.body["messages"][-1])


def test_the_users_file_is_merged_over_the_frameworks(tmp_path: Path, server: ModelServer) -> None:
    content = {
        "agent": {"system_template": "Be brief on {{machine}}.", "step_limit": 2},
        "model": {"model_kwargs": {"temperature": 0.25}},
        "environment": {"cwd": "/tmp", "timeout": 1},
    }
    left = run_solo(tmp_path, server, lambda _: act(TOOLS, "pwd; sleep 5"), config=content)
    assert left.result["agents"]["solo"]["status"] == "step_limit"
    request = server.requests[1]
    assert len(server.requests) == 2
    assert request.texts("system")[0].startswith("Be brief on ")
    assert request.texts("system")[0] != "Be brief on ."
    assert "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in request.texts("user")[0]
    assert request.body["temperature"] == 0.25
    assert "took longer than 1 seconds" in request.last
    assert "/tmp" in request.last
