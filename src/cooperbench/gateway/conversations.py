"""Placeholder: one conversation, no messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.agents.session import Session
    from cooperbench.models import Usage


@dataclass(frozen=True)
class Exchange:
    _session: Session
    body: dict[str, Any]
    side: bool = False

    def answered(self, answer: Mapping[str, Any], usage: Usage) -> None:
        self._session.reply(str(answer), usage)
        self._session.steps += 1


class Conversations:
    def __init__(self, session: Session) -> None:
        self._session = session

    def request(self, dialect: str, body: Mapping[str, Any]) -> Exchange:  # noqa: ARG002
        return Exchange(self._session, dict(body))

    def finish(self) -> None:
        """Nothing."""
