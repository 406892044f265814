"""What is kept of an agent's work: all that it did, as much of what came back as is sensible, and no secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cooperbench.agents.recorder import KEPT_OBSERVATION_CHARACTERS, Recorder
from cooperbench.models import AgentSlot, Task, Usage
from cooperbench.records.trajectory import read_trajectory
from cooperbench.storage import AgentPaths

SECRET = "sk-very-secret-4711"


@pytest.fixture
def paths(tmp_path: Path) -> AgentPaths:
    return AgentPaths(tmp_path, "agent1")


def make_recorder(paths: AgentPaths) -> Recorder:
    return Recorder(
        paths,
        AgentSlot("agent1", (Task("r", 1, Path("x"), (3,)).feature(3),)),
        agent="a",
        model="m",
    )


def test_large_observation_keeps_both_ends(paths: AgentPaths) -> None:
    recorder = make_recorder(paths)
    size = 10 * KEPT_OBSERVATION_CHARACTERS
    command = "#" * size
    recorder.entry("write_file", {"content": command}, "begin" + "x" * size + "end", step=1)
    recorder.finish("submitted", Usage(), 0.0, None)
    trajectory = read_trajectory(paths)
    assert trajectory is not None
    (step,) = trajectory.steps
    assert len(step.observation) < KEPT_OBSERVATION_CHARACTERS + 100
    assert step.observation.startswith("begin")
    assert step.observation.endswith("end")
    cut = size + 8 - KEPT_OBSERVATION_CHARACTERS
    assert f"{cut} characters are not kept" in step.observation
    assert step.observation_characters == size + 8
    assert step.args["content"] == command


def test_secrets_are_in_no_file_whatever_they_came_with(
    paths: AgentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    monkeypatch.setenv("NUMBER_TOKEN", "12345678")
    recorder = make_recorder(paths)
    recorder.reply(f"is it {SECRET}?", Usage(cost=0.12345678), raw={"deep": [{"key": SECRET}]})
    recorder.entry(
        "think", {"content": "x"}, f"Bearer {SECRET}\n12345678", step=1, thought=object()
    )
    recorder.note(f"about {SECRET}")
    recorder.finish("gave_up", Usage(), 0.0, f"refused: {SECRET}")
    for path in (paths.log, paths.trajectory):
        assert SECRET not in path.read_text()
    trajectory = json.loads(paths.trajectory.read_text())
    reply, command = trajectory["steps"]
    assert reply["cost"] == 0.12345678
    assert reply["raw"] == {"deep": [{"key": "[redacted SOME_API_KEY]"}]}
    assert command["observation"] == "Bearer [redacted SOME_API_KEY]\n[redacted NUMBER_TOKEN]"
    assert trajectory["error"] == "refused: [redacted SOME_API_KEY]"


def test_what_was_broken_off_can_be_read_as_far_as_it_came(paths: AgentPaths) -> None:
    recorder = make_recorder(paths)
    for cost in (0.25, 0.5):
        recorder.reply(
            "…", Usage(cost, prompt_tokens=10, completion_tokens=5, cached_tokens=1, calls=1)
        )
    recorder.abandon()
    with paths.journal.open("a") as journal:
        journal.write('{"action": "ru')
    trajectory = read_trajectory(paths)
    assert trajectory is not None
    assert [step.action for step in trajectory.steps] == ["reply", "reply"]
    assert (trajectory.status, trajectory.model, trajectory.feature_id) == (
        "broken_off",
        "m",
        3,
    )
    assert (trajectory.cost, trajectory.model_calls) == (0.75, 2)
    assert trajectory.token_usage is not None
    assert trajectory.token_usage.total_tokens == 30


def test_there_may_be_nothing_to_read(paths: AgentPaths) -> None:
    assert read_trajectory(paths) is None
