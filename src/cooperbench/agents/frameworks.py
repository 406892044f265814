"""The agents `openhands` and `swe_agent`: the real frameworks, each a worker in an environment of its own.

Here is what is started, and with which settings. What is in `openhands_sdk/inside` and `swe_agent/inside` runs in the
frameworks' environments, under their Pythons, without our package.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cooperbench.agents.base import read_yaml
from cooperbench.agents.environments import Environment, get_environment, get_framework
from cooperbench.agents.worker import client
from cooperbench.agents.worker.agent import WorkerAgent
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Pair, Setting

_HERE = Path(__file__).parent


class FrameworkAgent(WorkerAgent):
    """A worker of ours in the environment of a framework; its config is a mapping, and the client is on its path."""

    framework: ClassVar[str]
    """Its name in the table of frameworks."""
    script: ClassVar[Path]
    sections: ClassVar[tuple[str, ...]]
    """What the agent config may have at its top."""

    @classmethod
    def version(cls) -> str | None:
        return cls.installed().version

    @classmethod
    def installed(cls) -> Environment:
        return get_environment(get_framework(cls.framework))

    def command(self) -> Sequence[str]:
        return [str(self.installed().python), str(self.script)]

    def config(self, path: Path | None) -> dict[str, Any] | None:
        config = None if path is None else read_yaml(path)
        if config is not None and not isinstance(config, dict):
            raise UserError(f"{path} holds no mapping")
        return config

    def environment(self) -> Mapping[str, str]:
        return {
            "PYTHONPATH": str(Path(client.__file__).parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Its price list from the network would cost seconds at every start.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        super().check(config_path, pairs, setting)
        unknown = [key for key in self.config(config_path) or {} if key not in self.sections]
        if unknown:
            raise UserError(
                f"{config_path} has no section {unknown[0]!r}; there are: {', '.join(self.sections)}"
            )


class OpenHandsAgent(FrameworkAgent):
    framework = "openhands"
    script = _HERE / "openhands_sdk" / "inside" / "openhands_worker.py"
    sections = ("llm", "agent", "conversation", "tools", "terminal")

    def environment(self) -> Mapping[str, str]:
        quiet = {"OPENHANDS_SUPPRESS_BANNER": "1", "LOG_JSON": "0", "LOG_LEVEL": "WARNING"}
        return {**super().environment(), **quiet}


class SweAgent(FrameworkAgent):
    framework = "swe_agent"
    script = _HERE / "swe_agent" / "inside" / "swe_worker.py"
    sections = ("extends", "agent")

    def environment(self) -> Mapping[str, str]:
        source = self.installed().source
        return {
            **super().environment(),
            "SWE_AGENT_CONFIG_DIR": str(source / "config"),
            "SWE_AGENT_TOOLS_DIR": str(source / "tools"),
            # It must exist, and SWE-agent is told where to write in another way.
            "SWE_AGENT_TRAJECTORY_DIR": str(source),
            "SWE_AGENT_LOG_STREAM_LEVEL": "WARNING",
            "COOPERBENCH_SWE_AGENT_BUNDLE": str(_HERE / "swe_agent" / "send_message_bundle"),
        }

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:
        super().check(config_path, pairs, setting)
        name = (self.config(config_path) or {}).get("extends", "default.yaml")
        folder = self.installed().source / "config"
        if not isinstance(name, str) or not (folder / name).is_file():
            there = ", ".join(sorted(path.name for path in folder.glob("*.yaml")))
            raise UserError(f"{config_path}: SWE-agent has no config {name!r} to extend; there are: {there}")
