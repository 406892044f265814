"""Batch jobs of harnesses that are gone, for `cooperbench clean`.

They are not removed at a next start: the same command could still find its job again and take its results in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.eval.backends.gcp.batch_clients import batch_client, storage_client
from cooperbench.eval.backends.gcp.batch_record import TOP_FOLDER
from cooperbench.eval.backends.gcp.batch_service import BatchService
from cooperbench.eval.backends.gcp.batch_storage import Folder
from cooperbench.eval.backends.gcp.labels import is_leftover

if TYPE_CHECKING:
    from cooperbench.eval.backends.gcp.settings import GcpSettings


def remove_leftover_jobs(settings: GcpSettings) -> list[str]:
    """Delete the jobs of this user's killed processes on this machine, and their objects; the jobs' names."""
    service = BatchService(batch_client())
    bucket = storage_client(settings).bucket(settings.bucket)
    removed = []
    for name, labels in service.list_ours(settings.project, settings.region):
        if is_leftover(labels):
            service.delete_named(name)
            job = name.rpartition("/")[2]
            Folder(bucket, f"{TOP_FOLDER}/{job}").remove()
            removed.append(job)
    return removed
