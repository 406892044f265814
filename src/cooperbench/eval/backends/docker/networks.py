"""The network of sandboxes: none at all, or one that reaches the world but not the other sandboxes."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any

from cooperbench.eval.backends.docker.faults import faults
from cooperbench.eval.backends.docker.labels import ownership

if TYPE_CHECKING:
    from cooperbench.eval.backends.base import NetworkPolicy
    from cooperbench.eval.backends.docker.engine import Engine

_NO_TALK = {"com.docker.network.bridge.enable_icc": "false"}


class Networks:
    """Of one session of one engine; what it makes is labelled and goes with the session."""

    def __init__(self, engine: Engine, session: str) -> None:
        self._engine = engine
        self._session = session
        self._lock = threading.Lock()
        self._public = ""

    def mode(self, policy: NetworkPolicy) -> str:
        """What a container's NetworkMode must be."""
        if policy == "none":
            return "none"
        if self._engine.podman:
            # Podman cannot forbid neighbours to talk, so nobody has neighbours.
            return self._create({"isolate": "true"})
        with self._lock:
            if not self._public:
                self._public = self._create(_NO_TALK)
            return self._public

    def _create(self, options: dict[str, str]) -> str:
        name = f"cooperbench-{self._session}-{secrets.token_hex(4)}"
        request: dict[str, Any] = {"driver": "bridge", "options": options, "labels": ownership(self._session)}
        with faults("making a network for sandboxes", self._engine.client):
            self._engine.api.create_network(name, **request)
        return name
