"""Trajectories, and journals of agents that were interrupted."""

from __future__ import annotations

from pathlib import Path

from cooperbench.records.trajectory import (
    Step,
    TokenCounts,
    encode_step,
    read_journal,
    read_trajectory,
)
from cooperbench.storage import AgentPaths

RUN = Path(__file__).parent / "runs/logs/demo-coop/coop/coinage_task/3/f1_f2"


def test_steps_have_types() -> None:
    trajectory = read_trajectory(AgentPaths(RUN, "agent1"))
    assert trajectory is not None
    steps = [step for step in trajectory.steps if step.number is not None]
    assert [step.number for step in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[0].returncode == 0
    assert trajectory.token_usage is not None
    assert trajectory.token_usage.total_tokens == 0


def test_a_journal_without_an_end_is_a_trajectory(tmp_path: Path) -> None:
    paths = AgentPaths(tmp_path, "agent2")
    tokens = TokenCounts(prompt_tokens=10, completion_tokens=2, cached_tokens=4)
    journal = [
        Step(action="start", args={"agent": "x", "feature_ids": [2]}, timestamp="t0"),
        Step(action="reply", args={"content": "hi"}, tokens=tokens, cost=0.5, timestamp="t1"),
        Step(action="run", args={"command": "ls"}, step=1, extra={"tool": "bash"}, timestamp="t2"),
    ]
    lines = b"\n".join(encode_step(step) for step in journal)
    paths.journal.parent.mkdir(parents=True)
    paths.journal.write_bytes(lines + b'\n7\n{"action": "run", "args": {"comm')
    assert read_journal(paths) == journal
    trajectory = read_trajectory(paths)
    assert trajectory is not None
    assert (trajectory.agent_id, trajectory.agent, trajectory.feature_ids) == ("agent2", "x", [2])
    assert (trajectory.status, trajectory.start_time, trajectory.end_time) == (
        *("broken_off", "t0", "t2"),
    )
    assert (trajectory.cost, trajectory.model_calls) == (0.5, 1)
    assert trajectory.token_usage is not None
    assert trajectory.token_usage.total_tokens == 12
    assert trajectory.steps == journal[1:]
    assert read_trajectory(AgentPaths(tmp_path, "agent1")) is None
