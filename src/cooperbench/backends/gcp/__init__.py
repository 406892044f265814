"""The `gcp` backend: agents in containers on Compute Engine, evaluations as one Batch job.

`settings.py` declares the settings, and `machines.py` describes how machines are shared. Importing
this package does not import Google's clients.
"""

from __future__ import annotations

import contextlib
import os
import threading
from importlib.util import find_spec
from typing import ClassVar

from cooperbench.backends.docker.sandbox import DockerSandbox
from cooperbench.backends.docker.settings import read_settings as read_docker_settings
from cooperbench.backends.gcp.batch import remove_leftover_jobs
from cooperbench.backends.gcp.compute import Compute
from cooperbench.backends.gcp.google_clients import NOT_INSTALLED
from cooperbench.backends.gcp.machines import AGENTS_SUFFIX, Fleet
from cooperbench.backends.gcp.settings import GcpSettings, read_settings
from cooperbench.backends.image_digest import resolve_digest
from cooperbench.dataset.image_names import PUBLISHED_TEMPLATE, image_name
from cooperbench.errors import InfraError, UserError
from cooperbench.models import Image, Task
from cooperbench.sandbox.backend import Backend
from cooperbench.sandbox.contract import Capabilities, ResourceUse, SandboxOptions

__all__ = ["GCPBatchBackend"]
_CLIENTS = ("docker", "google.cloud.compute_v1", "google.cloud.batch_v1", "google.cloud.storage")


class GCPBatchBackend(Backend):
    """Sandboxes on Compute Engine; with `batch_settings`, evaluations go to Batch all together."""

    capabilities = Capabilities(streams=True, networks=frozenset({"none", "public"}), programs=True)
    options: ClassVar = ("image_template",)

    def __init__(
        self,
        project_id: str | None = None,
        region: str | None = None,
        machine_type: str | None = None,
        **settings: object,
    ) -> None:
        """Read the settings; UserError if the clients or a project are missing."""
        require_clients()
        self.settings: GcpSettings = read_settings(
            project=project_id, region=region, machine_type=machine_type, **settings
        )
        self.batch_settings = self.settings
        self._tasks: dict[str, Task] = {}
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None
        self._used = ResourceUse(what="machine")
        """Resources used by machines of closed fleets."""

    def check(self) -> None:
        """Connect to Compute Engine, and delete what killed processes left behind.

        Raises UserError or InfraError if Google does not answer or does not permit it.
        """
        self._connected()

    def prepare(self, task: Task) -> Image:
        """Name the task's image; each machine pulls or builds it when it needs it."""
        name = image_name(task, self.settings.image_template or PUBLISHED_TEMPLATE)
        reference = f"{task.label}={name}"
        digest = ""
        if read_docker_settings().pull != "never":
            # A registry that requires authentication does not tell the digest.
            with contextlib.suppress(InfraError):
                digest = resolve_digest(name)
        self._tasks[reference] = self._tasks[reference + AGENTS_SUFFIX] = task
        return Image(reference, reference + AGENTS_SUFFIX, digest, evaluation_ref=reference)

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> DockerSandbox:
        """Start a sandbox from an image of `prepare`, or from a registry name."""
        options = options or SandboxOptions()
        task = self._tasks.get(image)
        machine = self._connected().place(str(options.labels.get("run", "")), task, timeout)
        return machine.create_promised(image, task, timeout, workdir, options)

    def resource_use(self) -> ResourceUse:
        """Return the resources used by the machines so far. Batch jobs are not counted."""
        with self._lock:
            if self._fleet is None:
                return self._used
            return self._used + self._fleet.resource_use()

    def interrupt(self) -> None:
        """Stop waiting for machines."""
        fleet = self._fleet
        if fleet is not None:
            fleet.stopped.set()

    @staticmethod
    def clean() -> list[str]:
        """Remove what killed processes left (`cooperbench clean`); return a line for each item."""
        settings = read_settings()
        removed = [f"machine {name}" for name in Compute(settings).remove_leftovers()]
        return removed + [f"job {name}" for name in remove_leftover_jobs(settings)]

    def close(self) -> None:
        """Delete all machines. The next use connects again."""
        fleet = self._fleet
        if fleet is not None:
            # If this is interrupted, the caller closes again.
            fleet.close()
            with self._lock:
                self._used += fleet.resource_use()
                self._fleet = None

    def _connected(self) -> Fleet:
        """Return the fleet; the first call connects."""
        with self._lock:
            if self._fleet is None or self._fleet.process != os.getpid():
                self._fleet = Fleet(self.settings)
            return self._fleet


def require_clients() -> None:
    """Raise UserError if a client library is not installed."""
    try:
        is_installed = all(find_spec(name) is not None for name in _CLIENTS)
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise UserError(NOT_INSTALLED)
