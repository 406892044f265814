"""What models did is played again without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.agents.mini_swe.helpers import SUBMIT, TEXT, TOOLS, act, patching, write_config
from tests.runner.helpers import run_tiny
from tests.tiny import golden

if TYPE_CHECKING:
    from pathlib import Path

    from tests.modelserver import Answer, ModelServer


def test_a_run_of_two_frameworks_is_played_again(tmp_path: Path, server: ModelServer) -> None:
    """Cross-play too: the two sides differ in agent and model. agent2 hears of agent1 before its next step."""

    def script(agent: str, feature: int, first: str) -> list[Answer]:
        return [act(agent, first), act(agent, patching(golden(feature))), act(agent, SUBMIT)]

    arrived = "while ! ls /cooperbench/team/inbox/* >/dev/null 2>&1; do sleep 0.05; done"
    server.script("You are agent1", script(TOOLS, 1, "send_message agent2 'line 6 is mine'"))
    server.script("You are agent2", script(TEXT, 2, arrived))
    config = write_config(tmp_path / "agent.yaml", server.openai_url)
    played = run_tiny(
        tmp_path, f"{TOOLS},{TEXT}", model_name="openai/x,openai/y", agent_config=str(config), auto_eval=False
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
    assert [one["message"] for one in again.json("conversation.json")["messages"]] == ["line 6 is mine"]
    received = [step for step in again.trajectory("agent2")["steps"] if step["action"] == "receive_message"]
    assert [step["args"]["content"] for step in received] == ["line 6 is mine"]
