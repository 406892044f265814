"""The adapter for agents that are programs: `-a ./my_agent`, and the base of the frameworks' adapters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cooperbench.agents.base import read_yaml
from cooperbench.agents.worker.process import Worker
from cooperbench.agents.worker.protocol import DEFAULT_SILENCE_SECONDS, RequestServer, start_message
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cooperbench.agents.session import Session
    from cooperbench.models import Pair, Setting

WORKER_LOG = "worker.log"
_MODEL_VARIABLES = ("_API_KEY", "_API_BASE", "_BASE_URL", "_API_VERSION", "_ORGANIZATION", "_PROJECT")
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


class WorkerAgent:
    """One worker for one seat. Subclasses say what to start and what else it should know."""

    silence_seconds = DEFAULT_SILENCE_SECONDS

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
        worker = Worker(self.command(), session.folder / WORKER_LOG, self.environment())
        try:
            start = start_message(session, config, model_variables(os.environ))
            RequestServer(session, worker, self.silence_seconds).run(start)
        finally:
            worker.close()


def program_agent(path: Path) -> type[WorkerAgent]:
    """The agent behind `-a ./my_agent`: an executable file, or a folder with an executable `agent` in it."""

    class ProgramAgent(WorkerAgent):
        def command(self) -> Sequence[str]:
            return [str(program_at(path))]

    return ProgramAgent


def program_at(path: Path) -> Path:
    program = path / "agent" if path.is_dir() else path
    if not program.is_file():
        raise UserError(f"no agent {str(path)!r}: there is no file {program}")
    if not os.access(program, os.X_OK):
        raise UserError(f"{program} is not executable; chmod +x {program}")
    return program.resolve()


def model_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What LiteLLM and its kin look for: keys and addresses of providers."""
    return {
        name: value
        for name, value in environment.items()
        if name.upper().endswith(_MODEL_VARIABLES) or name.upper().startswith(_MODEL_PREFIXES)
    }
