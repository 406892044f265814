"""Batch jobs of harnesses that are gone, for `cooperbench clean`.

They are not removed at a next start: the same command could still find its job again and take its results in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.backends.gcp.labels import is_leftover
from cooperbench.eval.batch.bucket import Folder
from cooperbench.eval.batch.clients import batch_client, storage_client
from cooperbench.eval.batch.job_record import TOP_FOLDER
from cooperbench.eval.batch.service import BatchService

if TYPE_CHECKING:
    from cooperbench.backends.gcp.settings import GcpSettings


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
