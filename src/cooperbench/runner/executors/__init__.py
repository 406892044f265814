"""Executors: where pairs run (`--executor`).

| executor | pairs run | evaluations run |
| --- | --- | --- |
| `local` | in this process | in this process |
| `local` with `--backend gcp` | in this process | as one Google Batch job |
| `slurm`, `ray` | in jobs on the nodes of a cluster | in the same jobs |

Jobs report to the driver by events (JSON objects). Where nodes and driver share no disk, files are
sent with the orders of jobs and with the events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.runner.executors.base import Executor

if TYPE_CHECKING:
    from cooperbench.runner.config import RunConfig

__all__ = ["Executor", "make_executor"]


def make_executor(config: RunConfig) -> Executor:
    """Return the executor of a configuration; UserError if it cannot be used."""
    if config.executor == "local":
        from cooperbench.runner.executors.local import make_local_executor

        return make_local_executor(config)
    from cooperbench.runner.executors.cluster import ClusterExecutor, connect_cluster

    return ClusterExecutor(connect_cluster(config))
