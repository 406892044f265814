"""A recorded pair of models is forked in containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench import run
from cooperbench.cli import main
from cooperbench.storage import read_json
from tests.support.docker.tasks import write_buildable
from tests.support.lab.forks import Laboratory
from tests.support.modelserver import ModelServer

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.backends.docker import DockerBackend


def test_a_message_is_dropped_in_containers(
    docker: DockerBackend,  # makes the image
    base_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={base_image}")
    write_buildable(tmp_path / "data")
    with ModelServer() as server:
        laboratory = Laboratory(tmp_path, server)
        run(
            "r", agent=laboratory.agent, model_name="openai/x", agent_config=str(laboratory.config), backend="docker",
            features=[1, 2], dataset_dir=tmp_path / "data", logs_dir=laboratory.logs, record=True, auto_eval=False,
        )  # fmt: skip
        laboratory.is_recorded = True
        words = laboratory.words("-n", "f", "--drop-message", "1")
        words[words.index("local")] = "docker"
        assert main(words) == 0
    outcomes = {}
    for path in (laboratory.logs / "f").glob("*/coop/*/*/*/eval.json"):
        arm = path.relative_to(laboratory.logs / "f").parts[0]
        outcomes[arm] = (read_json(path) or {})["overall_success"]
    assert outcomes == {"control": True, "drop-message-1": False}
