"""Refusals of requests and tasks for agents that are not in the team."""

from __future__ import annotations

import pytest

from cooperbench.team.requests import Requests
from cooperbench.team.task_list import TaskList
from cooperbench.team.teammates import Teammates


@pytest.mark.parametrize(
    ("team", "teammates"),
    [(("agent1", "agent2"), "agent2"), (("agent1", "agent2", "agent3"), "agent2, agent3")],
)
def test_refusals_name_the_agents(team: tuple[str, ...], teammates: str) -> None:
    agents = Teammates(team, lambda _: 1, lambda *_: None)
    refusal = Requests(agents).ask("agent1", "agent9", "review", "Please look.")
    assert refusal.text == f"no teammate 'agent9'; your teammates: {teammates}"
    refusal = TaskList(agents).create("agent1", "Write tests", assign="agent9")
    assert refusal.text == f"no agent 'agent9'; agents of the team: agent1, {teammates}"
