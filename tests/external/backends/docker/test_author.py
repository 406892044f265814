"""A dataset that `cooperbench author` has made, on an engine: golden patches pass, no work fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cooperbench.cli import main
from tests.support.author.repositories import mixed_history

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from cooperbench.backends.docker import DockerBackend


def test_a_mined_task_runs_end_to_end(
    docker: DockerBackend,
    base_image: str,
    worker_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={base_image}")
    template = f"cooperbench-test-author-{worker_name}/{{repo}}:{{task_id}}"
    monkeypatch.setenv("COOPERBENCH_IMAGE_TEMPLATE", template)
    mixed_history(tmp_path / "shapes")
    assert main(["author", "mine", "shapes", "--backend", "docker", "--max", "1"]) == 0
    assert main(["author", "accept", "shapes", "1,2,3"]) == 0
    check = ["author", "check", "shapes", "--backend", "docker", "--repeat", "1"]
    assert main([*check, "--no-attacks"]) == 0
    assert successes(tmp_path, "oracle") == (3, 3)
    assert successes(tmp_path, "nop") == (0, 3)
    assert main(["images", "clean", "--built", "--dataset-dir", "dataset"]) == 0


def successes(folder: Path, agent: str) -> tuple[int, int]:
    """How many pairs of a coop run succeeded, and of how many."""
    run = ["run", "-n", agent, "-a", agent, "--backend", "docker", "--dataset-dir", "dataset"]
    main(run)
    summary = json.loads((folder / "logs" / agent / "summary.json").read_text())
    rate = summary["settings"]["coop"]["rates"]["overall_success"]
    return rate["passed"], rate["of"]
