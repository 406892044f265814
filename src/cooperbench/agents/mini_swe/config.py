"""One agent's configuration: the framework's own file, what must differ in a sandbox of ours, the user's file.

The user's file has the framework's format (`agent`, `environment`, `model`) and is merged over the rest, key by key.
What it must not set (the model's name, the output path) and what it misspells is refused here, before anything starts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import yaml
from jinja2 import StrictUndefined, Template, TemplateError
from minisweagent.agents.default import AgentConfig
from minisweagent.config import builtin_config_dir
from minisweagent.models.litellm_model import LitellmModelConfig
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModelConfig
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, StringConstraints, ValidationError

from cooperbench.agents.base import REPO_DIR, read_yaml
from cooperbench.errors import UserError
from cooperbench.text import printable

_INTERACTIVE_KEYS = ("mode", "whitelist_actions", "confirm_exit")
"""Of the framework's interactive agent; they are in the files that it ships, and mean nothing here."""
_OURS = {
    ("agent", "output_path"): "the harness writes trajectory.json",
    ("model", "model_name"): "the model is named by -m/--model",
    ("model", "cost_tracking"): "what has no price is counted as such",
}
UNAME = ("system", "release", "version", "machine")
"""Variables of the templates that say where commands run."""
_OUR_CALL_ARGUMENTS = {"model", "messages", "tools", "stream", "n", "num_retries", "max_retries"}
# The first is how version 1 wrote a command; the second is what files written for version 2 tell the model.
_ACTION_REGEX = r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n```"


class AgentSettings(AgentConfig, extra="forbid"):
    """The section `agent`."""


class SandboxConfig(BaseModel, extra="forbid"):
    """The section `environment`."""

    cwd: str = REPO_DIR
    """Where commands run."""
    env: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = {}
    """Variables of every command."""
    timeout: int = 300
    """Seconds that a command may take."""


class ToolCallSettings(LitellmModelConfig, extra="forbid"):
    """The section `model`, for commands as tool calls."""


class TextSettings(LitellmTextbasedModelConfig, extra="forbid"):
    """The section `model`, for commands as text."""


class Config(BaseModel, extra="forbid"):
    """For commands as tool calls; `TextConfig` has other settings of the model."""

    agent: AgentSettings
    environment: SandboxConfig
    model: LitellmModelConfig
    sets_cost_limit: bool
    """Whether the user's file has a cost limit; else it is the framework's."""


class ToolCallConfig(Config):
    model: ToolCallSettings


class TextConfig(Config):
    model: TextSettings


def load_config(path: Path | None, *, tool_calls: bool) -> Config:
    """UserError, in one line, for a file that cannot be read, unknown keys and values that cannot work."""
    user = {} if path is None else read_yaml(path) or {}
    try:
        if not isinstance(user, dict):
            raise _Wrong("it is no mapping of agent, environment and model")
        for (section, key), reason in _OURS.items():
            if key in (user.get(section) or ()):
                raise _Wrong(f"{section}.{key} cannot be set: {reason}")
        settings = recursive_merge(_defaults(tool_calls=tool_calls), user)
        settings["sets_cost_limit"] = "cost_limit" in (user.get("agent") or ())
        for key in _INTERACTIVE_KEYS:
            if isinstance(settings["agent"], dict):
                settings["agent"].pop(key, None)
        config = (ToolCallConfig if tool_calls else TextConfig).model_validate(settings)
        _check_model(config.model)
        _check_templates(config)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {printable(place)}: {printable(first['msg'])}") from error
    except _Wrong as error:
        raise UserError(f"{path}: {printable(str(error))}") from error
    return config


class _Wrong(Exception):
    """What is wrong with the file, and where in it."""


def _defaults(*, tool_calls: bool) -> dict[str, Any]:
    """The framework's file, in the words of version 1, with the task as the harness words it."""
    name = "mini.yaml" if tool_calls else "mini_textbased.yaml"
    text = (builtin_config_dir / name).read_text(encoding="utf-8")
    text = text.replace("```mswea_bash_command", "```bash")
    text = text.replace("Please solve this issue: {{task}}", "{{task}}")
    content: dict[str, Any] = yaml.safe_load(text)
    content["model"] |= {"model_name": "", "cost_tracking": "ignore_errors"}
    if not tool_calls:
        content["model"]["action_regex"] = _ACTION_REGEX
    return content


def _check_model(model: LitellmModelConfig) -> None:
    for name in sorted(_OUR_CALL_ARGUMENTS & set(model.model_kwargs)):
        raise _Wrong(f"model.model_kwargs.{name} cannot be set: it is the harness's")
    if not isinstance(model.model_kwargs.get("timeout", 1), int | float):
        raise _Wrong("model.model_kwargs.timeout is no number of seconds")
    if model.litellm_model_registry and not Path(model.litellm_model_registry).is_file():
        raise _Wrong(f"model.litellm_model_registry: no such file: {model.litellm_model_registry}")
    for key in ("action_regex", "multimodal_regex"):
        try:
            re.compile(getattr(model, key, ""))
        except re.error as error:
            raise _Wrong(f"model.{key} is no regular expression: {error}") from error


def _check_templates(config: Config) -> None:
    variables: dict[str, Any] = config.agent.model_dump() | config.environment.model_dump()
    names = (*UNAME, "task", "model_name", "n_model_calls", "model_cost", "elapsed_seconds")
    variables |= dict.fromkeys(names, "")
    output = {"output": "", "returncode": 0, "exception_info": ""}
    faulty = {"actions": [], "error": "", "has_tool_calls": False, "finish_reason": "stop"}
    for place, template, values in (
        ("agent.system_template", config.agent.system_template, variables),
        ("agent.instance_template", config.agent.instance_template, variables),
        ("model.observation_template", config.model.observation_template, variables | {"output": output}),
        ("model.format_error_template", config.model.format_error_template, faulty),
    ):
        try:
            Template(template, undefined=StrictUndefined).render(**values)
        except TemplateError as error:
            raise _Wrong(f"{place}: {error}") from error
