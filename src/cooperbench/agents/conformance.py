"""What every agent must do whatever it is made of, as a pytest suite that any of them can be put through.

    class TestMyAgent(AgentConformance):
        @pytest.fixture
        def agent(self) -> AgentUnderTest:
            return AgentUnderTest("./my_agent", model="openai/my-model")

It runs the agent on a pair of the demo dataset in local sandboxes, as `cooperbench run` does. Whether the agent solves
anything is not asked: it has to hand in, keep to its limits, be on record, keep secrets, and leave nothing running.
An agent that asks a model needs one that answers; a scripted server on loopback is enough.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.agents.recorder import read_trajectory
from cooperbench.storage import ExperimentPaths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.storage import PairPaths

_REPO, _TASK, _FEATURES = "stencil_task", 0, (1, 2)
_PATIENCE_SECONDS = 300.0
_SECRET_NAME = "CONFORMANCE_API_KEY"  # noqa: S105  # a name
_SECRET = "conformance-secret-7391846250"  # noqa: S105  # made up


@dataclass(frozen=True)
class AgentUnderTest:
    """An agent as it is given to `cooperbench run`."""

    agent: str
    model: str | None = None
    config: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, logs: Path, *more: str) -> list[str]:
        numbers = ",".join(map(str, _FEATURES))
        words = ["run", "-n", "conformance", "-a", self.agent, "--backend", "local", "--dataset-dir", "demo"]
        words += ["-r", _REPO, "-t", str(_TASK), "-f", numbers, "--log-dir", str(logs), "--no-auto-eval"]
        words += more
        if self.model:
            words += ["-m", self.model]
        if self.config:
            words += ["--agent-config", str(self.config)]
        return words

    def start(self, logs: Path, *more: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **self.environment, _SECRET_NAME: _SECRET}
        return subprocess.Popen(
            [sys.executable, "-m", "cooperbench", *self.words(logs, *more)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, logs: Path, *more: str) -> PairPaths:
        code, output = ended(self.start(logs, *more))
        assert code == 0, output
        setting: Setting = "solo" if "solo" in more else "coop"
        return ExperimentPaths(logs, "conformance").pair_named(setting, _REPO, _TASK, _FEATURES)


def ended(run: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code of a run and what it said. One that does not end in time, or leaves something behind, fails."""
    try:
        output, _ = run.communicate(timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        run.kill()  # its sandboxes and workers end with it
        output, _ = run.communicate()
        pytest.fail(f"the run did not end within {_PATIENCE_SECONDS:g} s; it said:\n{output}")
    assert running_below(run.pid) == [], "processes that outlived the run"
    return run.returncode, output


def running_below(leader: int) -> list[int]:
    """Processes of the session that a run was, and those elsewhere that live in one of its temporary folders."""
    folders = re.compile(rb"/cooperbench-[a-z]+-%d-" % leader)
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
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

    def test_alone_it_hands_in_and_is_on_record(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        paths = agent.run(tmp_path, "--setting", "solo")
        self._check_record(paths, ["solo"])
        for path in tmp_path.rglob("*"):
            if path.is_file():
                assert _SECRET.encode() not in path.read_bytes(), f"{path} has a key in it"

    def test_beside_a_colleague_it_hands_in(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        paths = agent.run(tmp_path, "--setting", "coop")
        self._check_record(paths, ["agent1", "agent2"])
        assert "messages" in json.loads(paths.conversation.read_text())

    def test_it_keeps_to_a_limit_of_steps(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        paths = agent.run(tmp_path, "--setting", "solo", "--step-limit", "1")
        (record,) = self._check_record(paths, ["solo"])
        assert record["steps"] <= 1

    def test_it_keeps_to_a_limit_of_time(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        paths = agent.run(tmp_path, "--setting", "solo", "--time-limit", "0.2")
        (record,) = self._check_record(paths, ["solo"])
        assert record["status"] in ("time_limit", "submitted")

    def test_told_to_stop_it_stops(self, agent: AgentUnderTest, tmp_path: Path) -> None:
        process = agent.start(tmp_path, "--setting", "solo")
        paths = ExperimentPaths(tmp_path, "conformance").pair_named("solo", _REPO, _TASK, _FEATURES)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not paths.agent("solo").log.exists() and process.poll() is None:
            assert time.monotonic() < deadline, "it never started"
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        code, output = ended(process)
        # One that is very fast may have handed in already.
        assert code in (0, 130), output

    def _check_record(self, paths: PairPaths, agent_ids: Sequence[str]) -> list[dict[str, Any]]:
        result = json.loads(paths.result.read_text())
        assert result["status"] == "completed", result["error"]
        records = [result["agents"][agent_id] for agent_id in agent_ids]
        for record in records:
            files = paths.agent(record["agent_id"])
            assert files.patch.is_file()
            trajectory = read_trajectory(files)
            assert trajectory is not None, "no trajectory"
            steps = [entry for entry in trajectory["steps"] if "step" in entry]
            assert len(steps) == record["steps"], "steps that are not on record"
            replies = [entry for entry in trajectory["steps"] if entry["action"] == "reply"]
            assert len(replies) == record["model_calls"], "model calls that are not on record"
            assert all(record[name] >= 0 for name in ("cost", "prompt_tokens", "completion_tokens"))
        return records
