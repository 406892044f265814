"""What one backend object has at Google, from when it first needs something until it is closed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cooperbench.backends.gcp import prices
from cooperbench.backends.gcp.fleet import Fleet
from cooperbench.backends.gcp.git_machine import GitMachines
from cooperbench.backends.gcp.leftovers import remove_session
from cooperbench.backends.gcp.tunnel import Keys
from cooperbench.errors import CooperBenchError
from cooperbench.sandbox.git_server import SharedServer

if TYPE_CHECKING:
    from cooperbench.backends.gcp.compute import Compute
    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.sandbox.contract import Estimate


class Holdings:
    """Machines for agents, and the one of their git server; a key opens them all."""

    def __init__(self, settings: GcpSettings, compute: Compute) -> None:
        self._compute = compute
        self._keys = Keys()
        self.fleet = Fleet(settings, compute, self._keys)
        self._git_machines = GitMachines(settings, compute, self._keys, self.fleet)
        self.git_server = SharedServer(self._git_machines.start)

    def estimate(self) -> Estimate:
        return prices.summed([self.fleet.estimate(), self._git_machines.estimate()])

    def interrupt(self) -> None:
        """Whoever waits for a machine waits no longer; `close` follows."""
        self.fleet.interrupt()

    def close(self) -> None:
        """Delete everything. What it has cost can still be told."""
        self.interrupt()
        try:
            self.git_server.close()
        finally:
            self._git_machines.close()
            self.fleet.close()
            with suppress(CooperBenchError):
                remove_session(self._compute, self.fleet.session)
            self._keys.remove()
