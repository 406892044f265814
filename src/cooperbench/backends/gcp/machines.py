"""Machines of Compute Engine: their lifecycle, and the assignment of sandboxes to machines.

If the project's quota allows no more machines, sandboxes share the existing ones, even beyond their
size. Otherwise the agents of two pairs could each hold one slot and deadlock waiting for another.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.containers import EngineSession
from cooperbench.backends.gcp.compute import Compute, describe_machine
from cooperbench.backends.gcp.google_clients import OutOfMachines, QuotaExceeded
from cooperbench.backends.gcp.machine_engine import Keys, MachineEngine, MachineSandbox, sign_in
from cooperbench.errors import (
    CooperBenchError,
    InfraError,
    Interrupted,
    SandboxError,
    SandboxTimeout,
)
from cooperbench.retry import SingleFlight
from cooperbench.sandbox.contract import ResourceUse, SandboxOptions
from cooperbench.temporary import remove_tree

if TYPE_CHECKING:
    from google.cloud import compute_v1

    from cooperbench.backends.docker.sandbox import DockerSandbox
    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.models import Image, Task

AGENTS_SUFFIX = "#agents"
"""Suffix of an image ref that selects the image for agents."""
SPARE_SECONDS = 600
"""How much longer a machine lives than its longest sandbox."""
LIFETIME_SECONDS = 12 * 3600
"""Lifetime after which Google deletes a machine, even if the harness is gone."""
_CPUS_PER_SANDBOX = 2
_BOOT_SECONDS = 600.0
_POLL_SECONDS = 2.0
_RUNNING = ("PROVISIONING", "STAGING", "RUNNING")
_log = logging.getLogger("cooperbench")


class Machine(DockerBackend):
    """The docker backend on the engine of a machine. Call `start` before anything else."""

    def __init__(
        self, fleet: Fleet, description: compute_v1.Instance, size: compute_v1.MachineType
    ) -> None:
        super().__init__(mounts=(), image_template=fleet.settings.image_template or None)
        self.name = description.name
        self._fleet = fleet
        self._description = description
        self._size = size
        self._started_at = self.last_used_at = time.monotonic()
        self.ended_at: float | None = None
        self.ends_at = self._started_at + description.scheduling.max_run_duration.seconds
        self._sandbox_type = partial(MachineSandbox, self._is_running)
        self._prepared: SingleFlight[Task, Image] = SingleFlight()
        self.tasks: set[Task] = set()
        """Tasks whose images the machine has."""
        self.promised = 0
        """Number of sandboxes that are being started on it."""
        self._to_be_started = threading.Lock()
        self._engine: Future[MachineEngine] = Future()

    @property
    def alive(self) -> bool:
        """Whether the machine is starting or connected."""
        if not self._engine.done():
            return True
        return self._engine.exception() is None and self._engine.result().connected

    @property
    def slots_taken(self) -> int:
        """Number of open and promised sandboxes."""
        return self.promised + len(self._open)

    @property
    def machine_use(self) -> ResourceUse:
        """The resources used until now, or until the machine was closed."""
        seconds = (self.ended_at or time.monotonic()) - self._started_at
        vcpus = self._size.guest_cpus
        gib = self._size.memory_mb / 1024
        return ResourceUse(1, "machine", seconds, seconds * vcpus, seconds * gib)

    def start(self) -> None:
        """Create the machine, or wait for the thread that is creating it."""
        if self._to_be_started.acquire(blocking=False):
            try:
                self._engine.set_result(self._boot())
            except BaseException as error:
                self._engine.set_exception(error)
        self._engine.result()

    def _boot(self) -> MachineEngine:
        fleet = self._fleet
        fleet.compute.create(self._description)
        host_key = self._wait_until_ready()
        interface = fleet.compute.get(self.name).network_interfaces[0]
        public_addresses = [config.nat_i_p for config in interface.access_configs if config.nat_i_p]
        # Without a public address, the harness runs inside the VPC.
        address = public_addresses[0] if public_addresses else interface.network_i_p
        engine = MachineEngine(fleet.keys, self.name, address, host_key, fleet.stopped)
        self._session = EngineSession(engine, self.settings, self.name.removeprefix("cooperbench-"))
        if fleet.stopped.is_set():
            raise SandboxError("the backend was closed")
        return engine

    def create_promised(
        self, image: str, task: Task | None, timeout: int, workdir: str, options: SandboxOptions
    ) -> DockerSandbox:
        """Start a sandbox in a promised slot; a task's images are pulled or built at first use."""
        try:
            if task is not None:
                prepared = self._prepared.get(task, lambda: self._prepare_here(task))
                if image.endswith(AGENTS_SUFFIX):
                    image = prepared.agent_ref or prepared.ref
                else:
                    image = prepared.evaluation_ref or prepared.ref
            return self.create_sandbox(image, timeout, workdir, options=options)
        finally:
            with self._fleet.lock:
                self.promised -= 1

    def close(self) -> None:
        """Disconnect and mark all sandboxes as ended. The caller deletes the machine."""
        self.ended_at = self.ended_at or time.monotonic()
        if self._session is not None:
            self._session.engine.close()
        for sandbox in list(self._open):
            sandbox.end("its machine was deleted")

    def _prepare_here(self, task: Task) -> Image:
        sign_in(self.engine.api, self.images.names_of(task))
        image = self.prepare(task)
        self.tasks.add(task)
        return image

    def _is_running(self) -> bool:
        try:
            return self._fleet.compute.get(self.name).status in _RUNNING
        except CooperBenchError:
            return False

    def _wait_until_ready(self) -> str:
        """Wait for the startup script and return the machine's SSH host key.

        Both come from guest attributes, which nobody on the network path can change.
        """
        for attempt in range(round(_BOOT_SECONDS / _POLL_SECONDS)):
            guest_attributes = self._fleet.compute.guest_attributes(self.name)
            if "failed" in guest_attributes:
                reason = guest_attributes["failed"][:300]
                raise InfraError(f"the machine {self.name} failed to start: {reason}")
            if "ready" in guest_attributes and "host-key" in guest_attributes:
                return guest_attributes["host-key"]
            # Checked less often, to stay below Google's rate limits when many machines boot.
            if attempt % 8 == 0 and not self._is_running():
                raise InfraError(f"the machine {self.name} ended while booting")
            if self._fleet.stopped.wait(_POLL_SECONDS):
                raise Interrupted("stopped")
        raise SandboxTimeout(
            f"the machine {self.name} was not ready within {_BOOT_SECONDS:.0f} s: see"
            f" gcloud compute instances get-serial-port-output {self.name};"
            " without a public address it needs Cloud NAT"
        )


class Fleet:
    """All machines of one backend object and process."""

    def __init__(self, settings: GcpSettings) -> None:
        """Connect, and delete what killed processes left behind."""
        self.settings = settings
        self.process = os.getpid()
        self.session = secrets.token_hex(6)
        self.compute = Compute(settings)
        self._size = self.compute.machine_type(settings.machine_type)
        self.compute.remove_leftovers()
        self.keys = Keys()
        self.stopped = threading.Event()
        """Once set, nothing waits for machines any more."""
        self.lock = threading.Lock()
        self._slots_per_machine = max(1, self._size.guest_cpus // _CPUS_PER_SANDBOX)
        self._machines: list[Machine] = []
        """Machines in use."""
        self._created: list[Machine] = []
        """All machines that were ever created."""
        self._max_machines: float = inf
        """Maximum number of machines: the number in use when Google refused another one."""
        threading.Thread(target=self._remove_unused, name="gcp-machines", daemon=True).start()
        # Machines must be deleted even if nothing refers to this object any more.
        atexit.register(self.close)

    def place(self, run_name: str, task: Task | None, lifetime_seconds: int) -> Machine:
        """Return a machine that is ready, with a slot promised to the caller's sandbox."""
        while True:
            machine = self._choose(run_name, task, lifetime_seconds)
            try:
                machine.start()
                return machine
            except BaseException as error:
                with self.lock:
                    self._machines = [other for other in self._machines if other is not machine]
                    remaining = len(self._machines)
                self._delete([machine])
                if not remaining or not isinstance(error, QuotaExceeded | OutOfMachines):
                    raise
                self._max_machines = remaining
                _log.warning("%s; continuing with the existing machines", error)

    def resource_use(self) -> ResourceUse:
        """Return the resources used by all machines so far."""
        with self.lock:
            machines = list(self._created)
        return sum((machine.machine_use for machine in machines), ResourceUse(what="machine"))

    def close(self) -> None:
        """Delete all machines, also those being created. Calling it again continues."""
        if self.process != os.getpid():
            return
        self.stopped.set()
        self._delete([machine for machine in self._created if machine.ended_at is None])
        remove_tree(self.keys.folder)
        atexit.unregister(self.close)

    def _choose(self, run_name: str, task: Task | None, lifetime_seconds: int) -> Machine:
        """Promise a slot on an existing machine, else on a new one that is yet to be started."""
        with self.lock:
            if self.stopped.is_set():
                raise SandboxError("the backend was closed")
            machine = self._find_slot(task, lifetime_seconds)
            if machine is None:
                seconds = max(LIFETIME_SECONDS, lifetime_seconds + SPARE_SECONDS)
                description = describe_machine(
                    self.settings, self.session, run_name, seconds, self.keys.public
                )
                machine = Machine(self, description, self._size)
                self._created.append(machine)
                self._machines.append(machine)
            machine.promised += 1
            return machine

    def _find_slot(self, task: Task | None, lifetime_seconds: int) -> Machine | None:
        """Return an existing machine for a sandbox; None if a new one should be created.

        Prefers machines that have the task's image, then full ones, so that others become idle.
        """
        needed_until = time.monotonic() + lifetime_seconds
        usable = [
            machine
            for machine in self._machines
            if machine.alive and machine.ends_at >= needed_until
        ]
        free = [machine for machine in usable if machine.slots_taken < self._slots_per_machine]
        if free:
            return max(free, key=lambda machine: (task in machine.tasks, machine.slots_taken))
        if usable and len(self._machines) >= self._max_machines:
            return min(usable, key=lambda machine: machine.slots_taken)
        return None

    def _remove_unused(self) -> None:
        """Delete machines that were lost or idle for too long, until the fleet is closed."""
        idle_seconds = self.settings.idle_minutes * 60
        while not self.stopped.wait(min(idle_seconds, 10.0)):
            now = time.monotonic()
            with self.lock:
                for machine in self._machines:
                    if machine.slots_taken:
                        machine.last_used_at = now
                unused = [
                    machine
                    for machine in self._machines
                    if not machine.alive or now - machine.last_used_at > idle_seconds
                ]
                self._machines = [machine for machine in self._machines if machine not in unused]
            self._delete(unused)

    def _delete(self, machines: list[Machine]) -> None:
        """Delete machines. The requests go first, because machines cost money if the rest fails."""
        self.compute.delete([machine.name for machine in machines])
        for machine in machines:
            with suppress(CooperBenchError):
                machine.close()
