"""Agents that are programs: anybody's (`-a ./my_agent`), in any language, and the frameworks `openhands`, `swe_agent`.

The program (the worker) runs on the harness's machine and talks to us in JSON lines over its stdin and stdout
(docs/workers.md). `worker_process` is our side, `client` the worker's, `supervisor` its parent process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cooperbench.agents import llm
from cooperbench.agents.base import Agent, read_yaml
from cooperbench.agents.environments import InstalledAgent
from cooperbench.agents.session import AgentSession
from cooperbench.agents.worker.worker_process import Worker, start_message
from cooperbench.errors import AgentFailure, CooperBenchError, InfraError, UserError
from cooperbench.gateway.conversations import Calls
from cooperbench.models import Pair, Setting

if TYPE_CHECKING:
    from cooperbench.gateway.access import Access

_MODEL_SUFFIXES = (
    "_API_KEY",
    "_API_BASE",
    "_BASE_URL",
    "_API_VERSION",
    "_ORGANIZATION",
    "_PROJECT",
)
_MODEL_PREFIXES = (
    "AWS_", "AZURE_", "GOOGLE_", "VERTEX", "GEMINI_", "LITELLM_", "OPENAI_", "ANTHROPIC_", "HF_",
)  # fmt: skip
_GATEWAY_SETTING = re.compile(
    r"(api|aws|vertex)_\w+|base_url|timeout|(in|out)put_cost_per_token|use_chat_completions_api"
)


class WorkerAgent(Agent):
    """One worker for one slot. Subclasses say what to start and what else it should know."""

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
        read_yaml(config_path)

    def run(self, session: AgentSession) -> None:
        self._work(session, read_yaml(session.config_path), _model_variables())

    def _work(
        self,
        session: AgentSession,
        config: Any,
        model_variables: Mapping[str, str],
        access: Access | None = None,
    ) -> None:
        argv, environment = self.command(), self.environment()
        with Worker(session, argv, environment, self.silence_seconds, access) as worker:
            worker.run(start_message(session, config, model_variables))


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
    """What LiteLLM and similar libraries look for: keys and addresses of providers."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper().endswith(_MODEL_SUFFIXES) or name.upper().startswith(_MODEL_PREFIXES)
    }


class FrameworkAgent(InstalledAgent, WorkerAgent):
    """A worker of ours in the environment of a framework. It asks its model through the gateway, and has no key."""

    script: ClassVar[Path]
    model_section: ClassVar[tuple[str, ...]]
    """Where the agent config has the framework's settings of the model."""

    def check_model(
        self, model: str, config_path: Path | None, base_url: str | None = None
    ) -> None:
        llm.check_model(model, self._read_config(config_path)[1], base_url)

    def run(self, session: AgentSession) -> None:
        config, model_kwargs = self._read_config(session.config_path)
        from cooperbench.gateway.server import Gateway

        gateway = Gateway.shared()
        with gateway.open(session, model_kwargs, Calls(session)) as access:
            # Frameworks ask by LiteLLM. So it sends whatever model it is asked for to the gateway.
            proxy = {
                "USE_LITELLM_PROXY": "True",
                "LITELLM_PROXY_API_BASE": f"http://127.0.0.1:{gateway.port}/v1",
                "LITELLM_PROXY_API_KEY": access.token,
            }
            ending: CooperBenchError | None = None
            try:
                self._work(session, config, proxy, access)
            except (AgentFailure, InfraError, UserError) as error:
                ending = error
            # What the gateway knows says more than the worker does.
            if outcome := access.outcome() or ending:
                raise outcome

    def _read_config(self, path: Path | None) -> tuple[Any, dict[str, Any]]:
        """The framework's config, and what of it is for the gateway."""
        config = section = read_yaml(path)
        for name in self.model_section:
            section = section.get(name) if isinstance(section, dict) else None
        names = list(section) if isinstance(section, dict) else []
        return config, {
            name: section.pop(name) for name in names if _GATEWAY_SETTING.fullmatch(str(name))
        }

    def command(self) -> Sequence[str]:
        return [str(self.installed().python), str(self.script)]

    def environment(self) -> Mapping[str, str]:
        """For all frameworks: each looks at its own."""
        source = self.installed().source
        return {
            "PYTHONDONTWRITEBYTECODE": "1",
            # The gateway is all that it talks to.
            "NO_PROXY": "*",
            "no_proxy": "*",
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
    model_section = ("llm",)


class SweAgent(FrameworkAgent):
    framework = "swe_agent"
    script = Path(__file__).with_name("swe_worker.py")
    model_section = ("agent", "model")
