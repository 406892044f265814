"""The `gcp` backend: agents' sandboxes in containers on machines of Compute Engine, evaluations as one Batch job."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cooperbench.errors import CooperBenchError, UserError
from cooperbench.eval.backends.base import Capabilities, SandboxOptions
from cooperbench.eval.backends.gcp import prices
from cooperbench.eval.backends.gcp.compute import Compute
from cooperbench.eval.backends.gcp.faults import NOT_INSTALLED
from cooperbench.eval.backends.gcp.fleet import SPARE_SECONDS, Fleet
from cooperbench.eval.backends.gcp.images import TaskImages
from cooperbench.eval.backends.gcp.leftovers import remove_leftovers, remove_session
from cooperbench.eval.backends.gcp.settings import LONGEST_LIFETIME_HOURS, GcpSettings, read_settings
from cooperbench.eval.backends.gcp.tunnel import Keys

if TYPE_CHECKING:
    from cooperbench.eval.backends.base import Estimate
    from cooperbench.eval.backends.docker.sandbox import DockerSandbox
    from cooperbench.eval.remote import Listener, Order
    from cooperbench.models import Image, Task

_LONGEST_SECONDS = LONGEST_LIFETIME_HOURS * 3600 - SPARE_SECONDS
_CLIENTS = ("docker", "google.cloud.compute_v1", "google.cloud.batch_v1", "google.cloud.storage")
_backends: weakref.WeakSet[GCPBatchBackend] = weakref.WeakSet()


class GCPBatchBackend:
    """What can be set is said in `settings.py`, how machines are shared in `fleet.py`."""

    capabilities = Capabilities(
        rich=True,
        streams=True,
        options=True,
        networks=frozenset({"none", "public"}),
        prepares=True,
        closes=True,
        checks=True,
        estimates=True,
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
        self._keys: Keys | None = None
        self._fleet: Fleet | None = None
        self._ended: list[Fleet] = []
        """For the account of what they cost."""
        _backends.add(self)

    @property
    def compute(self) -> Compute:
        """Connected to when first asked for; what killed processes left behind is then deleted."""
        with self._lock:
            if self._compute is None or self._process != os.getpid():
                compute = Compute(self.settings)
                compute.check_zone()
                remove_leftovers(compute)
                self._compute, self._process = compute, os.getpid()
                self._keys = self._fleet = None
            return self._compute

    def check(self) -> None:
        """Does Compute Engine answer, and may we use it?"""
        assert self.compute

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
        if options.network not in self.capabilities.networks:
            raise UserError(f"the gcp backend cannot give the network policy {options.network!r}")
        lifetime_seconds = min(max(1, timeout), _LONGEST_SECONDS)
        task = self._images.task_of(image)
        fleet = self._fleet_now()
        machine = fleet.place(str(options.labels.get("run", "")), task, lifetime_seconds)
        try:
            name = self._images.name_on(machine, image)
            return machine.engine.create_sandbox(name, lifetime_seconds, workdir, options=options)
        except BaseException:
            # A sandbox that came to be gives its place back when it ends.
            fleet.free(machine)
            raise

    def evaluate_remotely(self, order: Order, listener: Listener, stop: threading.Event) -> None:
        """All of an experiment's evaluations as one Batch job."""
        from cooperbench.eval.backends.gcp.batch import evaluate_on_batch

        evaluate_on_batch(self.settings, order, listener, stop)

    def estimate(self) -> Estimate:
        """What the machines of this object have cost so far, roughly. Batch jobs are not in it."""
        with self._lock:
            fleets = [*self._ended, *([self._fleet] if self._fleet is not None else [])]
        told = [fleet.estimate() for fleet in fleets]
        return prices.estimate(
            self.settings, sum(one.count for one in told), sum(one.seconds for one in told)
        )

    def close(self) -> None:
        """Delete all machines. Google is connected to again when it is used again."""
        with self._lock:
            compute, self._compute = self._compute, None
            fleet, self._fleet = self._fleet, None
            keys, self._keys = self._keys, None
            process = self._process
        if compute is None or process != os.getpid():
            return
        if fleet is not None:
            fleet.close()
            self._ended.append(fleet)
            with contextlib.suppress(CooperBenchError):
                remove_session(compute, fleet.session)
        if keys is not None:
            keys.remove()

    def _fleet_now(self) -> Fleet:
        compute = self.compute
        with self._lock:
            if self._fleet is None:
                self._keys = self._keys or Keys()
                self._fleet = Fleet(self.settings, compute, self._keys)
            return self._fleet


def require_clients() -> None:
    for name in _CLIENTS:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise UserError(NOT_INSTALLED)


@atexit.register
def _close_all() -> None:
    for backend in list(_backends):
        with contextlib.suppress(CooperBenchError):
            backend.close()
