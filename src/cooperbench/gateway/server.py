"""The server, and what one agent has of it. (Skeleton: the interface that adapters use.)"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.agents.session import Session

DIALECTS = ("chat", "responses", "anthropic", "gemini")
"""Names of the dialects, as `Conversations.request` gets them."""
MCP_PATH = "/mcp"
"""Streamable HTTP with `Authorization: Bearer TOKEN`, as everything here."""


class Gateway:
    """One per process; it listens on loopback from the first use until the process ends.

    Base URLs for clients: chat and responses `http://HOST:PORT/v1`, Anthropic `http://HOST:PORT`,
    Gemini `http://HOST:PORT` (it adds /v1beta/models/…), MCP `http://HOST:PORT/mcp`.
    The model's name in requests does not matter: it is the one that the access was opened for.
    """

    port: int

    @classmethod
    def shared(cls) -> Gateway:
        raise NotImplementedError

    def open(
        self, session: Session, model: str, model_kwargs: Mapping[str, Any] | None = None, *, record: bool = False
    ) -> Access:
        """A token for one agent. `model_kwargs`: what the agent config adds to every call (api_base, api_key …)."""
        raise NotImplementedError


class Access:
    """What one agent has of the gateway: valid while it works, 401 afterwards.

        with Gateway.shared().open(session, model) as access:
            start the program with access.token
            wait for the program and for access.ended, then end the program
            if error := access.outcome(): raise error
    """

    token: str
    ended: threading.Event
    """Set when the agent has to end: a limit (the time limit too), a stopped run, a fault that stays."""
    session: Session
    lock: threading.RLock
    """Hold it around everything that changes the session: requests come from several threads."""

    def outcome(self) -> Exception | None:
        """Why `ended` is set: AgentFailure, UserError, InfraError or Interrupted, to be raised by the adapter."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
