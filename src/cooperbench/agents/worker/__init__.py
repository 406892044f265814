"""Agents that are programs: anybody's (`-a ./my_agent`), in any language, and the frameworks `openhands`, `swe_agent`.

The program (the worker) runs on the harness's machine and talks to us in JSON lines over its stdin and stdout
(docs/workers.md). Here are the adapters: what is started, and with which settings. `server` is our side of the
protocol, `supervisor` the worker's parent process, which ends it with everything it started. `client`, the other side,
imports nothing of ours: `openhands_worker` and `swe_worker` run with it in the environments of their frameworks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from cooperbench.agents.base import read_yaml
from cooperbench.agents.environments import Environment, get_environment, get_framework
from cooperbench.agents.session import Session
from cooperbench.agents.worker.server import Worker, start_message
from cooperbench.errors import UserError
from cooperbench.models import Pair, Setting

_MODEL_SUFFIXES = ("_API_KEY", "_API_BASE", "_BASE_URL", "_API_VERSION", "_ORGANIZATION", "_PROJECT")
_MODEL_PREFIXES = (
    "AWS_", "AZURE_", "GOOGLE_", "VERTEX", "GEMINI_", "LITELLM_", "OPENAI_", "ANTHROPIC_", "HF_",
)  # fmt: skip


class WorkerAgent:
    """One worker for one seat. Subclasses say what to start and what else it should know."""

    silence_seconds = 1200.0
    """How long a worker may say nothing; a slow model must fit into it."""

    def command(self) -> Sequence[str]:
        """What to start; UserError where it is not there."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Variables that the program needs to start; secrets do not belong here but in the first message."""
        return {}

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:  # noqa: ARG002
        self.command()
        if config_path is not None:
            read_yaml(config_path)

    def run(self, session: Session) -> None:
        config = None if session.config_path is None else read_yaml(session.config_path)
        with Worker(session, self.command(), self.environment(), self.silence_seconds) as worker:
            worker.run(start_message(session, config, _model_variables()))


def program_agent(path: Path) -> type[WorkerAgent]:
    """The agent behind `-a ./my_agent`: an executable file, or a folder with an executable `agent` in it."""

    class ProgramAgent(WorkerAgent):
        def command(self) -> Sequence[str]:
            program = path / "agent" if path.is_dir() else path
            if not program.is_file():
                raise UserError(f"no agent {str(path)!r}: there is no file {program}")
            if not os.access(program, os.X_OK):
                raise UserError(f"{program} is not executable; chmod +x {program}")
            return [str(program.resolve())]

    return ProgramAgent


def _model_variables() -> dict[str, str]:
    """What LiteLLM and its kin look for: keys and addresses of providers."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper().endswith(_MODEL_SUFFIXES) or name.upper().startswith(_MODEL_PREFIXES)
    }


class FrameworkAgent(WorkerAgent):
    """A worker of ours in the environment of a framework."""

    framework: ClassVar[str]
    """Its name in the table of frameworks."""
    script: ClassVar[Path]

    @classmethod
    def version(cls) -> str:
        return cls.installed().version

    @classmethod
    def installed(cls) -> Environment:
        return get_environment(get_framework(cls.framework))

    def command(self) -> Sequence[str]:
        return [str(self.installed().python), str(self.script)]

    def environment(self) -> Mapping[str, str]:
        """For all frameworks: each looks at its own."""
        source = self.installed().source
        return {
            "PYTHONDONTWRITEBYTECODE": "1",
            # Its price list from the network would cost seconds at every start.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "LOG_JSON": "0",
            "LOG_LEVEL": "WARNING",
            "SWE_AGENT_CONFIG_DIR": str(source / "config"),
            "SWE_AGENT_TOOLS_DIR": str(source / "tools"),
            # It must exist, and SWE-agent is told where to write in another way.
            "SWE_AGENT_TRAJECTORY_DIR": str(source),
            "SWE_AGENT_LOG_STREAM_LEVEL": "WARNING",
        }


class OpenHandsAgent(FrameworkAgent):
    framework = "openhands"
    script = Path(__file__).with_name("openhands_worker.py")


class SweAgent(FrameworkAgent):
    framework = "swe_agent"
    script = Path(__file__).with_name("swe_worker.py")
