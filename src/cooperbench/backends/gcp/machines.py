"""Machines of Compute Engine: each from its creation to its deletion, and which sandbox goes to which of them.

A machine has room for as many sandboxes as its type has processors for. A sandbox goes to the fullest machine that has
room, one that has the task's image already first; where none has room another machine is made. Where the project may
have no more of them, sandboxes share what there is, more of them than there is room for. Nobody waits for a place: two
agents of different pairs that hold one each and wait for another would wait for ever.

The git server of a run is a small machine of its own in the VPC, which only the run's machines reach
(`compute.Firewall`). It is never a spot machine: all pairs at work would lose it together.
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
from typing import TYPE_CHECKING

from cooperbench.backends.gcp.api import SESSION, OutOfMachines, QuotaExceeded, resource_labels
from cooperbench.backends.gcp.compute import GIT_PORT, Firewall, MachineSpec, git_tag, session_tag
from cooperbench.backends.gcp.engine import Keys, MachineEngine, Tunnel, sign_in, team_bridge
from cooperbench.errors import (
    CooperBenchError,
    InfraError,
    Interrupted,
    SandboxError,
    SandboxTimeout,
    UserError,
)
from cooperbench.retry import Once
from cooperbench.sandbox.contract import ResourceUse
from cooperbench.sandbox.git_server import GitServer

if TYPE_CHECKING:
    from cooperbench.backends.gcp.compute import Compute, MachineSize
    from cooperbench.backends.gcp.engine import MachineSandbox
    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.models import Image, Task

SPARE_SECONDS = 600
"""Between the end of a sandbox's lifetime and that of its machine."""
LIFETIME_SECONDS = 12 * 3600
"""After this a machine is deleted by Google, whatever became of us. One for longer sandboxes lives longer."""
_GIT_LIFETIME_SECONDS = 4 * LIFETIME_SECONDS
"""Pairs that begin late should not lose it in the middle."""
_GIT_MACHINE_TYPE = "e2-medium"
_CPUS_PER_SANDBOX = 2
_BOOT_SECONDS = 600.0
_LOOK_SECONDS = 2.0
_RUNNING = ("PROVISIONING", "STAGING", "RUNNING")
_log = logging.getLogger("cooperbench")


class Machine:
    """Made by `start`; nothing else of it may be used before."""

    def __init__(self, fleet: Fleet, spec: MachineSpec, size: MachineSize) -> None:
        self.name = spec.name
        self._fleet = fleet
        self._spec = spec
        self._size = size
        self._started_at = time.monotonic()
        self._ended_at: float | None = None
        self.ends_at = self._started_at + spec.lifetime_seconds
        self._tunnel: Tunnel | None = None
        self._engine: MachineEngine | None = None
        self._prepared: Once[Task, Image] = Once()
        self.tasks: set[Task] = set()
        """Those whose images it has."""
        self.promised = 0
        """Sandboxes that are being made on it. For the fleet, as all that follows."""
        self.sandboxes: list[MachineSandbox] = []
        self.last_used_at = self._started_at
        self.ready: Future[None] = Future()

    @property
    def alive(self) -> bool:
        return self._tunnel is None or self._tunnel.open

    @property
    def places_taken(self) -> int:
        self.sandboxes = [sandbox for sandbox in self.sandboxes if not sandbox.ended]
        return self.promised + len(self.sandboxes)

    @property
    def resource_use(self) -> ResourceUse:
        """Until now, or until it was closed."""
        seconds = (self._ended_at or time.monotonic()) - self._started_at
        return ResourceUse(1, "machine", seconds, seconds * self._size.vcpus, seconds * self._size.gib)

    @property
    def engine(self) -> MachineEngine:
        if self._engine is None or not self.alive:
            words = self._tunnel.last_words if self._tunnel else ""
            raise SandboxError(f"the connection to {self.name} was lost: {words}")
        return self._engine

    def start(self) -> None:
        fleet = self._fleet
        fleet.compute.create(self._spec, fleet.keys.public)
        host_key = self._wait_until_ready()
        self._tunnel = Tunnel(fleet.keys, self.name, self.addresses()[-1], host_key, fleet.stopped)
        template = fleet.settings.image_template
        self._engine = MachineEngine(self.name, self._tunnel, self._is_running, template)
        if fleet.stopped.is_set():
            raise SandboxError("the backend was closed")

    def addresses(self) -> tuple[str, ...]:
        """The one inside the VPC, and then the public one if it has one."""
        found = self._fleet.compute.get(self.name)
        if found is None:
            raise InfraError(f"the machine {self.name} is gone")
        interface = found.network_interfaces[0]
        return (interface.network_i_p, *(one.nat_i_p for one in interface.access_configs if one.nat_i_p))

    def prepare(self, task: Task) -> Image:
        """The task's images on this machine: pulled or built when they are first asked for."""

        def make() -> Image:
            engine = self.engine
            sign_in(engine.engine.api, engine.images.names_of(task))
            image = engine.prepare(task)
            self.tasks.add(task)
            return image

        return self._prepared.get(task, make)

    def close(self) -> None:
        """Let go of it, without deleting it."""
        self._ended_at = self._ended_at or time.monotonic()
        if self._tunnel is not None:
            self._tunnel.close()
        if self._engine is not None:
            self._engine.abandon()

    def _is_running(self) -> bool:
        try:
            found = self._fleet.compute.get(self.name)
        except CooperBenchError:
            return False
        return found is not None and found.status in _RUNNING

    def _wait_until_ready(self) -> str:
        """The host key, told as everything else by guest attributes, which nobody on the way can change."""
        for look in range(round(_BOOT_SECONDS / _LOOK_SECONDS)):
            told = self._fleet.compute.attributes(self.name)
            if "failed" in told:
                raise InfraError(f"the machine {self.name} did not get ready: {told['failed'][:300]}")
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
    """All machines of one backend object, from when it first needs one until it is closed."""

    def __init__(self, settings: GcpSettings, compute: Compute) -> None:
        self.name = secrets.token_hex(6)
        self._process = os.getpid()
        self.compute = compute
        self.keys = Keys()
        self.stopped = threading.Event()
        """Whoever waits for a machine waits no longer."""
        self.settings = settings
        size = compute.size_of(settings.machine_type)
        self._room = settings.sandboxes_per_machine or max(1, size.vcpus // _CPUS_PER_SANDBOX)
        self._lock = threading.Lock()
        self._machines: list[Machine] = []
        self._git_machine: Machine | None = None
        self._firewall: Firewall | None = None
        self._made: list[Machine] = []
        self._most = settings.most_machines
        """Less where Google has refused another one."""
        threading.Thread(target=self._remove_unused, name="gcp-machines", daemon=True).start()
        # What is at Google has to go also where nobody knows of it any more.
        atexit.register(self.close)

    def place(self, run_name: str, task: Task | None, lifetime_seconds: int) -> Machine:
        """A machine that is ready, with a place on it promised until `keep` is called."""
        while True:
            machine, make = self._choose(run_name, task, lifetime_seconds)
            if make:
                self._start(machine)
            try:
                machine.ready.result()
            except (QuotaExceeded, OutOfMachines) as error:
                with self._lock:
                    self._most = len(self._machines)
                if not self._most:
                    raise
                _log.warning("%s; going on with the machines that there are", error)
            else:
                return machine

    def keep(self, machine: Machine, sandbox: MachineSandbox | None) -> None:
        """The sandbox that the place was promised to is there; None: it will never be."""
        with self._lock:
            machine.promised -= 1
            if sandbox is not None:
                machine.sandboxes.append(sandbox)

    def start_git_server(self, run_name: str) -> GitServer:
        """A server that answers; the machine of one before it is deleted. One call at a time."""
        if self._git_machine is not None:
            self._delete([self._git_machine])
        # Before there is anything to protect. Rules hold for every machine with the tag.
        self._firewall = self._firewall or Firewall(self.settings)
        self._firewall.protect(self.name)
        self._git_machine = machine = self._new(run_name, "git", _GIT_MACHINE_TYPE, _GIT_LIFETIME_SECONDS)
        try:
            machine.start()
            address = machine.addresses()[0]
            lifetime_seconds = _GIT_LIFETIME_SECONDS - SPARE_SECONDS
            sandbox = machine.engine.create_server(self.settings.git_image, lifetime_seconds)
            where = f"{address}:{GIT_PORT}"
            return GitServer(sandbox, f"http://{where}", host=address, port=GIT_PORT, reaches=(where,))
        except BaseException as error:
            self._delete([machine])
            self._git_machine = None
            if isinstance(error, UserError):
                raise UserError(f"the git server of --git: {error}") from error
            raise

    def resource_use(self) -> ResourceUse:
        with self._lock:
            made = list(self._made)
        return sum((machine.resource_use for machine in made), ResourceUse(what="machine"))

    def close(self) -> None:
        """Delete everything, also machines that are still being made. Called again it goes on with what is left."""
        if self._process != os.getpid():
            return
        self.stopped.set()
        with self._lock:
            machines = list(self._machines)
        self._delete([*machines, *([self._git_machine] if self._git_machine else [])])
        with suppress(CooperBenchError):
            self.compute.remove_session(self.name)
        if self._firewall is not None:
            try:
                self._firewall.remove_session(self.name)
            except CooperBenchError as error:
                _log.warning("%s; cooperbench clean --backend gcp removes the firewall rules", error)
        self.keys.remove()
        atexit.unregister(self.close)

    def _choose(self, run_name: str, task: Task | None, lifetime_seconds: int) -> tuple[Machine, bool]:
        """A machine and whether it has yet to be made; a place on it is promised."""
        with self._lock:
            if self.stopped.is_set():
                raise SandboxError("the backend was closed")
            needed_until = time.monotonic() + lifetime_seconds
            lasting = [one for one in self._machines if one.alive and one.ends_at >= needed_until]
            room = [one for one in lasting if one.places_taken < self._room]
            chosen = max(room, key=lambda one: (task in one.tasks, one.places_taken), default=None)
            if chosen is None and lasting and len(self._machines) >= self._most:
                chosen = min(lasting, key=lambda one: one.places_taken)
            make = chosen is None
            if chosen is None:
                seconds = max(LIFETIME_SECONDS, lifetime_seconds + SPARE_SECONDS)
                chosen = self._new(run_name, "agents", self.settings.machine_type, seconds)
                self._machines.append(chosen)
            chosen.promised += 1
        return chosen, make

    def _new(self, run_name: str, purpose: str, machine_type: str, lifetime_seconds: int) -> Machine:
        name = f"cooperbench-{self.name}-{secrets.token_hex(3)}"
        is_git = purpose == "git"
        spec = MachineSpec(
            name,
            machine_type,
            spot=self.settings.spot and not is_git,
            lifetime_seconds=lifetime_seconds,
            labels=resource_labels(run_name, purpose, **{SESSION: self.name}),
            tag=git_tag(self.name) if is_git else session_tag(self.name),
            metadata={
                "cooperbench-bridge": team_bridge(name),
                **({"cooperbench-serve-port": str(GIT_PORT)} if is_git else {}),
            },
        )
        machine = Machine(self, spec, self.compute.size_of(machine_type))
        self._made.append(machine)
        return machine

    def _start(self, machine: Machine) -> None:
        try:
            machine.start()
        except BaseException as error:
            with self._lock:
                self._machines = [one for one in self._machines if one is not machine]
            self._delete([machine])
            machine.ready.set_exception(error)
        else:
            machine.ready.set_result(None)

    def _remove_unused(self) -> None:
        """For as long as the fleet lives: delete machines that were lost or have had no sandbox for a while."""
        idle_seconds = self.settings.idle_minutes * 60
        while not self.stopped.wait(min(idle_seconds, 10.0)):
            now = time.monotonic()
            with self._lock:
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
        """The requests first: what costs ends, whatever happens to the rest."""
        for machine in machines:
            try:
                self.compute.delete(machine.name)
            except CooperBenchError as error:
                _log.warning(
                    "%s; its maximum run duration ends it, or cooperbench clean --backend gcp", error
                )
        for machine in machines:
            with suppress(CooperBenchError):
                machine.close()
