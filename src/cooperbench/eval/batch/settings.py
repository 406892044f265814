"""What can be set about evaluations on Batch beyond what all of `gcp` shares: by environment variable."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cooperbench.errors import UserError

IMAGE_VARIABLE = "COOPERBENCH_GCP_BATCH_IMAGE"
CPUS_VARIABLE = "COOPERBENCH_GCP_BATCH_CPUS"
MEMORY_VARIABLE = "COOPERBENCH_GCP_BATCH_MEMORY_GB"
BACKEND_VARIABLE = "COOPERBENCH_GCP_BATCH_BACKEND"
POLL_VARIABLE = "COOPERBENCH_GCP_BATCH_POLL_SECONDS"
_HANDED_ON = (
    "COOPERBENCH_IMAGE_TEMPLATE",
    "COOPERBENCH_BUILD_ARGS",
    "COOPERBENCH_DOCKER_CPUS",
    "COOPERBENCH_DOCKER_MEMORY",
    "COOPERBENCH_DOCKER_PIDS_LIMIT",
    "COOPERBENCH_DOCKER_PULL",
)
"""Settings of the harness that hold for the containers on the machines of a job too."""


@dataclass(frozen=True)
class BatchSettings:
    image: str = "python:3.12-bookworm"
    """In which our package runs on each machine: any image with Python 3.11 or later and git."""
    cpus: float = 2.0
    """What one evaluation is reckoned with: it decides how many share a machine."""
    memory_gb: float = 6.0
    backend: str = "docker"
    """Which backend evaluates there."""
    poll_seconds: float = 5.0

    @property
    def environment(self) -> dict[str, str]:
        """What the tasks find in their environment of that of the harness."""
        return {name: os.environ[name] for name in _HANDED_ON if os.environ.get(name)}


def read_batch_settings() -> BatchSettings:
    default = BatchSettings()
    return BatchSettings(
        image=os.environ.get(IMAGE_VARIABLE) or default.image,
        cpus=_number(CPUS_VARIABLE, default.cpus),
        memory_gb=_number(MEMORY_VARIABLE, default.memory_gb),
        backend=os.environ.get(BACKEND_VARIABLE) or default.backend,
        poll_seconds=_number(POLL_VARIABLE, default.poll_seconds),
    )


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < 10_000:
        raise UserError(f"{name} is {text!r}; it is a number above 0")
    return number
