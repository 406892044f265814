from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cooperbench import records
from cooperbench.importing.transcript import TrajectoryTarget, Transcript, convert_trajectory
from cooperbench.records.trajectory import Step, Trajectory


def convert(tmp_path: Path, content: Any) -> tuple[Transcript, list[Step]]:
    path = tmp_path / "agent1_traj.json"
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(data)
    target = TrajectoryTarget(tmp_path / "out/trajectory.json", "agent1", (1,), "mini", None)
    transcript = convert_trajectory(path, target)
    assert transcript is not None
    written = records.read(target.path, Trajectory)
    return transcript, written.steps if written is not None else []


def actions(steps: list[Step]) -> list[tuple[str, int | None, str]]:
    return [(step.action, step.number, step.observation) for step in steps]


def test_commands_in_code_blocks(tmp_path: Path) -> None:
    """Frameworks without tool calls: the next user message is the output."""
    messages = [
        {"role": "user", "content": "task"},
        {"role": "assistant", "content": "I look.\n```bash\nls\nls -a\n```\n"},
        {"role": "user", "content": "app.py"},
        {"role": "assistant", "content": "Nothing to run."},
        {"role": "user", "content": "Please give a command."},
    ]
    _, steps = convert(tmp_path, {"messages": messages})
    assert actions(steps) == [
        ("tell", None, ""), ("reply", None, ""), ("run", 1, "app.py"), ("reply", None, ""), ("tell", None, ""),
    ]  # fmt: skip
    assert steps[2].args == {"command": "ls\nls -a"}


def test_outputs_belong_to_their_tool_calls(tmp_path: Path) -> None:
    calls = [
        {"id": "a", "function": {"name": "bash", "arguments": '{"command": "ls"}'}},
        {"id": "b", "name": "str_replace", "arguments": {"path": "x", "new": "y"}},
        {"id": "c", "function": {"name": "send_message", "arguments": "not JSON"}},
    ]
    messages = [
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Two parts"}],
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "b", "content": "replaced"},
        {"role": "tool", "tool_call_id": "a", "content": "app.py"},
        {"role": "tool", "tool_call_id": "z", "content": "unknown"},
    ]
    _, steps = convert(tmp_path, {"messages": messages})
    assert actions(steps)[1:4] == [
        ("run", 1, "app.py"), ("str_replace", 2, "replaced"), ("send_message", 3, ""),
    ]  # fmt: skip
    assert steps[0].args == {"content": "Two parts"}
    assert steps[4].args == {"kind": "tool", "content": "unknown"}


def test_messages_of_other_agents(tmp_path: Path) -> None:
    text = "[Message from agent2]: first\nline\n[Message from agent3]: second"
    send = {"function": {"name": "send_message", "arguments": '{"to": "agent2", "content": "hi"}'}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [send]},
        {"role": "user", "content": text, "timestamp": 1762178531},
    ]
    transcript, _ = convert(tmp_path, {"messages": messages})
    received = [(entry.other, entry.text, entry.step) for entry in transcript.received]
    assert received == [("agent2", "first\nline", 1), ("agent3", "second", 1)]
    assert transcript.received[0].timestamp == "2025-11-03T14:02:11.000Z"
    assert [(entry.other, entry.text) for entry in transcript.sent] == [("agent2", "hi")]


def test_times_are_kept_only_if_they_are_times(tmp_path: Path) -> None:
    times = ["2025-11-03T14:02:11", "yesterday", 1e300, -1, None, "2025-11-03T14:02:12+01:00"]
    messages = [{"role": "user", "content": "x", "timestamp": time} for time in times]
    _, steps = convert(tmp_path, {"messages": messages})
    assert [step.timestamp for step in steps] == [times[0], "", "", "", "", times[5]]


def test_long_outputs_are_shortened_and_say_so(tmp_path: Path) -> None:
    messages = [
        {"role": "assistant", "content": "```bash\ncat big\n```"},
        {"role": "user", "content": "x" * 200_000},
    ]
    _, steps = convert(tmp_path, {"messages": messages})
    assert len(steps[1].observation) < 70_000
    assert steps[1].observation_characters == 200_000


@pytest.mark.parametrize(
    ("data", "entries"),
    [
        (b'{"model": "m", "steps": 2, "messages": [{"role": "user", "content": "a"}, {"rol', 1),
        (b'{"model": "m", "messages": [{"role": "user", "content": "a"}', 1),
        (b'{"model": "m", "cost": NaN, "messages": [{"role": "user", "content": "a"}]}', 1),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}, 5, null]}', 3),
        (b'{"model": "m", "messages": [{"role": "user", "content": "caf\xe9"}]}', 1),
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes, entries: int) -> None:
    transcript, steps = convert(tmp_path, data)
    assert (transcript.entries, transcript.model, len(steps)) == (entries, "m", 1)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "agent1_traj.json is not complete JSON: not read"),
        (b"5", "agent1_traj.json does not contain a JSON object"),
        (b'{"model": "m"}', "agent1_traj.json has no messages"),
        (b'{"model": "m", "messages": 7}', "agent1_traj.json has no messages"),
    ],
)
def test_files_without_messages(tmp_path: Path, data: bytes, problem: str) -> None:
    transcript, steps = convert(tmp_path, data)
    assert (transcript.problem, steps) == (problem, [])


def test_no_file(tmp_path: Path) -> None:
    target = TrajectoryTarget(tmp_path / "t.json", "agent1", (1,), None, None)
    assert convert_trajectory(tmp_path / "none.json", target) is None
