"""An agent that does nothing: the floor of every scale. It must score 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cooperbench.agents.session import Session


class NopAgent:
    uses_model = False

    def run(self, session: Session) -> None:
        session.think("Nothing to do.")
