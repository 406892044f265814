"""The network of sandboxes: none at all, or one that reaches the world but not the other sandboxes."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.backends.docker.faults import faults
from cooperbench.backends.docker.labels import ownership

if TYPE_CHECKING:
    from cooperbench.backends.docker.engine import Engine
    from cooperbench.sandbox.contract import SandboxOptions

NO_TALK = {"com.docker.network.bridge.enable_icc": "false"}


class Attachment(NamedTuple):
    """How a container is on the network."""

    mode: str
    """Its NetworkMode."""
    name_servers: tuple[str, ...] = ()
    """Those of the engine unless there are any here."""


class Networks:
    """Of one session of one engine; what it makes is labelled and goes with the session."""

    def __init__(self, engine: Engine, session: str) -> None:
        self._engine = engine
        self._session = session
        self._lock = threading.Lock()
        self._public = ""

    def attachment(self, options: SandboxOptions) -> Attachment:
        """As a sandbox's network policy wants it."""
        if options.network == "none":
            return Attachment("none")
        if self._engine.podman:
            # Podman cannot forbid neighbours to talk, so nobody has neighbours.
            return Attachment(self.create({"isolate": "true"}))
        with self._lock:
            if not self._public:
                self._public = self.create(NO_TALK)
            return Attachment(self._public)

    def create(self, options: dict[str, str]) -> str:
        """A bridge with options of its driver; its name."""
        name = f"cooperbench-{self._session}-{secrets.token_hex(4)}"
        request: dict[str, Any] = {"driver": "bridge", "options": options, "labels": ownership(self._session)}
        with faults("making a network for sandboxes", self._engine.client):
            self._engine.api.create_network(name, **request)
        return name
