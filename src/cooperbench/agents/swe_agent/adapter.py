"""What is to be started for the agent `swe_agent`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.agents.worker.agent import FrameworkAgent
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Pair, Setting

_HERE = Path(__file__).parent
DEFAULT_CONFIG = "default.yaml"


class SweAgent(FrameworkAgent):
    framework = "swe_agent"
    sections = ("extends", "agent")

    def command(self) -> Sequence[str]:
        return [str(self.installed().python), str(_HERE / "inside" / "swe_worker.py")]

    def environment(self) -> Mapping[str, str]:
        source = self.installed().source
        return {
            **super().environment(),
            "SWE_AGENT_CONFIG_DIR": str(source / "config"),
            "SWE_AGENT_TOOLS_DIR": str(source / "tools"),
            # It must exist, and SWE-agent is told where to write in another way.
            "SWE_AGENT_TRAJECTORY_DIR": str(source),
            "SWE_AGENT_LOG_STREAM_LEVEL": "WARNING",
            "COOPERBENCH_SWE_AGENT_BUNDLE": str(_HERE / "send_message_bundle"),
        }

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        super().check(config_path, pairs, setting)
        config = self.config(config_path) or {}
        name = config.get("extends", DEFAULT_CONFIG)
        folder = self.installed().source / "config"
        if not isinstance(name, str) or not (folder / name).is_file():
            there = ", ".join(sorted(path.name for path in folder.glob("*.yaml")))
            raise UserError(f"{config_path}: SWE-agent has no config {name!r} to extend; there are: {there}")
