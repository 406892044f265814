"""The networks of sandboxes on a machine: the docker backend's, and one on which only the run's git server is reached.

What keeps a sandbox on that one from everything else are rules that the start-up script has set before it was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.backends.docker.containers import NO_TALK, Attachment, Networks

if TYPE_CHECKING:
    from cooperbench.backends.docker.engine import Engine
    from cooperbench.sandbox.contract import SandboxOptions

GIT_PORT = 8418
_NOBODY = "192.0.2.1"
"""An address that is nobody's: else the engine would ask the machine's name servers for its containers."""


def team_bridge(machine: str) -> str:
    """The interface that the rules on a machine are about; Linux takes 15 characters."""
    return f"cbteam-{machine.rpartition('-')[2]}"


def bridge_metadata(machine: str) -> dict[str, str]:
    """What the start-up script has to know for them."""
    return {"cooperbench-bridge": team_bridge(machine), "cooperbench-git-port": str(GIT_PORT)}


class MachineNetworks(Networks):
    """Of one machine's engine."""

    def __init__(self, engine: Engine, session: str, bridge: str) -> None:
        super().__init__(engine, session)
        self._bridge = bridge
        self._team = ""

    def attachment(self, options: SandboxOptions) -> Attachment:
        if options.network != "none" or not options.reaches:
            return super().attachment(options)
        with self._lock:
            if not self._team:
                self._team = self.create({**NO_TALK, "com.docker.network.bridge.name": self._bridge})
            return Attachment(self._team, (_NOBODY,))
