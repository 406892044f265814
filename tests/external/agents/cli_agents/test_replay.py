"""The real programs once more, on the answers that were recorded, with no provider there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.agents.frameworks import (
    MODEL,
    TONGUES,
    provide,
    settings,
    write_config,
)
from tests.support.modelserver import ModelServer
from tests.support.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver import Request
    from tests.support.modelserver.replies import Reply

pytestmark = [
    pytest.mark.usefixtures("installed_frameworks"),
]


def works(name: str, number: int) -> Any:
    """An agent that looks around, tells its teammate where it is, and builds its feature when it has heard of that."""
    tongue = TONGUES[name]
    line = number * 10 - 4
    inbox = "/cooperbench/team/inbox"
    answers = [
        tongue.run("pwd; ls; date; git log --format=%H%n%s"),
        tongue.tell(f"agent{3 - number}", f"I am at line {line}"),
        tongue.run(f"while ! ls {inbox}/* >/dev/null 2>&1; do sleep 0.05; done; echo heard"),
        tongue.run(f"sed -i 's/^line {line}$/&\\nfeature {number}/' app.txt; cat app.txt"),
        *tongue.last_words,
    ]

    def reply(request: Request) -> Reply:
        if not request.body.get("tools"):
            return tongue.last_words[0]
        step = sum(message.get("role") in ("assistant", "model") for message in request.messages)
        return answers[min(step, len(answers) - 1)]

    return reply


@pytest.mark.parametrize("names", ["claude_code,codex", "gemini_cli,opencode"])
def test_two_of_them_work_again_on_recorded_answers(names: str, tmp_path: Path) -> None:
    with ModelServer() as server:
        for number, name in enumerate(names.split(","), 1):
            provide(name)
            server.script(f"You are agent{number}", works(name, number))
        config = write_config(tmp_path / "agent.yaml", settings("codex", server.openai_url))
        then = run_tiny(
            tmp_path, names, agent_config=config, model_name=MODEL, record=True, auto_eval=False
        )
    again = run_tiny(
        tmp_path, "replay_model", run_name="again", replay_from="r", agent_config=config
    )
    for agent_id, agent in then.result["agents"].items():
        now = again.result["agents"][agent_id]
        for name in ("error", "agent", "model", "status", "steps", "prompt_tokens"):
            assert now[name] == agent[name], (agent_id, name)
        assert agent["status"] == "submitted"
        runs = [
            step["args"] for step in then.trajectory(agent_id)["steps"] if step["action"] == "run"
        ]
        assert runs == [
            step["args"] for step in again.trajectory(agent_id)["steps"] if step["action"] == "run"
        ]
        heard = [
            step
            for step in again.trajectory(agent_id)["steps"]
            if step["action"] == "receive_message"
        ]
        assert len(heard) == 1
    assert again.evaluation["overall_success"] is True


def test_what_their_tools_wrote_is_played_again_without_them(tmp_path: Path) -> None:
    """By the agent `replay`, from the trajectory: commands, and files by the names that each program has for them."""
    run_tiny(tmp_path, "nop", setting="solo", auto_eval=False)
    path = tmp_path / "logs/r/solo/tiny_task/7/f1_f2/solo/trajectory.json"
    trajectory = json.loads(path.read_text())
    repo = "/workspace/repo"
    wrote: list[tuple[str, dict[str, Any]]] = [
        ("run", {"command": "printf 'a\\nb\\na\\n' >new.txt", "timeout_seconds": 9}),
        ("Edit", {"file_path": f"{repo}/new.txt", "old_string": "b", "new_string": "c"}),
        ("Edit", {"file_path": f"{repo}/new.txt", "old_string": "not there", "new_string": "x"}),
        (
            "edit",
            {"filePath": f"{repo}/new.txt", "oldString": "a", "newString": "d", "replaceAll": True},
        ),
        ("write_file", {"path": "other.txt", "content": "one\n"}),
        ("write", {"filePath": f"{repo}/more.txt", "content": "two\n"}),
        ("write_file", {"file_path": f"{repo}/third.txt", "content": "three\n"}),
        ("Read", {"file_path": f"{repo}/new.txt"}),
    ]
    trajectory["steps"] = [{"action": name, "args": args, "step": 1} for name, args in wrote]
    path.write_text(json.dumps(trajectory))
    again = run_tiny(
        tmp_path,
        "replay",
        run_name="again",
        setting="solo",
        agent_config=str(tmp_path / "logs/r"),
        auto_eval=False,
    )
    added = [
        line for line in again.patch("solo").splitlines() if line[:1] == "+" and line[:3] != "+++"
    ]
    assert added == ["+two", "+d", "+c", "+d", "+one", "+three"]
