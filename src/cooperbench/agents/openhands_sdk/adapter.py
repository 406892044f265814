"""What is to be started for the agent `openhands`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.agents.worker.agent import FrameworkAgent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_INSIDE = Path(__file__).parent / "inside"


class OpenHandsAgent(FrameworkAgent):
    framework = "openhands"
    sections = ("llm", "agent", "conversation", "tools", "terminal")

    def command(self) -> Sequence[str]:
        return [str(self.installed().python), str(_INSIDE / "openhands_worker.py")]

    def environment(self) -> Mapping[str, str]:
        return {
            **super().environment(),
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "LOG_JSON": "0",
            "LOG_LEVEL": "WARNING",
        }
