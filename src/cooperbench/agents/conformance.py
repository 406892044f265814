"""A pytest suite with what every agent must do, for agents of any kind.

    class TestMyAgent(AgentConformance):
        @pytest.fixture
        def agent(self) -> AgentUnderTest:
            return AgentUnderTest("./my_agent", model="openai/my-model")

It runs on a pair of the demo dataset in local sandboxes. Whether the agent solves anything is not asked.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cooperbench.models import Setting
from cooperbench.records.trajectory import read_trajectory
from cooperbench.storage import ExperimentPaths, PairPaths

_RUN_TIMEOUT_SECONDS = 300.0
_SECRET_NAME = "CONFORMANCE_API_KEY"  # noqa: S105  # a name
_SECRET = "conformance-secret-7391846250"  # noqa: S105  # made up


@dataclass(frozen=True)
class AgentUnderTest:
    """An agent as it is given to `cooperbench run`."""

    agent: str
    model: str | None = None
    config: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, logs: Path, setting: Setting, *more: str) -> subprocess.Popen[str]:
        words = [
            "run",
            "-n",
            "conformance",
            "-a",
            self.agent,
            "--setting",
            setting,
            "--backend",
            "local",
        ]
        words += [
            "--dataset-dir",
            "demo",
            "-r",
            "stencil_task",
            "-t",
            "0",
            "-f",
            "1,2",
            "--no-auto-eval",
        ]
        words += ["--log-dir", str(logs), *more]
        words += ["-m", self.model] if self.model else []
        words += ["--agent-config", str(self.config)] if self.config else []
        return subprocess.Popen(
            [sys.executable, "-m", "cooperbench", *words],
            env={**os.environ, **self.environment, _SECRET_NAME: _SECRET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, logs: Path, setting: Setting, *more: str) -> PairPaths:
        code, output = _ended(self.start(logs, setting, *more))
        assert code == 0, output
        return _paths(logs, setting)


def _paths(logs: Path, setting: Setting) -> PairPaths:
    return ExperimentPaths(logs, "conformance").pair_named(setting, "stencil_task", 0, (1, 2))


def _ended(run: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code of a run and what it said. One that does not end in time, or leaves something behind, fails."""
    try:
        output, _ = run.communicate(timeout=_RUN_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        run.kill()  # its sandboxes and workers end with it
        output, _ = run.communicate()
        pytest.fail(f"the run did not end within {_RUN_TIMEOUT_SECONDS:g} s; it said:\n{output}")
    assert _running_below(run.pid) == [], "processes that outlived the run"
    return run.returncode, output


def _running_below(leader: int) -> list[int]:
    """Processes of the session that a run was, and those elsewhere that live in one of its temporary folders."""
    folders = re.compile(rb"/cooperbench-[a-z]+-%d-" % leader)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            words = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if fields[0] != b"Z" and (int(fields[3]) == leader or folders.search(words)):
            found.append(int(folder.name))
    return found


class AgentConformance:
    """Subclass it and override `agent`."""

    @pytest.fixture
    def agent(self) -> AgentUnderTest:
        raise NotImplementedError("override the fixture agent")

    def test_alone_it_hands_in_and_is_on_record(
        self, agent: AgentUnderTest, tmp_path: Path
    ) -> None:
        _records(agent.run(tmp_path, "solo"), ["solo"])
        for path in tmp_path.rglob("*"):
            if path.is_file():
                assert _SECRET.encode() not in path.read_bytes(), f"{path} has a key in it"

    def test_beside_a_teammate_it_hands_in(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        paths = agent.run(tmp_path, "coop")
        _records(paths, ["agent1", "agent2"])
        assert "messages" in json.loads(paths.conversation.read_text())

    def test_it_keeps_to_a_limit_of_steps(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        (record,) = _records(agent.run(tmp_path, "solo", "--step-limit", "1"), ["solo"])
        assert record["steps"] <= 1

    def test_it_keeps_to_a_limit_of_time(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        (record,) = _records(agent.run(tmp_path, "solo", "--time-limit", "0.2"), ["solo"])
        assert record["status"] in ("time_limit", "submitted")

    def test_told_to_stop_it_stops(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        process = agent.start(tmp_path, "solo")
        deadline = time.monotonic() + _RUN_TIMEOUT_SECONDS
        while not _paths(tmp_path, "solo").agent("solo").log.exists() and process.poll() is None:
            assert time.monotonic() < deadline, "it never started"
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        code, output = _ended(process)
        # One that is very fast may have handed in already.
        assert code in (0, 130), output


def _records(paths: PairPaths, agent_ids: Sequence[str]) -> list[dict[str, Any]]:
    """The agents' parts of result.json, checked against what else is on disk."""
    result = json.loads(paths.result.read_text())
    assert result["status"] == "completed", result["error"]
    records = [result["agents"][agent_id] for agent_id in agent_ids]
    for record in records:
        files = paths.agent(record["agent_id"])
        assert files.patch.is_file()
        trajectory = read_trajectory(files)
        assert trajectory is not None, "no trajectory"
        steps = [step for step in trajectory.steps if step.number is not None]
        assert len(steps) == record["steps"], "steps that are not on record"
        replies = [step for step in trajectory.steps if step.action == "reply"]
        assert len(replies) == record["model_calls"], "model calls that are not on record"
        assert all(record[name] >= 0 for name in ("cost", "prompt_tokens", "completion_tokens"))
    return records
