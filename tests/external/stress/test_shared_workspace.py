"""Sixteen agents on one tree, in one sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench import run
from tests.integration.runner.test_groups import options, write_wide
from tests.support.runner.helpers import Left
from tests.support.tiny import REPO, TASK_ID, write_script

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)


def test_sixteen_agents_in_one_workspace(tmp_path: Path) -> None:
    count = 16
    data = write_wide(tmp_path / "data", count)
    script = write_script(
        tmp_path / "script.yaml",
        {
            number: [
                {"run": f"echo 'feature {number}' >part{number}.txt; ls part*.txt | wc -l"},
                {"send": {"to": f"agent{number % count + 1}", "text": f"I am agent{number}"}},
                {"wait": {"seconds": 120, "for": "I am"}},
                {"run": f"echo {number} >>part{number}.txt"},
            ]
            for number in range(1, count + 1)
        },
    )
    numbers = list(range(1, count + 1))
    run(
        "many",
        features=numbers,
        agent="scripted",
        agent_config=str(script),
        workspace="shared",
        **options(tmp_path, data, time_limit=600),
    )
    name = "_".join(f"f{number}" for number in numbers)
    left = Left(tmp_path / "logs/many/coop" / REPO / str(TASK_ID) / name)
    assert left.evaluation["overall_success"] is True
    messages = left.json("conversation.json")["messages"]
    assert len(messages) == count
    # Each command has found the folder of its own agent.
    assert {message["message"] for message in messages} == {
        f"I am {message['from']}" for message in messages
    }
    last_agents = {}
    for change in left.json("workspace.json")["changes"]:
        for file in change["files"]:
            last_agents[file["path"]] = change["agents"]
    assert len(last_agents) == count
    for number in numbers:
        assert f"agent{number}" in last_agents[f"part{number}.txt"]
