"""Relative paths mean the working directory of the call, wherever pairs run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.runner.config import make_config
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from cooperbench.agents.session import AgentSession

MOVER = "tests.integration.runner.executors.test_working_directory:Mover"


class Mover:
    """Changes the working directory of the process, as on another machine."""

    uses_model = False

    def run(self, session: AgentSession) -> None:
        os.chdir("/")
        assert session.pair.task.path.is_dir()
        assert session.config_path is not None
        assert session.config_path.read_text() == "x: 1"


def test_local_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("x: 1")
    relative: dict[str, Any] = {"dataset_dir": "data", "logs_dir": "logs", "agent_config": "a.yaml"}
    left = run_tiny(tmp_path, MOVER, **relative)
    assert left.result["status"] == "completed"
    assert left.evaluation["status"] == "completed"


def test_every_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "data")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/task.md.j2").touch()
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    config = make_config(
        {
            "run_name": "r", "dataset_dir": "data", "logs_dir": "logs", "prompts_dir": "prompts",
            "agent": "nop", "agent_config": "a.yaml, b.yaml", "mount": "tools:/mnt/tools:rw",
        }
    )  # fmt: skip
    assert config.dataset_dir == tmp_path / "data"
    assert config.logs_dir == tmp_path / "logs"
    assert config.prompts_dir == tmp_path / "prompts"
    assert config.agent_config_paths == (tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert config.mount == (f"{tmp_path}/tools:/mnt/tools:rw",)
    single = make_config({"run_name": "r", "dataset_dir": "data", "logs_dir": "logs",
                          "agent": "nop", "agent_config": "a.yaml", "mount": ["x"]})  # fmt: skip
    assert single.agent_config_paths == (tmp_path / "a.yaml",)
    assert single.mount == ("x",), "the backend rejects it as it was given"
