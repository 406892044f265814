"""The `gcp` backend: agents' sandboxes in containers on machines of Compute Engine, evaluations as one Batch job.

What can be set is said in `settings.py`, how machines are shared in `machines.py`. Importing this imports no client.
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
    """With `batch_settings` evaluations of a run go to Google Batch, in the end, all together."""

    capabilities = Capabilities(streams=True, networks=frozenset({"none", "public"}), programs=True)
    options: ClassVar = ("image_template",)

    def __init__(
        self,
        project_id: str | None = None,
        region: str | None = None,
        machine_type: str | None = None,
        **settings: object,
    ) -> None:
        """UserError where the clients or a project are missing; nothing is connected to before it is needed."""
        require_clients()
        self.settings: GcpSettings = read_settings(
            project=project_id, region=region, machine_type=machine_type, **settings
        )
        self.batch_settings = self.settings
        self._tasks: dict[str, Task] = {}
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None
        self._used = ResourceUse(what="machine")
        """By machines of fleets that are closed."""

    def check(self) -> None:
        """Does Compute Engine answer, and may we use it? What killed processes left behind is then deleted."""
        self._connected()

    def prepare(self, task: Task) -> Image:
        """What the task's image is; each machine that needs it pulls or builds it then."""
        name = image_name(task, self.settings.image_template or PUBLISHED_TEMPLATE)
        reference = f"{task.label}={name}"
        digest = ""
        if read_docker_settings().pull != "never":
            # A registry that wants to be signed in to tells no digest.
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
        """`image`: what `prepare` gave, or a name that a registry knows."""
        options = options or SandboxOptions()
        task = self._tasks.get(image)
        machine = self._connected().place(str(options.labels.get("run", "")), task, timeout)
        return machine.create_promised(image, task, timeout, workdir, options)

    def resource_use(self) -> ResourceUse:
        """What the machines of this object have used so far. Batch jobs are not counted."""
        with self._lock:
            return self._used + self._fleet.resource_use() if self._fleet else self._used

    def interrupt(self) -> None:
        fleet = self._fleet
        if fleet is not None:
            fleet.stopped.set()

    @staticmethod
    def clean() -> list[str]:
        """For `cooperbench clean`: remove what killed processes left; a line for each thing that was there."""
        settings = read_settings()
        removed = [f"machine {name}" for name in Compute(settings).remove_leftovers()]
        return removed + [f"job {name}" for name in remove_leftover_jobs(settings)]

    def close(self) -> None:
        """Delete all machines. Google is connected to again when it is used again."""
        fleet = self._fleet
        if fleet is not None:
            # Whoever is interrupted here calls again.
            fleet.close()
            with self._lock:
                self._used += fleet.resource_use()
                self._fleet = None

    def _connected(self) -> Fleet:
        """Connects when first called."""
        with self._lock:
            if self._fleet is None or self._fleet.process != os.getpid():
                self._fleet = Fleet(self.settings)
            return self._fleet


def require_clients() -> None:
    try:
        installed = all(map(find_spec, _CLIENTS))
    except ModuleNotFoundError:
        installed = False
    if not installed:
        raise UserError(NOT_INSTALLED)
