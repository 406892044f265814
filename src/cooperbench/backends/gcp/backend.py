"""The `gcp` backend: agents' sandboxes in containers on machines of Compute Engine, evaluations as one Batch job."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cooperbench.backends.gcp import prices
from cooperbench.backends.gcp.compute import Compute
from cooperbench.backends.gcp.faults import NOT_INSTALLED
from cooperbench.backends.gcp.firewall import Firewall, remove_leftover_rules
from cooperbench.backends.gcp.fleet import SPARE_SECONDS
from cooperbench.backends.gcp.holdings import Holdings
from cooperbench.backends.gcp.images import TaskImages
from cooperbench.backends.gcp.leftovers import remove_leftovers
from cooperbench.backends.gcp.settings import LONGEST_LIFETIME_HOURS, GcpSettings, read_settings
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.sandbox.contract import Capabilities, SandboxOptions, check_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.docker.sandbox import DockerSandbox
    from cooperbench.eval.batch.remote import Listener, Order
    from cooperbench.models import Image, Task
    from cooperbench.sandbox.contract import Estimate
    from cooperbench.sandbox.git_server import GitServer

_LONGEST_SECONDS = LONGEST_LIFETIME_HOURS * 3600 - SPARE_SECONDS
_CLIENTS = ("docker", "google.cloud.compute_v1", "google.cloud.batch_v1", "google.cloud.storage")
_holding: set[GCPBatchBackend] = set()
"""Those that have something at Google. One that nobody else knows any more has to delete it too."""


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
        interrupts=True,
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
        self._holdings: Holdings | None = None
        self._ended: list[Holdings] = []
        self._jobs: list[Estimate] = []
        """Both for the account of what they cost."""

    @property
    def compute(self) -> Compute:
        """Connected to when first asked for; what killed processes left behind is then deleted."""
        with self._lock:
            if self._compute is None or self._process != os.getpid():
                compute = Compute(self.settings)
                compute.check_zone()
                remove_leftovers(compute)
                with contextlib.suppress(CooperBenchError):
                    # Whoever may not look at firewall rules has set none.
                    remove_leftover_rules(Firewall(self.settings))
                self._compute, self._process = compute, os.getpid()
                self._holdings = None
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
        check_network(self.capabilities, options)
        lifetime_seconds = min(max(1, timeout), _LONGEST_SECONDS)
        task = self._images.task_of(image)
        fleet = self._holdings_now().fleet
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
        from cooperbench.eval.batch.evaluation import evaluate_on_batch

        evaluate_on_batch(self.settings, order, listener, stop, self._jobs.append)

    @property
    def git_server(self) -> Callable[[str], GitServer] | None:
        """See `GitServingBackend`."""
        if self.settings.git != "server":
            return None
        return lambda run_name: self._holdings_now().git_server.get(run_name)

    def estimate(self) -> Estimate:
        """What the machines of this object and of the Batch jobs that it has ended have cost so far, roughly."""
        with self._lock:
            held = [*self._ended, *([self._holdings] if self._holdings is not None else [])]
        return prices.summed([*(each.estimate() for each in held), *self._jobs])

    def interrupt(self) -> None:
        with self._lock:
            holdings = self._holdings
        if holdings is not None:
            holdings.interrupt()

    def close(self) -> None:
        """Delete all machines and rules. Google is connected to again when it is used again."""
        with self._lock:
            holdings, process = self._holdings, self._process
        if holdings is not None and process == os.getpid():
            # Whoever is interrupted here calls again.
            holdings.close()
        with self._lock:
            self._compute = None
            if holdings is not None and self._holdings is holdings:
                self._holdings = None
                self._ended.append(holdings)
        _holding.discard(self)

    def _holdings_now(self) -> Holdings:
        compute = self.compute
        with self._lock:
            if self._holdings is None:
                self._holdings = Holdings(self.settings, compute)
                _holding.add(self)
            return self._holdings


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
    for backend in list(_holding):
        with contextlib.suppress(CooperBenchError):
            backend.close()
