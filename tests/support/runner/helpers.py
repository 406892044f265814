"""Small experiments on the local backend, and what they left on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench import run
from tests.support.tiny import REPO, TASK_ID, write_tiny

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Left:
    """One pair's folder."""

    folder: Path

    def json(self, name: str) -> dict[str, Any]:
        content = json.loads((self.folder / name).read_text())
        assert isinstance(content, dict)
        return content

    @property
    def result(self) -> dict[str, Any]:
        return self.json("result.json")

    @property
    def evaluation(self) -> dict[str, Any]:
        return self.json("eval.json")

    def patch(self, agent_id: str = "agent1") -> str:
        return (self.folder / f"{agent_id}.patch").read_text()

    def trajectory(self, agent_id: str = "agent1") -> dict[str, Any]:
        return self.json(f"{agent_id}/trajectory.json")

    def observations(self, agent_id: str = "agent1") -> list[str]:
        return [
            step["observation"] for step in self.trajectory(agent_id)["steps"] if "step" in step
        ]


def run_tiny(
    tmp_path: Path, agent: str, features: tuple[int, ...] = (1, 2), **options: Any
) -> Left:
    """`run()` on the tiny dataset; the folder of the pair."""
    dataset = tmp_path / "data"
    if not dataset.exists():
        write_tiny(dataset)
    settings: dict[str, Any] = {
        "run_name": "r", "agent": agent, "backend": "local", "dataset_dir": dataset, "logs_dir": tmp_path / "logs",
        "features": list(features), "concurrency": 2, "eval_concurrency": 2,
    } | options  # fmt: skip
    run(**settings)
    name = "_".join(f"f{number}" for number in features)
    setting = options.get("setting", "coop")
    return Left(tmp_path / "logs" / settings["run_name"] / setting / REPO / str(TASK_ID) / name)
