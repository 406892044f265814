"""An agent without a model: it announces what it changes, asks before it touches a shared file.

    cooperbench run -n scripted -a scripted_agent:ScriptedAgent --dataset-dir demo --backend local

It cheats: its changes are the feature's golden patch. Everything else is what any agent does.
"""

from __future__ import annotations

import re

from cooperbench.agents.base import Agent
from cooperbench.agents.session import AgentSession
from cooperbench.errors import AgentFailure

CHANGED_FILE = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)


class ScriptedAgent(Agent):
    """Sends one message, waits for one, and applies a patch."""

    uses_model = False

    def run(self, session: AgentSession) -> None:
        """Work on the agent's feature. Returning submits the work."""
        if len(session.slot.features) == 1:
            patch = session.slot.features[0].patch.read_bytes()
        else:  # solo: one agent, all features
            patch = session.pair.task.combined_patch.read_bytes()
        files = CHANGED_FILE.findall(patch.decode())
        if session.teammates:
            session.send(f"I change {', '.join(files)}. What do you change?")
            session.wait_for_message(timeout_seconds=30)
        for message in session.incoming():
            shared = [file for file in files if file in message.text]
            session.think(f"{message.sender} and I both change: {', '.join(shared) or 'nothing'}")
        result = session.apply_patch(patch, "feature.patch")
        if result.returncode != 0:
            raise AgentFailure("gave_up", result.stderr_read())
