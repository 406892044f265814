"""Asking each of Google's services once, as a run would, for `config gcp` and `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cooperbench.errors import CooperBenchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.gcp.settings import GcpSettings


class Probe(NamedTuple):
    service: str
    ask: Callable[[], str]
    """What there is in a few words; UserError or InfraError with what is wrong and what mends it."""


def probes(settings: GcpSettings, *, make_bucket: bool) -> list[Probe]:
    """`make_bucket`: where there is none yet; else that is only told."""
    return [
        Probe("Compute Engine", lambda: _compute(settings)),
        Probe("Batch", lambda: _batch(settings)),
        Probe("Cloud Storage", lambda: _storage(settings, make=make_bucket)),
    ]


def _compute(settings: GcpSettings) -> str:
    from cooperbench.backends.gcp.compute import Compute

    Compute(settings).check_zone()
    return f"zone {settings.zone}, {settings.machine_type} machines for agents, {_git(settings)}"


def _git(settings: GcpSettings) -> str:
    """Nothing is wrong where a git server cannot be: most runs need none."""
    from cooperbench.backends.gcp.firewall import ROLE, Firewall

    if settings.git == "carried":
        return "commits of --git carried by the harness"
    try:
        Firewall(settings).listed()
    except CooperBenchError:
        return f"no git server for --git (that needs {ROLE}, or set GCP_GIT=carried)"
    return f"{settings.git_machine_type} for the git server of --git"


def _batch(settings: GcpSettings) -> str:
    from cooperbench.eval.batch.clients import batch_client
    from cooperbench.eval.batch.service import BatchService

    jobs = BatchService(batch_client()).list_ours(settings.project, settings.region)
    return f"region {settings.region}, {len(list(jobs))} of our jobs"


def _storage(settings: GcpSettings, *, make: bool) -> str:
    from cooperbench.backends.gcp.faults import faults
    from cooperbench.eval.batch.bucket import open_bucket
    from cooperbench.eval.batch.clients import storage_client

    client = storage_client(settings)
    if make:
        open_bucket(client, settings.bucket, settings.region)
        return f"bucket {settings.bucket}"
    with faults(f"looking for the bucket {settings.bucket}"):
        there = client.lookup_bucket(settings.bucket) is not None
    return f"bucket {settings.bucket}" + ("" if there else ", which the first evaluation makes")
