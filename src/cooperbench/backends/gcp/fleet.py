"""Which sandbox goes to which machine, and when there is one machine more or less.

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

from cooperbench.backends.gcp import prices
from cooperbench.backends.gcp.compute import Wanted
from cooperbench.backends.gcp.faults import OutOfMachines, QuotaExceeded
from cooperbench.backends.gcp.labels import SESSION, resource_labels, session_tag
from cooperbench.backends.gcp.machine import Machine
from cooperbench.backends.gcp.networks import bridge_metadata
from cooperbench.errors import CooperBenchError, SandboxError

if TYPE_CHECKING:
    from cooperbench.backends.gcp.compute import Compute
    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.backends.gcp.tunnel import Keys
    from cooperbench.models import Task
    from cooperbench.sandbox.contract import Estimate

SPARE_SECONDS = 600
"""Between the end of a sandbox's lifetime and that of its machine."""
_FULL_SECONDS = 300.0
"""For how long nobody asks for another machine after Google has refused one."""
_log = logging.getLogger("cooperbench")


class Fleet:
    """The machines of one backend object."""

    def __init__(self, settings: GcpSettings, compute: Compute, keys: Keys) -> None:
        self.session = secrets.token_hex(6)
        self._settings = settings
        self._compute = compute
        self._keys = keys
        self._lock = threading.Lock()
        self._machines: dict[Machine, Future[None]] = {}
        self._idle: dict[Machine, threading.Timer] = {}
        self._full_until = 0.0
        self._ever: list[Machine] = []
        self._closed = False

    def place(self, run_name: str, task: Task | None, lifetime_seconds: int) -> Machine:
        """A machine that is ready, with a place on it taken; `free` gives the place back."""
        while True:
            machine, make = self._choose(run_name, task, lifetime_seconds)
            ready = self._machines.get(machine) or _done()
            if make:
                self._start(machine, ready)
            try:
                ready.result()
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
            if machine.places_taken > 0 or machine not in self._machines or self._closed:
                return
            timer = threading.Timer(self._settings.idle_minutes * 60, self._remove_idle, [machine])
            timer.daemon = True
            self._idle[machine] = timer
            timer.start()

    def estimate(self) -> Estimate:
        with self._lock:
            return prices.summed(machine.cost for machine in self._ever)

    @property
    def closed(self) -> bool:
        return self._closed

    def interrupt(self) -> None:
        """Whoever waits for a machine waits no longer; `close` follows."""
        self._closed = True

    def close(self) -> None:
        """Delete all machines, those that are still being made included."""
        with self._lock:
            self._closed = True
            machines = list(self._machines)
            for timer in self._idle.values():
                timer.cancel()
            self._idle.clear()
        self._delete(machines)
        told = self.estimate()
        _log.info("%d machines for %.1f hours in all", told.count, told.seconds / 3600)

    def _choose(self, run_name: str, task: Task | None, lifetime_seconds: int) -> tuple[Machine, bool]:
        """A machine and whether it has yet to be made; a place on it is taken."""
        with self._lock:
            if self._closed:
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
            threading.Thread(target=self._delete, args=(lost,), daemon=True).start()
        return chosen, make

    def _new(self, run_name: str, lifetime_seconds: int) -> Machine:
        seconds = max(int(self._settings.lifetime_hours * 3600), lifetime_seconds + SPARE_SECONDS)
        name = f"cooperbench-{self.session}-{secrets.token_hex(3)}"
        wanted = Wanted(
            name,
            prices.kind_of(self._settings),
            seconds,
            labels=resource_labels(run_name, "agents", **{SESSION: self.session}),
            tags=(session_tag(self.session),),
            metadata=bridge_metadata(name),
        )
        machine = Machine(self._settings, wanted, self.free)
        self._machines[machine] = Future()
        self._ever.append(machine)
        return machine

    def _start(self, machine: Machine, ready: Future[None]) -> None:
        try:
            machine.start(self._compute, self._keys, lambda: self._closed)
            if self._closed:
                raise SandboxError("the backend was closed")
        except BaseException as error:
            with self._lock:
                self._forget(machine)
            self._delete([machine])
            ready.set_exception(error)
        else:
            ready.set_result(None)

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
        self._delete([machine])

    def _forget(self, machine: Machine) -> None:
        if self._machines.pop(machine, None) is not None:
            machine.give_up()

    def _delete(self, machines: list[Machine]) -> None:
        delete_machines(self._compute, machines)


def delete_machines(compute: Compute, machines: list[Machine]) -> None:
    """The requests first: what costs ends, whatever happens to the rest."""
    for machine in machines:
        try:
            compute.delete(machine.name)
        except CooperBenchError as error:
            _log.warning("%s; its maximum run duration ends it, or cooperbench clean --backend gcp", error)
        machine.give_up()
    for machine in machines:
        with suppress(CooperBenchError):
            machine.close()


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(SandboxError("the machine was deleted"))
    return future
