"""Agents on machines at Google that share with git: the harness carries their commits, without a network."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from cooperbench import run
from cooperbench.backends.gcp.google_clients import PURPOSE
from tests.support.docker.tasks import write_buildable
from tests.support.runner.helpers import Left
from tests.support.sandbox.sharing import (
    check_that_they_talked_and_shared,
    lower_quota,
    talk_and_share,
)

if TYPE_CHECKING:
    import pytest

    from cooperbench.backends.docker.engine import Engine
    from tests.support.gcp.compute_server import ComputeServer


def test_a_pair_talks_and_shares(
    compute: ComputeServer, gcp_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower_quota(monkeypatch)
    write_buildable(tmp_path / "dataset")
    first, second = talk_and_share({"run": "echo one >one.txt"}, {"run": "echo two >two.txt"})
    second[0] = {"run": "echo two >two.txt; ls /sys/class/net"}
    script = tmp_path / "script.yaml"
    script.write_text(
        yaml.safe_dump({"repos": {"tiny_task": {7: {"coop": {1: first, 2: second}}}}})
    )
    run(
        "shared", agent="scripted", agent_config=str(script), backend="gcp", dataset_dir=tmp_path / "dataset",
        logs_dir=tmp_path / "logs", features=[1, 2], git_enabled=True, auto_eval=False,
    )  # fmt: skip
    left = Left(tmp_path / "logs/shared/coop/tiny_task/7/f1_f2")
    check_that_they_talked_and_shared(left)
    assert left.observations("agent2")[0] == "lo\n"
    assert [machine["labels"][PURPOSE] for machine in compute.made] == ["agents"]
    assert left.json("../../../../summary.json")["sandboxes"]["count"] == 1
    assert not compute.vms
    wanted = {"label": ["cooperbench.purpose=agent", "cooperbench.run=shared"]}
    assert not gcp_engine.api.containers(all=True, filters=wanted)
    assert not list(Path(tempfile.gettempdir()).glob(f"cooperbench-gcp-{os.getpid()}-*"))
