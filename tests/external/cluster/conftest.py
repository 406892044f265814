"""Real clusters on this machine: Slurm with two nodes, Ray with two nodes. In CI a missing one is a failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster.harness import Harness, RayCluster, SlurmCluster
from tests.support.cluster.slurm import Slurm, missing
from tests.support.paths import ROOT
from tests.support.requirements import require_module, skip_without

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if reason := missing():
        skip_without("Slurm", "apt install slurmctld slurmd slurm-client", detail=reason)
    require_module("submitit")
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield SlurmCluster(slurm)
    finally:
        slurm.stop()


@pytest.fixture(scope="package")
def ray_cluster() -> Iterator[RayCluster]:
    """Not for the whole session: idle, it takes a twentieth of a processor."""
    require_module("ray")
    # Nodes inherit it: agents of these tests are found there.
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(ROOT))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Every driver would have workers started on both nodes that may never get a task: a second of work each.
    patch.setenv("RAY_enable_worker_prestart", "0")
    cluster = RayCluster()
    try:
        yield cluster
    finally:
        cluster.stop()
        patch.undo()


@pytest.fixture(
    params=[
        pytest.param("slurm", marks=pytest.mark.xdist_group("slurm")),
        pytest.param("ray", marks=pytest.mark.xdist_group("ray")),
    ]
)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """`cooperbench` on a real cluster, with its own dataset and logs."""
    cluster = request.getfixturevalue(f"{request.param}_cluster")
    cluster.wait_until_whole()
    harness = Harness(tmp_path, cluster)
    try:
        yield harness
    finally:
        harness.end()


@pytest.fixture
def slurm_harness(tmp_path: Path, slurm_cluster: SlurmCluster) -> Iterator[Harness]:
    slurm_cluster.wait_until_whole()
    harness = Harness(tmp_path, slurm_cluster)
    try:
        yield harness
    finally:
        harness.end()
