"""The `gcp` backend: agents' sandboxes in containers on machines of Compute Engine, evaluations as one Batch job."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cooperbench.backends.gcp.batch import remove_leftover_jobs
from cooperbench.backends.gcp.compute import Compute
from cooperbench.backends.gcp.engine import TaskImages
from cooperbench.backends.gcp.faults import NOT_INSTALLED, PermissionDenied
from cooperbench.backends.gcp.git_server import Firewall, GitMachines, session_tag
from cooperbench.backends.gcp.machines import SPARE_SECONDS, CloudSession, Fleet
from cooperbench.backends.gcp.settings import LONGEST_LIFETIME_HOURS, GcpSettings, read_settings
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.sandbox.contract import Capabilities, ResourceUse, SandboxOptions, check_network
from cooperbench.sandbox.git_server import SharedServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.docker.sandbox import DockerSandbox
    from cooperbench.models import Image, Task
    from cooperbench.sandbox.git_server import GitServer

_LONGEST_SECONDS = LONGEST_LIFETIME_HOURS * 3600 - SPARE_SECONDS
_CLIENTS = ("docker", "google.cloud.compute_v1", "google.cloud.batch_v1", "google.cloud.storage")
_log = logging.getLogger("cooperbench")
_with_machines: set[GCPBatchBackend] = set()
"""Those that have something at Google. One that nobody else knows any more has to delete it too."""


class GCPBatchBackend:
    """What can be set is said in `settings.py`, how machines are shared in `machines.py`.

    Its evaluations go to Batch, which `cooperbench.eval.batch` sees by `batch_settings`.
    """

    capabilities = Capabilities(
        rich=True,
        streams=True,
        options=True,
        networks=frozenset({"none", "public"}),
        prepares=True,
        closes=True,
        checks=True,
        interrupts=True,
        measures=True,
    )

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
        self._images = TaskImages()
        self._lock = threading.Lock()
        self._process = 0
        self._compute: Compute | None = None
        self._machines: _Machines | None = None
        self._used = ResourceUse(what="machine")
        """By machines and Batch jobs that are gone."""

    @property
    def batch_settings(self) -> GcpSettings:
        return self.settings

    @property
    def compute(self) -> Compute:
        """Connected to when first asked for; what killed processes left behind is then deleted."""
        with self._lock:
            if self._compute is None or self._process != os.getpid():
                compute = Compute(self.settings)
                compute.check_zone()
                compute.remove_leftovers()
                with contextlib.suppress(CooperBenchError):
                    # Whoever may not look at firewall rules has set none.
                    Firewall(self.settings).remove_leftovers()
                self._compute, self._process = compute, os.getpid()
                self._machines = None
            return self._compute

    def check(self) -> None:
        """Does Compute Engine answer, and may we use it?"""
        _ = self.compute

    def prepare(self, task: Task) -> Image:
        """What the task's image is; each machine that needs it pulls or builds it then."""
        return self._images.describe(task)

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
        check_network(self.capabilities, options)
        lifetime_seconds = min(max(1, timeout), _LONGEST_SECONDS)
        task = self._images.task_of(image)
        fleet = self._opened().fleet
        machine = fleet.place(str(options.labels.get("run", "")), task, lifetime_seconds)
        try:
            name = self._images.name_on(machine, image)
            return machine.engine.create_sandbox(name, lifetime_seconds, workdir, options=options)
        except BaseException:
            # A sandbox that came to be gives its place back when it ends.
            fleet.free(machine)
            raise

    @property
    def git_server(self) -> Callable[[str], GitServer] | None:
        """See `GitServingBackend`."""
        if self.settings.git != "server":
            return None
        return lambda run_name: self._opened().git_server.get(run_name)

    def resource_use(self) -> ResourceUse:
        """What the machines of this object, and the Batch jobs that it has ended, have used so far."""
        with self._lock:
            machines = self._machines
            return self._used + machines.session.resource_use() if machines else self._used

    def add_use(self, used: ResourceUse) -> None:
        """For Batch jobs, which others make for this object."""
        with self._lock:
            self._used += used

    def interrupt(self) -> None:
        with self._lock:
            machines = self._machines
        if machines is not None:
            machines.session.closed = True

    @staticmethod
    def clean() -> list[str]:
        """For `cooperbench clean`."""
        return clean()

    def close(self) -> None:
        """Delete all machines and rules. Google is connected to again when it is used again."""
        with self._lock:
            machines, process = self._machines, self._process
        if machines is not None and process == os.getpid():
            # Whoever is interrupted here calls again.
            machines.close()
        with self._lock:
            self._compute = None
            if machines is not None and self._machines is machines:
                self._machines = None
                self._used += machines.session.resource_use()
        _with_machines.discard(self)

    def _opened(self) -> _Machines:
        compute = self.compute
        with self._lock:
            if self._machines is None:
                self._machines = _Machines(CloudSession(self.settings, compute))
                _with_machines.add(self)
            return self._machines


class _Machines:
    """Those for agents, and the one of their git server."""

    def __init__(self, session: CloudSession) -> None:
        self.session = session
        self.fleet = Fleet(session, session_tag(session.name))
        self._git_machines = GitMachines(session)
        self.git_server = SharedServer(self._git_machines.start)

    def close(self) -> None:
        """Delete everything."""
        session = self.session
        session.closed = True
        try:
            self.git_server.close()
        finally:
            self._git_machines.close()
            self.fleet.close()
            with contextlib.suppress(CooperBenchError):
                session.compute.remove_session(session.name)
            session.keys.remove()


def require_clients() -> None:
    for name in _CLIENTS:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise UserError(NOT_INSTALLED)


def clean() -> list[str]:
    """Remove what killed processes left; a line for each thing that was there."""
    settings = read_settings()
    removed = [f"machine {name}" for name in Compute(settings).remove_leftovers()]
    try:
        removed += [f"firewall rule {name}" for name in Firewall(settings).remove_leftovers()]
    except PermissionDenied as error:
        _log.warning("%s", error)
    return removed + [f"job {name}" for name in remove_leftover_jobs(settings)]


@atexit.register
def _close_all() -> None:
    for backend in list(_with_machines):
        with contextlib.suppress(CooperBenchError):
            backend.close()
