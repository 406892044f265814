"""Machines of Compute Engine: each from its creation to its deletion, and which sandbox goes to which of them.

Where the project may have no more machines, sandboxes share those that there are, even beyond their size: otherwise
agents of two pairs could each hold one place and wait for another one for ever.
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
from cooperbench.backends.gcp.compute import Compute, machine_of
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
"""Of the reference to a task's image: the one for agents."""
SPARE_SECONDS = 600
"""Between the end of a sandbox's lifetime and that of its machine."""
LIFETIME_SECONDS = 12 * 3600
"""After this Google deletes a machine, also if the harness is gone. One for longer sandboxes lives longer."""
_CPUS_PER_SANDBOX = 2
_BOOT_SECONDS = 600.0
_LOOK_SECONDS = 2.0
_RUNNING = ("PROVISIONING", "STAGING", "RUNNING")
_log = logging.getLogger("cooperbench")


class Machine(DockerBackend):
    """The docker backend on the engine of a machine, which `start` makes; nothing else may be used before."""

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
        """Those whose images it has."""
        self.promised = 0
        """Sandboxes that are being made on it."""
        self._to_be_started = threading.Lock()
        self._engine: Future[MachineEngine] = Future()

    @property
    def alive(self) -> bool:
        started = self._engine
        return not started.done() or (started.exception() is None and started.result().connected)

    @property
    def places_taken(self) -> int:
        return self.promised + len(self._open)

    @property
    def machine_use(self) -> ResourceUse:
        """Until now, or until it was closed."""
        seconds = (self.ended_at or time.monotonic()) - self._started_at
        vcpus, gib = self._size.guest_cpus, self._size.memory_mb / 1024
        return ResourceUse(1, "machine", seconds, seconds * vcpus, seconds * gib)

    def start(self) -> None:
        """Called by all that need it: the first one makes it, the others wait."""
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
        public = [one.nat_i_p for one in interface.access_configs if one.nat_i_p]
        # Without a public address the harness runs inside the VPC.
        address = public[0] if public else interface.network_i_p
        engine = MachineEngine(fleet.keys, self.name, address, host_key, fleet.stopped)
        self._session = EngineSession(engine, self.settings, self.name.removeprefix("cooperbench-"))
        if fleet.stopped.is_set():
            raise SandboxError("the backend was closed")
        return engine

    def create_promised(
        self, image: str, task: Task | None, timeout: int, workdir: str, options: SandboxOptions
    ) -> DockerSandbox:
        """A sandbox at the place that was promised; a task's images are pulled or built when first asked for."""
        try:
            if task is not None:
                made = self._prepared.get(task, lambda: self._prepare_here(task))
                wanted = made.agent_ref if image.endswith(AGENTS_SUFFIX) else made.evaluation_ref
                image = wanted or made.ref
            return self.create_sandbox(image, timeout, workdir, options=options)
        finally:
            with self._fleet.lock:
                self.promised -= 1

    def close(self) -> None:
        """Let go of it. Whoever calls this has it deleted: sandboxes only have to know."""
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
        """The host key, told as everything else by guest attributes, which nobody on the way can change."""
        for look in range(round(_BOOT_SECONDS / _LOOK_SECONDS)):
            told = self._fleet.compute.attributes(self.name)
            if "failed" in told:
                raise InfraError(
                    f"the machine {self.name} did not get ready: {told['failed'][:300]}"
                )
            if "ready" in told and "host-key" in told:
                return told["host-key"]
            # Less often: many machines that boot at once may ask more often than Google likes.
            if look % 8 == 0 and not self._is_running():
                raise InfraError(f"the machine {self.name} ended while booting")
            if self._fleet.stopped.wait(_LOOK_SECONDS):
                raise Interrupted("stopped")
        raise SandboxTimeout(
            f"the machine {self.name} did not get ready in {_BOOT_SECONDS:.0f} s: see gcloud compute instances"
            f" get-serial-port-output {self.name}; without a public address it needs Cloud NAT"
        )


class Fleet:
    """All machines of one backend object and process, from when it first needs one until it is closed."""

    def __init__(self, settings: GcpSettings) -> None:
        """Connects, and deletes what killed processes left behind."""
        self.settings = settings
        self.process = os.getpid()
        self.session = secrets.token_hex(6)
        self.compute = Compute(settings)
        self._size = self.compute.machine_type(settings.machine_type)
        self.compute.remove_leftovers()
        self.keys = Keys()
        self.stopped = threading.Event()
        """Whoever waits for a machine waits no longer."""
        self.lock = threading.Lock()
        self._room = max(1, self._size.guest_cpus // _CPUS_PER_SANDBOX)
        self._machines: list[Machine] = []
        self._made: list[Machine] = []
        self._most: float = inf
        """Machines at once; what there were when Google refused another one."""
        threading.Thread(target=self._remove_unused, name="gcp-machines", daemon=True).start()
        # What is at Google has to go also where nobody knows of it any more.
        atexit.register(self.close)

    def place(self, run_name: str, task: Task | None, lifetime_seconds: int) -> Machine:
        """A machine that is ready, with a place on it promised to a sandbox that is made next."""
        while True:
            machine = self._choose(run_name, task, lifetime_seconds)
            try:
                machine.start()
                return machine
            except BaseException as error:
                with self.lock:
                    self._machines = [one for one in self._machines if one is not machine]
                    left = len(self._machines)
                self._delete([machine])
                if not left or not isinstance(error, QuotaExceeded | OutOfMachines):
                    raise
                self._most = left
                _log.warning("%s; going on with the machines that there are", error)

    def resource_use(self) -> ResourceUse:
        with self.lock:
            made = list(self._made)
        return sum((machine.machine_use for machine in made), ResourceUse(what="machine"))

    def close(self) -> None:
        """Delete everything, also machines that are still being made. Called again it goes on with what is left."""
        if self.process != os.getpid():
            return
        self.stopped.set()
        self._delete([machine for machine in self._made if machine.ended_at is None])
        remove_tree(self.keys.folder)
        atexit.unregister(self.close)

    def _choose(self, run_name: str, task: Task | None, lifetime_seconds: int) -> Machine:
        """One that there is, else a new one, which has yet to be started; a place on it is promised."""
        with self.lock:
            if self.stopped.is_set():
                raise SandboxError("the backend was closed")
            needed_until = time.monotonic() + lifetime_seconds
            lasting = [one for one in self._machines if one.alive and one.ends_at >= needed_until]
            room = [one for one in lasting if one.places_taken < self._room]
            chosen = max(room, key=lambda one: (task in one.tasks, one.places_taken), default=None)
            if chosen is None and lasting and len(self._machines) >= self._most:
                chosen = min(lasting, key=lambda one: one.places_taken)
            if chosen is None:
                seconds = max(LIFETIME_SECONDS, lifetime_seconds + SPARE_SECONDS)
                machine = machine_of(
                    self.settings, self.session, run_name, seconds, self.keys.public
                )
                chosen = Machine(self, machine, self._size)
                self._made.append(chosen)
                self._machines.append(chosen)
            chosen.promised += 1
            return chosen

    def _remove_unused(self) -> None:
        """For as long as the fleet lives: delete machines that were lost or have had no sandbox for a while."""
        idle_seconds = self.settings.idle_minutes * 60
        while not self.stopped.wait(min(idle_seconds, 10.0)):
            now = time.monotonic()
            with self.lock:
                for machine in self._machines:
                    if machine.places_taken:
                        machine.last_used_at = now
                unused = [
                    machine
                    for machine in self._machines
                    if not machine.alive or now - machine.last_used_at > idle_seconds
                ]
                self._machines = [machine for machine in self._machines if machine not in unused]
            self._delete(unused)

    def _delete(self, machines: list[Machine]) -> None:
        """The requests first: machines cost money, also if the rest fails."""
        self.compute.delete([machine.name for machine in machines])
        for machine in machines:
            with suppress(CooperBenchError):
                machine.close()
