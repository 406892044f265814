"""Agents that are programs: `-a ./my_agent` in any language, and openhands and swe_agent.

The program (the worker) runs on the harness's machine. It exchanges JSON lines with the harness
over its stdin and stdout (docs/workers.md). `worker_process` is the harness's side, `client` the
worker's, `supervisor` the worker's parent process.
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
from cooperbench.agents.worker.worker_process import Worker, WorkerProgram, start_message
from cooperbench.errors import AgentFailure, CooperBenchError, InfraError, UserError
from cooperbench.gateway.conversations import Calls
from cooperbench.models import Pair, Setting
from cooperbench.records import JsonObject

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
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "VERTEX",
    "GEMINI_",
    "LITELLM_",
    "OPENAI_",
    "ANTHROPIC_",
    "HF_",
)
_GATEWAY_SETTING = re.compile(
    r"(api|aws|vertex)_\w+|base_url|timeout|(in|out)put_cost_per_token|use_chat_completions_api"
)
"""Names of a framework's model settings that are for the gateway."""


class WorkerAgent(Agent):
    """An agent with one worker. Subclasses define which program is started."""

    silence_seconds = 1200.0
    """Timeout for a worker that sends nothing. A slow model must fit into it."""

    def command(self) -> Sequence[str]:
        """Return the argv of the program; UserError if it does not exist."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return environment variables for the program. Secrets go into its first message."""
        return {}

    def check(
        self,
        config_path: Path | None,
        pairs: Sequence[Pair],  # noqa: ARG002  # all pairs are alike
        setting: Setting,  # noqa: ARG002  # all settings are alike
    ) -> None:
        """Check that the program exists and that the config is YAML."""
        self.command()
        read_yaml(config_path)

    def run(self, session: AgentSession) -> None:
        """Run the worker until it ends."""
        self._run_worker(session, read_yaml(session.config_path), _model_variables())

    def _run_worker(
        self,
        session: AgentSession,
        config: Any,
        model_variables: Mapping[str, str],
        access: Access | None = None,
    ) -> None:
        program = WorkerProgram(self.command(), self.environment(), self.silence_seconds)
        with Worker(session, program, access) as worker:
            worker.run(start_message(session, config, model_variables))


def program_agent(path: Path) -> type[WorkerAgent]:
    """Return the agent class for `-a ./my_agent`.

    `path` is an executable file, or a folder that contains an executable file `agent`.
    """

    class ProgramAgent(WorkerAgent):
        """The agent whose worker is the program."""

        def command(self) -> Sequence[str]:
            """Return the path of the program."""
            program = path / "agent" if path.is_dir() else path
            if not program.is_file():
                raise UserError(f"no agent {str(path)!r}: there is no file {program}")
            if not os.access(program, os.X_OK):
                raise UserError(f"{program} is not executable; chmod +x {program}")
            return [str(program.resolve())]

    return ProgramAgent


def _model_variables() -> dict[str, str]:
    """Return the environment variables with keys and addresses of providers."""
    variables = {}
    for name, value in os.environ.items():
        upper_name = name.upper()
        if upper_name.endswith(_MODEL_SUFFIXES) or upper_name.startswith(_MODEL_PREFIXES):
            variables[name] = value
    return variables


class FrameworkAgent(InstalledAgent, WorkerAgent):
    """An agent whose worker runs a framework, which calls its model through the gateway."""

    script: ClassVar[Path]
    model_section: ClassVar[tuple[str, ...]]
    """Path of the section with model settings in the agent config."""

    def check_model(
        self, model: str, config_path: Path | None, base_url: str | None = None
    ) -> None:
        """Check that the model can be called."""
        llm.check_model(model, self._read_config(config_path)[1], base_url)

    def run(self, session: AgentSession) -> None:
        """Run the worker with access to the gateway."""
        config, model_kwargs = self._read_config(session.config_path)
        from cooperbench.gateway.server import Gateway

        with session.remembering_faults():
            gateway = Gateway.shared()
        with gateway.open(session, model_kwargs, Calls(session)) as access:
            # The frameworks use LiteLLM, which these variables make send every call to the gateway.
            proxy = {
                "USE_LITELLM_PROXY": "True",
                "LITELLM_PROXY_API_BASE": f"http://127.0.0.1:{gateway.port}/v1",
                "LITELLM_PROXY_API_KEY": access.token,
            }
            ending: CooperBenchError | None = None
            try:
                self._run_worker(session, config, proxy, access)
            except (AgentFailure, InfraError, UserError) as error:
                ending = error
            # The gateway knows the reason better than the worker does.
            outcome = access.outcome() or ending
            if outcome:
                raise outcome

    def _read_config(self, path: Path | None) -> tuple[Any, JsonObject]:
        """Return the framework's config, and the settings for the gateway that were in it."""
        config = read_yaml(path)
        section = config
        for name in self.model_section:
            section = section.get(name) if isinstance(section, dict) else None
        gateway_settings: JsonObject = {}
        if isinstance(section, dict):
            for name in list(section):
                if _GATEWAY_SETTING.fullmatch(str(name)):
                    gateway_settings[name] = section.pop(name)
        return config, gateway_settings

    def command(self) -> Sequence[str]:
        """Return the argv of the framework's worker."""
        return [str(self.installed().python), str(self.script)]

    def environment(self) -> Mapping[str, str]:
        """Return the variables of all frameworks. Each one ignores those of the others."""
        source = self.installed().source
        return {
            "PYTHONDONTWRITEBYTECODE": "1",
            # The worker only talks to the gateway.
            "NO_PROXY": "*",
            "no_proxy": "*",
            # Downloading LiteLLM's price list would take seconds at every start.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "LOG_JSON": "0",
            "LOG_LEVEL": "WARNING",
            "SWE_AGENT_CONFIG_DIR": str(source / "config"),
            "SWE_AGENT_TOOLS_DIR": str(source / "tools"),
            # The folder must exist, but `output_dir` decides where SWE-agent writes.
            "SWE_AGENT_TRAJECTORY_DIR": str(source),
            "SWE_AGENT_LOG_STREAM_LEVEL": "WARNING",
        }


class OpenHandsAgent(FrameworkAgent):
    """OpenHands."""

    framework = "openhands"
    script = Path(__file__).with_name("openhands_worker.py")
    model_section = ("llm",)


class SweAgent(FrameworkAgent):
    """SWE-agent."""

    framework = "swe_agent"
    script = Path(__file__).with_name("swe_worker.py")
    model_section = ("agent", "model")
