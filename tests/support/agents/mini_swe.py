"""Agents on the tiny dataset whose model is the scripted server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from tests.support.modelserver import Answer, call, say
from tests.support.runner.helpers import Left, run_tiny
from tests.support.tiny import golden

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modelserver import ModelServer
    from tests.support.modelserver.server import Script

TEXT, TOOLS = "mini_swe_agent", "mini_swe_agent_v2"
MODEL = "openai/scripted"
KEY = "sk-of-the-tests-1234567890"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def act(agent: str, command: str, **more: Any) -> Answer:
    """A reply that runs a command, in the agent's style."""
    if agent == TOOLS:
        return call(command, "I run a command.", **more)
    return say(f"THOUGHT: I run a command.\n\n```bash\n{command}\n```", **more)


def patching(patch: str) -> str:
    return f"git apply - <<'PATCH'\n{patch}PATCH"


def write_config(path: Path, url: str, content: dict[str, Any] | None = None) -> Path:
    """An agent config that leads to the server; `content` in the framework's format is added to it."""
    content = content or {}
    model = content.get("model", {})
    kwargs = {"api_base": url, "api_key": KEY} | model.get("model_kwargs", {})
    path.write_text(yaml.safe_dump(content | {"model": model | {"model_kwargs": kwargs}}))
    return path


def run_solo(
    tmp_path: Path,
    server: ModelServer,
    script: Script,
    agent: str = TOOLS,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Left:
    """One agent for features 1 and 2, not judged; what it left on disk."""
    server.script("", script)
    path = write_config(tmp_path / "agent.yaml", server.openai_url, config)
    settings: dict[str, Any] = {
        "model_name": MODEL,
        "setting": "solo",
        "auto_eval": False,
    } | options
    return run_tiny(tmp_path, agent, agent_config=str(path), **settings)


def solved(agent: str = TOOLS) -> list[Answer]:
    """Both features, and the submission."""
    return [act(agent, patching(golden(1, 2))), act(agent, SUBMIT)]
