"""Machines of Compute Engine: each from its creation to its deletion, and which sandbox goes to which of them.

A machine has room for as many sandboxes as its type has processors for. A sandbox goes to the fullest machine that has
room, one that has the task's image already first; where none has room another machine is made. Where the project may
have no more of them, sandboxes share what there is, more of them than there is room for. Nobody waits for a place: two
agents of different pairs that hold one each and wait for another would wait for ever.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from cooperbench.backends.gcp.compute import SESSION, SSH_USER, MachineSpec, resource_labels
from cooperbench.backends.gcp.engine import MachineEngine, bridge_metadata, sign_in
from cooperbench.backends.gcp.faults import OutOfMachines, QuotaExceeded, Unavailable
from cooperbench.backends.gcp.settings import size_of
from cooperbench.backends.gcp.ssh import Keys, Tunnel
from cooperbench.errors import CooperBenchError, InfraError, Interrupted, SandboxError, SandboxTimeout
from cooperbench.sandbox.contract import ResourceUse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cooperbench.backends.gcp.compute import Compute
    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.models import Image, Task

SPARE_SECONDS = 600
"""Between the end of a sandbox's lifetime and that of its machine."""
_FULL_SECONDS = 300.0
"""For how long nobody asks for another machine after Google has refused one."""
_BOOT_SECONDS = 600.0
_LOOK_SECONDS = 1.0
_MOST_LOOK_SECONDS = 5.0
_STATUS_SECONDS = 15.0
_GONE = ("", "STOPPING", "STOPPED", "TERMINATED", "SUSPENDED")
_log = logging.getLogger("cooperbench")


class CloudSession:
    """What the machines of one backend object share, from when it first needs one until it is closed."""

    def __init__(self, settings: GcpSettings, compute: Compute) -> None:
        self.name = secrets.token_hex(6)
        self.settings = settings
        self.compute = compute
        self.keys = Keys()
        self.closed = False
        """Whoever waits for a machine waits no longer."""
        self._made: list[Machine] = []

    def new_machine(
        self,
        run_name: str,
        purpose: str,
        machine_type: str,
        lifetime_seconds: int,
        *,
        spot: bool,
        tag: str,
        on_release: Callable[[Machine], None],
        metadata: Mapping[str, str] | None = None,
    ) -> Machine:
        """One that has yet to be started. `on_release` is called whenever a sandbox on it has ended."""
        name = f"cooperbench-{self.name}-{secrets.token_hex(3)}"
        spec = MachineSpec(
            name,
            machine_type,
            spot,
            lifetime_seconds,
            labels=resource_labels(run_name, purpose, **{SESSION: self.name}),
            tags=(tag,),
            metadata={**bridge_metadata(name), **(metadata or {})},
        )
        machine = Machine(self, spec, on_release)
        self._made.append(machine)
        return machine

    def delete(self, machines: list[Machine]) -> None:
        """The requests first: what costs ends, whatever happens to the rest."""
        for machine in machines:
            try:
                self.compute.delete(machine.name)
            except CooperBenchError as error:
                _log.warning(
                    "%s; its maximum run duration ends it, or cooperbench clean --backend gcp", error
                )
            machine.give_up()
        for machine in machines:
            with suppress(CooperBenchError):
                machine.close()

    def resource_use(self) -> ResourceUse:
        return sum((machine.resource_use for machine in list(self._made)), ResourceUse(what="machine"))


class Machine:
    """Made by `start`; nothing else of it may be used before."""

    def __init__(
        self, session: CloudSession, spec: MachineSpec, on_release: Callable[[Machine], None]
    ) -> None:
        self.name = spec.name
        self._session = session
        self._spec = spec
        self._started_at = time.monotonic()
        self._ended_at: float | None = None
        self.ends_at = self._started_at + spec.lifetime_seconds
        self._on_release = on_release
        self._tunnel: Tunnel | None = None
        self._engine: MachineEngine | None = None
        self._lock = threading.Lock()
        self._prepared: dict[Task, Image] = {}
        self._preparing: dict[Task, threading.Lock] = {}
        self.places_taken = 0
        """Sandboxes that are open, being made, or promised. For the fleet, as `ready` is."""
        self.ready: Future[None] = Future()

    @property
    def alive(self) -> bool:
        return self._tunnel is None or self._tunnel.open

    @property
    def resource_use(self) -> ResourceUse:
        """Until now, or until it was given up."""
        seconds = (self._ended_at or time.monotonic()) - self._started_at
        size = size_of(self._spec.machine_type)
        return ResourceUse(1, "machine", seconds, seconds * size.vcpus, seconds * size.gib)

    def start(self) -> None:
        session = self._session
        session.compute.create(self._spec, session.keys.public)
        host_key = self._wait_until_ready()
        address = self.name if session.settings.reach == "iap" else session.compute.address(self.name)
        self._tunnel = Tunnel(
            session.settings, session.keys, self.name, address, host_key, SSH_USER, lambda: session.closed
        )
        self._engine = MachineEngine(self.name, self._tunnel, lambda: self._on_release(self))
        if session.closed:
            raise SandboxError("the backend was closed")

    def give_up(self) -> None:
        """It is deleted, or will be: its time is over."""
        self._ended_at = self._ended_at or time.monotonic()

    @property
    def engine(self) -> MachineEngine:
        if self._engine is None or not self.alive:
            words = self._tunnel.last_words if self._tunnel else ""
            raise SandboxError(f"the connection to {self.name} was lost{': ' if words else ''}{words}")
        return self._engine

    def has(self, task: Task | None) -> bool:
        return task in self._prepared

    def prepare(self, task: Task) -> Image:
        """The task's images on this machine: pulled or built when they are first asked for."""
        with self._lock:
            turn = self._preparing.setdefault(task, threading.Lock())
        with turn:
            if task not in self._prepared:
                engine = self.engine
                sign_in(engine.engine.api, engine.images.names_of(task))
                self._prepared[task] = engine.prepare(task)
            return self._prepared[task]

    def close(self) -> None:
        """Let go of it, without deleting it."""
        if self._tunnel is not None:
            self._tunnel.close()
        if self._engine is not None:
            self._engine.abandon()

    def _wait_until_ready(self) -> str:
        """The host key, told as everything else by guest attributes, which nobody on the way can change."""
        compute = self._session.compute
        began = time.monotonic()
        next_status_at = began
        while True:
            try:
                told = compute.attributes(self.name)
                if "failed" in told:
                    raise InfraError(f"the machine {self.name} did not get ready: {told['failed'][:300]}")
                if "ready" in told and "host-key" in told:
                    return told["host-key"]
                if time.monotonic() >= next_status_at:
                    if (status := compute.status(self.name)) in _GONE:
                        state = status.lower() or "deleted"
                        raise InfraError(f"the machine {self.name} ended while booting ({state})")
                    next_status_at = time.monotonic() + _STATUS_SECONDS
            except Unavailable as error:
                # Many machines that boot at once may ask more often than Google likes.
                _log.debug("%s; asking again", error)
            if self._session.closed:
                raise Interrupted("stopped")
            waited_seconds = time.monotonic() - began
            if waited_seconds >= _BOOT_SECONDS:
                zone = self._session.settings.zone
                raise SandboxTimeout(
                    f"the machine {self.name} did not get ready in {_BOOT_SECONDS:.0f} s: see gcloud compute instances"
                    f" get-serial-port-output {self.name} --zone {zone}; without a public address it needs Cloud NAT"
                )
            time.sleep(min(_LOOK_SECONDS + waited_seconds / 10, _MOST_LOOK_SECONDS))


class Fleet:
    """The machines for the agents of one backend object."""

    def __init__(self, session: CloudSession, tag: str) -> None:
        self._session = session
        self._settings = session.settings
        self._tag = tag
        self._lock = threading.Lock()
        self._machines: list[Machine] = []
        self._idle: dict[Machine, threading.Timer] = {}
        self._full_until = 0.0

    def place(self, run_name: str, task: Task | None, lifetime_seconds: int) -> Machine:
        """A machine that is ready, with a place on it taken; `free` gives the place back."""
        while True:
            machine, make = self._choose(run_name, task, lifetime_seconds)
            if make:
                self._start(machine)
            try:
                machine.ready.result()
            except (QuotaExceeded, OutOfMachines) as error:
                self.free(machine)
                if not self._go_without(error):
                    raise
            except BaseException:
                self.free(machine)
                raise
            else:
                return machine

    def free(self, machine: Machine) -> None:
        with self._lock:
            machine.places_taken -= 1
            if machine.places_taken > 0 or machine not in self._machines or self._session.closed:
                return
            timer = threading.Timer(self._settings.idle_minutes * 60, self._remove_idle, [machine])
            timer.daemon = True
            self._idle[machine] = timer
            timer.start()

    def close(self) -> None:
        """Delete all machines, those that are still being made included. The session was closed before."""
        with self._lock:
            machines = list(self._machines)
            for timer in self._idle.values():
                timer.cancel()
            self._idle.clear()
        self._session.delete(machines)

    def _choose(self, run_name: str, task: Task | None, lifetime_seconds: int) -> tuple[Machine, bool]:
        """A machine and whether it has yet to be made; a place on it is taken."""
        with self._lock:
            if self._session.closed:
                raise SandboxError("the backend was closed")
            lost = [machine for machine in self._machines if not machine.alive]
            for machine in lost:
                self._forget(machine)
            now = time.monotonic()
            lasting = [machine for machine in self._machines if machine.ends_at - now >= lifetime_seconds]
            room = [each for each in lasting if each.places_taken < self._settings.sandboxes_per_machine]
            chosen = max(room, key=lambda each: (each.has(task), each.places_taken), default=None)
            may_have_more = len(self._machines) < self._settings.most_machines and now >= self._full_until
            if chosen is None and lasting and not may_have_more:
                chosen = min(lasting, key=lambda each: each.places_taken)
            make = chosen is None
            if chosen is None:
                chosen = self._new(run_name, lifetime_seconds)
            chosen.places_taken += 1
            if timer := self._idle.pop(chosen, None):
                timer.cancel()
        if lost:
            threading.Thread(target=self._session.delete, args=(lost,), daemon=True).start()
        return chosen, make

    def _new(self, run_name: str, lifetime_seconds: int) -> Machine:
        settings = self._settings
        machine = self._session.new_machine(
            run_name,
            "agents",
            settings.machine_type,
            max(int(settings.lifetime_hours * 3600), lifetime_seconds + SPARE_SECONDS),
            spot=settings.spot,
            tag=self._tag,
            on_release=self.free,
        )
        self._machines.append(machine)
        return machine

    def _start(self, machine: Machine) -> None:
        try:
            machine.start()
        except BaseException as error:
            with self._lock:
                self._forget(machine)
            self._session.delete([machine])
            machine.ready.set_exception(error)
        else:
            machine.ready.set_result(None)

    def _go_without(self, error: CooperBenchError) -> bool:
        """Is there a machine that can be shared instead of the one that was refused?"""
        with self._lock:
            others = bool(self._machines)
            told = time.monotonic() < self._full_until
            self._full_until = time.monotonic() + _FULL_SECONDS
        if others and not told:
            _log.warning("%s; going on with the machines that there are", error)
        return others

    def _remove_idle(self, machine: Machine) -> None:
        with self._lock:
            if self._idle.pop(machine, None) is None or machine.places_taken > 0:
                return
            self._forget(machine)
        self._session.delete([machine])

    def _forget(self, machine: Machine) -> None:
        if machine in self._machines:
            self._machines.remove(machine)
            machine.give_up()
