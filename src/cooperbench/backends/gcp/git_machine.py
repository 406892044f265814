"""The git server of a run: a small machine of its own in the VPC, which only the run's machines reach.

It is made as agents' machines are. The server is a container on it, on the machine's own network, at its address inside
the VPC; who may push what is said in `cooperbench/sandbox/git_server.py`. It is never a spot machine: all pairs at work
would lose it together.
"""

from __future__ import annotations

import logging
import secrets
import threading
from typing import TYPE_CHECKING

from cooperbench.backends.gcp import prices
from cooperbench.backends.gcp.compute import Wanted
from cooperbench.backends.gcp.firewall import Firewall, remove_session_rules
from cooperbench.backends.gcp.fleet import SPARE_SECONDS, delete_machines
from cooperbench.backends.gcp.labels import SESSION, git_tag, resource_labels
from cooperbench.backends.gcp.machine import Machine
from cooperbench.backends.gcp.networks import GIT_PORT, bridge_metadata
from cooperbench.backends.gcp.settings import LONGEST_LIFETIME_HOURS
from cooperbench.errors import CooperBenchError, SandboxError, UserError
from cooperbench.sandbox.git_server import GitServer

if TYPE_CHECKING:
    from cooperbench.backends.gcp.compute import Compute
    from cooperbench.backends.gcp.fleet import Fleet
    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.backends.gcp.tunnel import Keys
    from cooperbench.sandbox.contract import Estimate

_LIFETIMES = 4
"""Of agents' machines: pairs that begin late should not lose it in the middle."""
_log = logging.getLogger("cooperbench")


class GitMachines:
    """Of one backend object: one at a time, another one where it was lost."""

    def __init__(self, settings: GcpSettings, compute: Compute, keys: Keys, fleet: Fleet) -> None:
        self._settings = settings
        self._compute = compute
        self._keys = keys
        self._fleet = fleet
        self._lock = threading.Lock()
        self._firewall: Firewall | None = None
        self._protected = False
        self._there: set[Machine] = set()
        self._ever: list[Machine] = []

    def start(self, run_name: str) -> GitServer:
        """A server that answers, on a machine that is deleted when the server's sandbox ends. One call at a time."""
        self._protect()
        machine = self._new(run_name)
        try:
            machine.start(self._compute, self._keys, lambda: self._fleet.closed)
            if self._fleet.closed:
                raise SandboxError("the backend was closed")
            address = self._compute.internal_address(machine.name)
            sandbox = machine.engine.create_server(
                self._settings.git_image, self._lifetime_seconds - SPARE_SECONDS
            )
            where = f"{address}:{GIT_PORT}"
            return GitServer(sandbox, f"http://{where}", host=address, port=GIT_PORT, reaches=(where,))
        except UserError as error:
            self._delete(machine)
            words = f"the git server of --git: {error}; GCP_GIT=carried needs neither machine nor image"
            raise UserError(words) from error
        except BaseException:
            self._delete(machine)
            raise

    def estimate(self) -> Estimate:
        with self._lock:
            return prices.summed(machine.cost for machine in self._ever)

    def close(self) -> None:
        """Delete what is there, and the rules that were set for it. Calling it again goes on with what is left."""
        with self._lock:
            machines = list(self._there)
        delete_machines(self._compute, machines)
        if self._firewall is not None:
            try:
                remove_session_rules(self._firewall, self._fleet.session)
            except CooperBenchError as error:
                _log.warning("%s; cooperbench clean --backend gcp removes the firewall rules", error)
        with self._lock:
            self._there.clear()
            self._firewall, self._protected = None, False

    @property
    def _lifetime_seconds(self) -> int:
        hours = min(self._settings.lifetime_hours * _LIFETIMES, LONGEST_LIFETIME_HOURS)
        return max(int(hours * 3600), 2 * SPARE_SECONDS)

    def _protect(self) -> None:
        """Before there is anything to protect. Once: rules hold for every machine with the tag."""
        if self._protected:
            return
        if self._firewall is None:
            self._firewall = Firewall(self._settings)
        self._firewall.protect(self._fleet.session)
        self._protected = True

    def _new(self, run_name: str) -> Machine:
        session = self._fleet.session
        kind = prices.kind_of(self._settings)._replace(
            machine_type=self._settings.git_machine_type, spot=False
        )
        name = f"cooperbench-{session}-{secrets.token_hex(3)}"
        wanted = Wanted(
            name,
            kind,
            self._lifetime_seconds,
            labels=resource_labels(run_name, "git", **{SESSION: session}),
            tags=(git_tag(session),),
            metadata={**bridge_metadata(name), "cooperbench-serve-port": str(GIT_PORT)},
        )
        machine = Machine(self._settings, wanted, self._delete)
        with self._lock:
            self._there.add(machine)
            self._ever.append(machine)
        return machine

    def _delete(self, machine: Machine) -> None:
        with self._lock:
            there = machine in self._there
            self._there.discard(machine)
        if there:
            delete_machines(self._compute, [machine])
