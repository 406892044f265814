"""The agents of a team, as its tools see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cooperbench.text import printable

_MAX_LINE_CHARACTERS = 200


def one_line(text: str) -> str:
    """Return an agent's text as one short line, without line breaks and control characters."""
    if len(text) > _MAX_LINE_CHARACTERS:
        text = text[: _MAX_LINE_CHARACTERS - 1] + "…"
    return printable(text)


@dataclass(frozen=True)
class Teammates:
    """The agents of a team, and how to notify them."""

    agent_ids: tuple[str, ...]
    step_of: Callable[[str], int]
    """Returns how many steps an agent has taken."""
    notify: Callable[[str, str, str], None]
    """Shows an agent a text before its next step; arguments: agent id, subject, text."""

    def notify_others(self, agent_id: str, subject: str, text: str) -> None:
        """Show every agent but `agent_id` a text before its next step."""
        for other in self.agent_ids:
            if other != agent_id:
                self.notify(other, subject, text)
