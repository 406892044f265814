"""What an agent can do, what it cannot, and that its work is handed in however it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.agents.scripted import steps_for
from tests.support.runner.helpers import Left, run_tiny
from tests.support.tiny import golden, write_script

if TYPE_CHECKING:
    from pathlib import Path


def play(tmp_path: Path, first: list[Any], second: list[Any] | None = None, **options: Any) -> Left:
    """A pair in which agent1 plays `first`."""
    script = write_script(tmp_path / "script.yaml", {1: first, 2: second or []})
    (tmp_path / "golden1.patch").write_text(golden(1))
    (tmp_path / "golden2.patch").write_text(golden(2))
    return run_tiny(tmp_path, "scripted", agent_config=str(script), **options)


def run_one(tmp_path: Path, command: str, **options: Any) -> Left:
    return play(tmp_path, [{"run": command}], auto_eval=False, **options)


@pytest.mark.parametrize(
    "afterwards",
    [
        "git -c user.name=a -c user.email=a@b add -A && git -c user.name=a -c user.email=a@b commit -qm done",
        "git add -A",
        "rm -rf .git",
        "rm -rf .git && git init -q",
        "git checkout -q --orphan other && git rm -rqf --cached .",
        "git config core.excludesFile /tmp/all && echo '*' >/tmp/all",
        "printf '#!/bin/sh\\nexit 1\\n' >.git/hooks/pre-commit && chmod +x .git/hooks/pre-commit && git config core.fsmonitor /bin/false",
        "chmod 000 .git",
    ],
)
def test_work_is_handed_in_whatever_was_done_to_git(tmp_path: Path, afterwards: str) -> None:
    change = r"""sed -i '3s/.*/changed/' app.txt && printf 'new\n' >new.txt && rm tests/base.sh &&
        mkdir -p ignored && echo x >ignored/x && echo x >debug.log && printf '\0\1\377' >data.bin"""
    patch = run_one(tmp_path, f"{change} && {{ {afterwards}; }}").patch()
    for part in (
        "+changed\n",
        "+++ b/new.txt",
        "--- a/tests/base.sh",
        "GIT binary patch",
        "diff --git a/data.bin b/data.bin",
    ):
        assert part in patch
    assert "ignored/x" not in patch
    assert "debug.log" not in patch


def test_nested_repository_is_collected_as_files(tmp_path: Path) -> None:
    patch = run_one(tmp_path, "mkdir sub && cd sub && git init -q && echo inner >file.txt").patch()
    assert "+++ b/sub/file.txt" in patch
    assert "Subproject" not in patch


def test_agents_find_no_history_and_start_from_the_same_commit(tmp_path: Path) -> None:
    look = (
        "git log --all --oneline | wc -l; git rev-parse HEAD; git remote; git tag; git reflog | wc -l; "
        "git cat-file --batch-all-objects --batch-check | grep -c commit; grep -r 'secret future' . || echo clean; git status --short"
    )
    left = play(tmp_path, [{"run": look}], [{"run": look}], auto_eval=False)
    first, second = left.observations("agent1"), left.observations("agent2")
    assert first == second
    count, commit, *rest = first[0].split()
    assert count == "1"
    assert commit == left.result["base_commit"]
    assert rest[-1] == "clean"
    assert "2" not in rest[:2]


def test_nothing_of_the_environment_reaches_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    (seen,) = run_one(
        tmp_path, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"
    ).observations()
    assert "HOME=" in seen
    assert "secret" not in seen


def test_the_step_limit_is_an_outcome_with_its_work_judged(tmp_path: Path) -> None:
    steps = [{"apply": "golden1.patch"}, {"run": "true"}, {"run": "echo too late >>app.txt"}]
    left = play(tmp_path, steps, [{"apply": "golden2.patch"}], step_limit=2)
    agent = left.result["agents"]["agent1"]
    assert (agent["status"], agent["steps"]) == ("step_limit", 2)
    assert left.evaluation["overall_success"] is True


def test_the_time_limit_ends_a_running_command(tmp_path: Path) -> None:
    left = run_one(
        tmp_path, "echo started >>app.txt; sleep 1000; echo never >>app.txt", time_limit=1.0
    )
    agent = left.result["agents"]["agent1"]
    assert agent["status"] == "time_limit"
    assert agent["duration_seconds"] < 60
    assert "+started" in left.patch()
    assert "never" not in left.patch()
    assert left.trajectory()["steps"][-1]["timed_out"] is True


def test_giving_up_is_an_outcome(tmp_path: Path) -> None:
    left = play(
        tmp_path, [{"write": {"path": "notes.txt", "content": "half\n"}}, {"give_up": "too hard"}]
    )
    agent = left.result["agents"]["agent1"]
    assert (agent["status"], agent["error"]) == ("gave_up", "too hard")
    assert "+half" in left.patch()
    assert left.evaluation["agent1"]["success"] is False


def test_tests_and_config_come_from_the_dataset(tmp_path: Path) -> None:
    cheat = [
        {
            "run": "echo true >tests/f1.sh; echo 'import os; os._exit(0)' >conftest.py; echo ok >>README.md"
        }
    ]
    evaluation = play(tmp_path, cheat).evaluation
    assert evaluation["agent1"]["success"] is False
    assert {(file["path"], file["reason"]) for file in evaluation["agent1"]["dropped_files"]} == {
        ("conftest.py", "test_config"),
        ("tests/f1.sh", "hidden_test"),
    }


def test_replay_plays_commands_and_messages_again(tmp_path: Path) -> None:
    first = [
        {"send": "which line?"},
        {"wait": {"for": "five"}},
        {"when": {"said": "five", "then": [{"apply": "golden1.patch"}]}},
    ]
    second = [
        {"wait": {"for": "which"}},
        {"send": "five"},
        {"write": {"path": "b.bin", "content": "x"}},
        {"apply": "golden2.patch"},
    ]
    original = play(tmp_path, first, second)
    replayed = run_tiny(tmp_path, "replay", run_name="again", agent_config=str(tmp_path / "logs/r"))
    for agent in ("agent1", "agent2"):
        assert replayed.patch(agent) == original.patch(agent) != ""
    texts = [
        [message["message"] for message in left.json("conversation.json")["messages"]]
        for left in (original, replayed)
    ]
    assert texts[0] == texts[1] == ["which line?", "five"]
    assert replayed.evaluation["overall_success"] is True


def test_the_helper_of_these_tests_writes_what_scripted_reads(tmp_path: Path) -> None:
    from cooperbench.dataset.discovery import discover
    from cooperbench.models import agent_slots
    from tests.support.tiny import write_tiny

    script = write_script(
        tmp_path / "s.yaml", {1: [{"run": "true"}], 2: []}, solo=[{"think": "hm"}]
    )
    (pair,) = discover(write_tiny(tmp_path / "d"), features=[1, 2]).pairs
    (solo,) = agent_slots(pair, "solo")
    assert steps_for(script, pair, solo, "solo") == [{"think": "hm"}]
