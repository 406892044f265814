"""What models did is played again without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.errors import UserError
from tests.support.agents.mini_swe import SUBMIT, TEXT, TOOLS, act, patching, run_solo, write_config
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import golden

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver import Answer, ModelServer


def test_a_run_of_two_frameworks_is_played_again(tmp_path: Path, server: ModelServer) -> None:
    """Cross-play too: the two sides differ in agent and model. agent2 hears of agent1 before its next step."""

    def script(agent: str, feature: int, first: str) -> list[Answer]:
        return [act(agent, first), act(agent, patching(golden(feature))), act(agent, SUBMIT)]

    arrived = "while ! ls /cooperbench/team/inbox/* >/dev/null 2>&1; do sleep 0.05; done"
    server.script("You are agent1", script(TOOLS, 1, "send_message agent2 'line 6 is mine'"))
    server.script("You are agent2", script(TEXT, 2, arrived))
    config = write_config(tmp_path / "agent.yaml", server.openai_url)
    played = run_tiny(
        tmp_path,
        f"{TOOLS},{TEXT}",
        model_name="openai/x,openai/y",
        agent_config=str(config),
        auto_eval=False,
    )
    assert {name: one["model"] for name, one in played.result["agents"].items()} == {
        "agent1": "openai/x",
        "agent2": "openai/y",
    }
    asked = len(server.requests_of("You are agent"))
    again = run_tiny(tmp_path, "replay", run_name="again", agent_config=str(tmp_path / "logs/r"))
    assert len(server.requests_of("You are agent")) == asked
    assert again.evaluation["overall_success"] is True
    for agent_id in ("agent1", "agent2"):
        assert again.patch(agent_id) == played.patch(agent_id)
    assert [one["message"] for one in again.json("conversation.json")["messages"]] == [
        "line 6 is mine"
    ]
    received = [
        step for step in again.trajectory("agent2")["steps"] if step["action"] == "receive_message"
    ]
    assert [step["args"]["content"] for step in received] == ["line 6 is mine"]


def test_agents_work_again_on_recorded_answers(tmp_path: Path, server: ModelServer) -> None:
    """The same agents and models without a provider: every request is the same, messages included."""
    hello = "send_message agent2 'line 6 is mine'; date; sleep 0.1"
    arrived = "while ! ls /cooperbench/team/inbox/* >/dev/null 2>&1; do sleep 0.05; done"
    for agent_id, agent, feature, first in (
        ("agent1", TOOLS, 1, hello),
        ("agent2", TEXT, 2, arrived),
    ):
        actions = [first, patching(golden(feature)), SUBMIT]
        server.script(f"You are {agent_id}", [act(agent, action) for action in actions])
    config = write_config(tmp_path / "agent.yaml", server.openai_url)
    models: dict[str, Any] = {"model_name": "openai/x,openai/y", "agent_config": str(config)}
    then = run_tiny(
        tmp_path, f"{TOOLS},{TEXT}", record=True, step_limit=9, auto_eval=False, **models
    )
    server.close()
    again = run_tiny(
        tmp_path, "replay_model", run_name="again", replay_from="r", agent_config=str(config)
    )
    assert again.evaluation["overall_success"] is True
    for agent_id, agent in then.result["agents"].items():
        now = again.result["agents"][agent_id]
        for name in ("agent", "model", "status", "steps", "model_calls", "prompt_tokens"):
            assert now[name] == agent[name], (agent_id, name)
        assert again.patch(agent_id) == then.patch(agent_id)
    received = [
        step for step in again.trajectory("agent2")["steps"] if step["action"] == "receive_message"
    ]
    assert [step["args"]["content"] for step in received] == ["line 6 is mine"]


def test_an_agent_that_sees_something_else_ends_where_it_does(
    tmp_path: Path, server: ModelServer
) -> None:
    script = [act(TOOLS, "head -c 30 /dev/urandom | base64"), act(TOOLS, SUBMIT)]
    then = run_solo(tmp_path, server, script, record=True)
    assert then.result["agents"]["solo"]["status"] == "submitted"
    config = str(tmp_path / "agent.yaml")
    options: dict[str, Any] = {"replay_from": "r", "agent_config": config, "auto_eval": False}
    again = run_tiny(tmp_path, "replay_model", run_name="again", setting="solo", **options)
    ended = again.result["agents"]["solo"]
    assert ended["status"] == "replay_differs"
    assert (
        "request 2 differs from the recorded run at messages[3].content: recorded" in ended["error"]
    )
    assert ended["steps"] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"agent": "replay_model"}, "-a replay_model and --from RUN belong together"),
        ({"agent": "oracle", "replay_from": "r"}, "-a replay_model and --from RUN belong together"),
        ({"agent": "replay_model", "replay_from": "none"}, "there is no run 'none' in"),
        (
            {"agent": "replay_model", "replay_from": "r"},
            "nothing to replay for .* run with --record",
        ),
    ],
)
def test_what_cannot_be_replayed_is_said_before_anything_starts(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    run_tiny(tmp_path, "nop", auto_eval=False)
    with pytest.raises(UserError, match=said):
        run_tiny(tmp_path, options.pop("agent"), run_name="again", **options)
