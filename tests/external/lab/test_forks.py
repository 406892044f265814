"""Forks of pairs of real frameworks, whose programs run again up to the fork point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.environments import DATA_VARIABLE
from cooperbench.cli import main
from cooperbench.storage import read_json
from tests.support.agents.frameworks import DATA, MODEL, provide, settings, write_config
from tests.support.lab.frameworks import Pair
from tests.support.modelserver import ModelServer
from tests.support.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path


def config_of(names: str, tmp_path: Path, url: str) -> str:
    """CLIs share a config; other frameworks have one each."""
    texts = [
        str(write_config(tmp_path / f"{name}.yaml", settings(name, url)))
        for name in names.split(",")
    ]
    return ",".join(texts)


@pytest.mark.parametrize(
    "names", ["claude_code,codex", "gemini_cli,opencode", "openhands,swe_agent"]
)
def test_real_programs_are_forked(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    first, second = names.split(",")
    for name in (first, second):
        provide(name)
    with ModelServer() as server:
        pair = Pair(server, first, second)
        config = config_of(names, tmp_path, server.openai_url)
        run_tiny(
            tmp_path, names, agent_config=config, model_name=MODEL, record=True, auto_eval=False
        )
        pair.is_recorded = True
        words = [
            "fork", "r", "-n", "f", "--drop-message", "1", "--agent-config", config, "--backend", "local",
            "--dataset-dir", str(tmp_path / "data"), "--log-dir", str(tmp_path / "logs"), "--no-canary",
        ]  # fmt: skip
        assert main(words) == 0
    outcomes = {}
    for path in (tmp_path / "logs/f").glob("*/coop/*/*/*/eval.json"):
        arm = path.relative_to(tmp_path / "logs/f").parts[0]
        outcomes[arm] = (read_json(path) or {})["overall_success"]
    assert outcomes == {"control": True, "drop-message-1": False}
    (forked,) = (read_json(tmp_path / "logs/f/forks.json") or {})["pairs"]
    recorded = 0
    for agent_id, replayed in forked["exchanges"].items():
        path = tmp_path / "logs/f/control/coop/tiny_task/7/f1_f2" / agent_id / "trajectory.json"
        trajectory = read_json(path) or {}
        assert trajectory["model_calls"] < len(
            [step for step in trajectory["steps"] if step["action"] == "reply"]
        )
        recorded += replayed
    assert recorded >= 2
