"""What is Ray's alone: drivers outside of the cluster, and nodes that share no disk with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cluster.harness import Harness, RayCluster

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]


def test_driver_and_node_share_no_disk(tmp_path: Path, ray_cluster: RayCluster) -> None:
    ray_cluster.wait_until_whole()
    harness = Harness(tmp_path, ray_cluster)
    here = ("run", *harness.script(), "-f", "1,2")
    code, output = harness.call(*here, here=True, name="here")
    assert code == 0, output
    node = ray_cluster.start_apart(hidden=tmp_path)
    try:
        where = ("--executor", "ray", "--ray-address", ray_cluster.client_address)
        there = (*where, "--ray-resources", "CPU=1,apart=1")
        code, output = harness.call(*here, *there, here=True)
        assert code == 0, output
        assert 'Agent 1 → Agent 2: "I add 1"' in output
        assert harness.results() == harness.results("here")
        assert (harness.logs / "r/coop/tiny_task/7/f1_f2/tests/merged-f1.txt").exists()
    finally:
        harness.end()
        node.terminate()
        node.wait(60)
