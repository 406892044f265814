"""The `gcp` backend: agents' sandboxes in containers on machines of Compute Engine, evaluations as one Batch job.

What can be set is said in `settings.py`, how machines are shared in `machines.py`. Importing this imports no client.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from cooperbench.backends.docker.settings import read_settings as read_docker_settings
from cooperbench.backends.gcp.api import NOT_INSTALLED, PermissionDenied
from cooperbench.backends.gcp.batch import remove_leftover_jobs
from cooperbench.backends.gcp.compute import Compute, Firewall
from cooperbench.backends.gcp.engine import MachineSandbox
from cooperbench.backends.gcp.machines import Fleet
from cooperbench.backends.gcp.settings import GcpSettings, read_settings
from cooperbench.backends.image_digest import resolve_digest
from cooperbench.dataset.images import PUBLISHED_TEMPLATE, image_name
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.models import Image
from cooperbench.sandbox.contract import Capabilities, ResourceUse, SandboxOptions, check_network
from cooperbench.sandbox.git_server import SharedServer

if TYPE_CHECKING:
    from cooperbench.models import Task
    from cooperbench.sandbox.git_server import GitServer

__all__ = ["GCPBatchBackend"]
_LONGEST_SECONDS = 100 * 24 * 3600
"""Compute Engine ends a machine after 120 days."""
_CLIENTS = ("docker", "google.cloud.compute_v1", "google.cloud.batch_v1", "google.cloud.storage")
_AGENTS = "#agents"
_log = logging.getLogger("cooperbench")


class GCPBatchBackend:
    """Its evaluations go to Batch, which `cooperbench.eval.batch` sees by `batch_settings`."""

    capabilities = Capabilities(
        rich=True,
        streams=True,
        networks=frozenset({"none", "public"}),
        programs=True,
    )
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
        self._tasks: dict[str, Task] = {}
        self._lock = threading.Lock()
        self._process = 0
        self._compute: Compute | None = None
        self._fleet: Fleet | None = None
        self._git_server: SharedServer | None = None
        self._used = ResourceUse(what="machine")
        """By machines that are gone."""

    @property
    def batch_settings(self) -> GcpSettings:
        return self.settings

    def check(self) -> None:
        """Does Compute Engine answer, and may we use it? What killed processes left behind is then deleted."""
        with self._lock:
            self._connect()

    def prepare(self, task: Task) -> Image:
        """What the task's image is; each machine that needs it pulls or builds it then."""
        name = image_name(task, self.settings.image_template or PUBLISHED_TEMPLATE)
        reference = f"{task.label}={name}"
        digest = ""
        if read_docker_settings().pull != "never":
            # A registry that wants to be signed in to tells no digest.
            with contextlib.suppress(InfraError):
                digest = resolve_digest(name)
        with self._lock:
            self._tasks[reference] = self._tasks[reference + _AGENTS] = task
        return Image(reference, reference + _AGENTS, digest)

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> MachineSandbox:
        """`image`: what `prepare` gave, or a name that a registry knows."""
        options = options or SandboxOptions()
        check_network(self.capabilities, options)
        lifetime_seconds = min(max(1, timeout), _LONGEST_SECONDS)
        with self._lock:
            task, fleet = self._tasks.get(image), self._opened()
        machine = fleet.place(str(options.labels.get("run", "")), task, lifetime_seconds)
        sandbox: MachineSandbox | None = None
        try:
            if task is not None:
                made = machine.prepare(task)
                image = (image.endswith(_AGENTS) and made.agent_reference) or made.reference
            made_sandbox = machine.engine.create_sandbox(image, lifetime_seconds, workdir, options=options)
            assert isinstance(made_sandbox, MachineSandbox)
            sandbox = made_sandbox
            return sandbox
        finally:
            fleet.keep(machine, sandbox)

    def git_server(self, run_name: str) -> GitServer:
        """See `GitServingBackend`."""
        with self._lock:
            fleet = self._opened()
            if self._git_server is None:
                self._git_server = SharedServer(fleet.start_git_server)
            server = self._git_server
        return server.get(run_name)

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
        try:
            removed += [f"firewall rule {name}" for name in Firewall(settings).remove_leftovers()]
        except PermissionDenied as error:
            _log.warning("%s", error)
        return removed + [f"job {name}" for name in remove_leftover_jobs(settings)]

    def close(self) -> None:
        """Delete all machines and rules. Google is connected to again when it is used again."""
        fleet, server = self._fleet, self._git_server
        if fleet is not None and self._process == os.getpid():
            # Whoever is interrupted here calls again.
            fleet.stopped.set()
            try:
                if server is not None:
                    server.close()
            finally:
                fleet.close()
        with self._lock:
            if fleet is not None and self._fleet is fleet:
                self._used += fleet.resource_use()
            self._compute = self._fleet = self._git_server = None

    def _connect(self) -> Compute:
        if self._compute is None or self._process != os.getpid():
            compute = Compute(self.settings)
            compute.size_of(self.settings.machine_type)
            compute.remove_leftovers()
            with contextlib.suppress(CooperBenchError):
                # Whoever may not look at firewall rules has set none.
                Firewall(self.settings).remove_leftovers()
            self._compute, self._process = compute, os.getpid()
            self._fleet = self._git_server = None
        return self._compute

    def _opened(self) -> Fleet:
        compute = self._connect()
        if self._fleet is None:
            self._fleet = Fleet(self.settings, compute)
        return self._fleet


def require_clients() -> None:
    for name in _CLIENTS:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise UserError(NOT_INSTALLED)
