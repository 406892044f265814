"""A pytest suite with the requirements that every agent must meet.

    class TestMyAgent(AgentConformance):
        @pytest.fixture
        def agent(self) -> AgentUnderTest:
            return AgentUnderTest("./my_agent", model="openai/my-model")

It runs on a pair of the demo dataset in local sandboxes. Whether the agent solves its task does not
matter.
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

import pytest

from cooperbench.models import Setting
from cooperbench.records import JsonObject
from cooperbench.records.trajectory import read_trajectory
from cooperbench.storage import AgentPaths, ExperimentPaths, PairPaths

_RUN_NAME = "conformance"
_RUN_TIMEOUT_SECONDS = 300.0
_SECRET_NAME = "CONFORMANCE_API_KEY"  # noqa: S105  # the name of a variable
_SECRET = "conformance-secret-7391846250"  # noqa: S105  # made up


@dataclass(frozen=True)
class AgentUnderTest:
    """An agent with the options that `cooperbench run` gets for it."""

    agent: str
    model: str | None = None
    config: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, logs: Path, setting: Setting, *options: str) -> subprocess.Popen[str]:
        """Start a run on one pair of the demo dataset. Its sandboxes are local."""
        argv = [sys.executable, "-m", "cooperbench", "run"]
        argv += ["-n", _RUN_NAME, "-a", self.agent, "--setting", setting, "--backend", "local"]
        argv += ["--dataset-dir", "demo", "-r", "stencil_task", "-t", "0", "-f", "1,2"]
        argv += ["--no-auto-eval", "--log-dir", str(logs), *options]
        if self.model:
            argv += ["-m", self.model]
        if self.config:
            argv += ["--agent-config", str(self.config)]
        return subprocess.Popen(
            argv,
            env={**os.environ, **self.environment, _SECRET_NAME: _SECRET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, logs: Path, setting: Setting, *options: str) -> PairPaths:
        """Run to the end, and return where the pair's files are."""
        exit_code, output = _wait_for_end(self.start(logs, setting, *options))
        assert exit_code == 0, output
        return _pair_paths(logs, setting)


def _pair_paths(logs: Path, setting: Setting) -> PairPaths:
    return ExperimentPaths(logs, _RUN_NAME).pair_named(setting, "stencil_task", 0, (1, 2))


def _wait_for_end(run: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and the output of a run.

    The test fails if the run does not end in time, or if it leaves processes behind.
    """
    try:
        output, _ = run.communicate(timeout=_RUN_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        run.kill()  # its sandboxes and workers end with it
        output, _ = run.communicate()
        pytest.fail(f"the run did not end within {_RUN_TIMEOUT_SECONDS:g} s; output:\n{output}")
    assert _processes_of(run.pid) == [], "processes that outlived the run"
    return run.returncode, output


def _processes_of(leader: int) -> list[int]:
    """Return processes of a run's session, and others that use one of its temporary folders."""
    folder_pattern = re.compile(rb"/cooperbench-[a-z]+-%d-" % leader)
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            texts = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:
            continue
        state, session = fields[0], int(fields[3])
        is_zombie = state == b"Z"
        if not is_zombie and (session == leader or folder_pattern.search(texts)):
            pids.append(int(folder.name))
    return pids


class AgentConformance:
    """The suite. Subclass it and override the fixture `agent`."""

    @pytest.fixture
    def agent(self) -> AgentUnderTest:
        """Return the agent to test."""
        raise NotImplementedError("override the fixture agent")

    def test_solo(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        """Alone, the agent submits, is on record, and writes no API key to disk."""
        _check_records(agent.run(tmp_path, "solo"), ["solo"])
        for path in tmp_path.rglob("*"):
            if path.is_file():
                assert _SECRET.encode() not in path.read_bytes(), f"{path} contains an API key"

    def test_coop(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        """Both agents of a pair submit and are on record."""
        paths = agent.run(tmp_path, "coop")
        _check_records(paths, ["agent1", "agent2"])
        assert "messages" in json.loads(paths.conversation.read_text())

    def test_step_limit(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        """The agent takes no more steps than it may."""
        paths = agent.run(tmp_path, "solo", "--step-limit", "1")
        (record,) = _check_records(paths, ["solo"])
        assert record["steps"] <= 1

    def test_time_limit(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        """The agent ends when its time is up."""
        paths = agent.run(tmp_path, "solo", "--time-limit", "0.2")
        (record,) = _check_records(paths, ["solo"])
        assert record["status"] in ("time_limit", "submitted")

    def test_interrupt(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        """Ctrl-C ends the run and everything that it has started."""
        process = agent.start(tmp_path, "solo")
        deadline = time.monotonic() + _RUN_TIMEOUT_SECONDS
        log = _pair_paths(tmp_path, "solo").agent("solo").log
        while not log.exists() and process.poll() is None:
            assert time.monotonic() < deadline, "the agent never started"
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        exit_code, output = _wait_for_end(process)
        # A very fast agent may have submitted already.
        assert exit_code in (0, 130), output


def _check_records(paths: PairPaths, agent_ids: Sequence[str]) -> list[JsonObject]:
    """Return the agents' parts of result.json, after comparing them with the other files."""
    result = json.loads(paths.result.read_text())
    assert result["status"] == "completed", result["error"]
    records = [result["agents"][agent_id] for agent_id in agent_ids]
    for record in records:
        _check_record(record, paths.agent(record["agent_id"]))
    return records


def _check_record(record: JsonObject, files: AgentPaths) -> None:
    assert files.patch.is_file()
    trajectory = read_trajectory(files)
    assert trajectory is not None, "there is no trajectory"
    steps = [step for step in trajectory.steps if step.number is not None]
    assert len(steps) == record["steps"], "some steps are not on record"
    replies = [step for step in trajectory.steps if step.action == "reply"]
    assert len(replies) == record["model_calls"], "some model calls are not on record"
    for name in ("cost", "prompt_tokens", "completion_tokens"):
        assert record[name] >= 0
