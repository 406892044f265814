"""Whole experiments in containers: the same verdicts as on the local backend, and nothing left behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cooperbench import run
from tests.support.docker.tasks import write_buildable

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from cooperbench.backends.docker import DockerBackend

_VERDICT = ("individual_success", "merge_success", "overall_success", "overall_success_strict")


def verdicts(logs: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(logs.rglob("eval.json")):
        record = json.loads(path.read_text())
        counts = [
            record["merged"][key]
            for key in ("tests_passed", "tests_failed", "merge_status", "strategy")
        ]
        found[path.parent.name] = [*(record[key] for key in _VERDICT), *counts]
    return found


def test_the_oracle_gets_the_same_verdicts_as_locally(
    docker: DockerBackend, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", f"BASE_IMAGE={base_image}")
    write_buildable(tmp_path / "dataset")
    for backend in ("docker", "local"):
        run(
            backend,
            agent="oracle",
            backend=backend,
            dataset_dir=tmp_path / "dataset",
            logs_dir=tmp_path / "logs",
            concurrency=2,
            eval_concurrency=2,
        )
    mine, local = (verdicts(tmp_path / "logs" / backend) for backend in ("docker", "local"))
    assert len(mine) == 6
    assert mine == local
    result = json.loads((tmp_path / "logs/docker/coop/tiny_task/7/f1_f2/result.json").read_text())
    assert result["image_digest"].startswith("sha256:")
    assert (
        docker.engine.api.containers(all=True, filters={"label": ["cooperbench.run=docker"]}) == []
    )
