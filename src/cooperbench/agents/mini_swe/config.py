"""One agent's configuration: the framework's own file, what must differ in a sandbox of ours, the user's file.

The user's file has the framework's format (`agent`, `environment`, `model`) and is merged over the rest, key by key.
What it must not set (the model's name, the output path) and what it misspells is refused here, before anything starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, Template, TemplateError
from minisweagent.agents.default import AgentConfig
from minisweagent.config import builtin_config_dir
from minisweagent.models.litellm_model import LitellmModelConfig
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModelConfig
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ValidationError

from cooperbench.agents.base import REPO_DIR, read_yaml
from cooperbench.errors import UserError
from cooperbench.text import names_for_error, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMAND_SECONDS = 300
_FORMAT_KEY = "```mswea_bash_command"
_INTERACTIVE_KEYS = {"mode", "whitelist_actions", "confirm_exit"}
"""Of the framework's interactive agent; they are in the files that it ships, and mean nothing here."""
_OURS = {
    "agent.output_path": "the harness writes trajectory.json",
    "model.model_name": "the model is named by -m/--model",
    "model.cost_tracking": "what has no price is counted as such",
}
UNAME = ("system", "release", "version", "machine")
"""Variables of the templates that say where commands run."""
_OUR_CALL_ARGUMENTS = {"model", "messages", "tools", "stream", "n", "num_retries", "max_retries"}


class SandboxConfig(BaseModel):
    """The section `environment`."""

    cwd: str = REPO_DIR
    """Where commands run."""
    env: dict[str, str] = {}
    """Variables of every command."""
    timeout: int = COMMAND_SECONDS
    """Seconds that a command may take."""


@dataclass(frozen=True, eq=False)
class Style:
    """How the model says what it wants done."""

    defaults: str
    """The framework's file."""
    model_config: type[LitellmModelConfig]
    changes: Mapping[str, Mapping[str, Any]]


TEXT = Style(
    "mini_textbased.yaml",
    LitellmTextbasedModelConfig,
    # The first is how version 1 wrote a command; the second is what files written for version 2 tell the model.
    {"model": {"action_regex": r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n```"}},
)
TOOL_CALLS = Style("mini.yaml", LitellmModelConfig, {})


@dataclass(frozen=True)
class Config:
    """Checked; each part is what its class takes."""

    agent: dict[str, Any]
    environment: SandboxConfig
    model: dict[str, Any]
    sets_cost_limit: bool
    """Whether the user's file has a cost limit; else it is the framework's."""


def load_config(style: Style, path: Path | None) -> Config:
    """UserError, in one line, for a file that cannot be read, unknown keys and values of the wrong type."""
    user = {} if path is None else _read(path)
    where = str(path)
    _check_keys(user, style, where)
    merged = recursive_merge(_defaults(style), dict(style.changes), user)
    agent = {key: value for key, value in merged["agent"].items() if key not in _INTERACTIVE_KEYS}
    model = merged["model"] | {"cost_tracking": "ignore_errors"}
    try:
        AgentConfig(**agent)
        style.model_config(model_name="", **model)
        environment = SandboxConfig(**merged["environment"])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}: {place}: {printable(first['msg'])}") from error
    return Config(agent, environment, model, "cost_limit" in (user.get("agent") or {}))


@cache
def _defaults(style: Style) -> dict[str, Any]:
    """The framework's file, in the words of version 1, with the task as the harness words it."""
    import yaml

    text = (builtin_config_dir / style.defaults).read_text(encoding="utf-8")
    text = text.replace(_FORMAT_KEY, "```bash").replace("Please solve this issue: {{task}}", "{{task}}")
    content = yaml.safe_load(text)
    assert isinstance(content, dict)
    return content


def _read(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path} is no mapping of agent, environment and model")
    return content


def _check_keys(user: Mapping[str, Any], style: Style, where: str) -> None:
    known: dict[str, set[str]] = {
        "agent": {*AgentConfig.model_fields, *_INTERACTIVE_KEYS},
        "environment": set(SandboxConfig.model_fields),
        "model": set(style.model_config.model_fields),
    }
    for section, content in user.items():
        if section not in known:
            raise UserError(f"{where}: unknown section {section!r}; there are: {', '.join(known)}")
        if not isinstance(content, dict):
            raise UserError(f"{where}: {section} is no mapping of settings")
        for key in content:
            place = f"{section}.{key}"
            if place in _OURS:
                raise UserError(f"{where}: {place} cannot be set: {_OURS[place]}")
            if key not in known[section]:
                ours = {name for name in known[section] if f"{section}.{name}" not in _OURS}
                there_are = names_for_error(sorted(ours - _INTERACTIVE_KEYS), str(key))
                raise UserError(f"{where}: unknown key {printable(place)}; there are: {there_are}")


def check_values(config: Config, path: Path | None) -> None:
    """UserError for what the framework would find out at work only: files, expressions, templates."""
    agent, model, where = config.agent, config.model, str(path)
    kwargs = model.get("model_kwargs") or {}
    taken = sorted(_OUR_CALL_ARGUMENTS & set(kwargs))
    if taken:
        raise UserError(f"{where}: model.model_kwargs.{taken[0]} cannot be set: it is the harness's")
    if not isinstance(kwargs.get("timeout", 1), (int, float)):
        raise UserError(f"{where}: model.model_kwargs.timeout is no number of seconds")
    for name in config.environment.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"{where}: environment.env: {printable(name)!r} is no name of a variable")
    registry = model.get("litellm_model_registry")
    if registry and not Path(registry).is_file():
        raise UserError(f"{where}: model.litellm_model_registry: no such file: {registry}")
    for key in ("action_regex", "multimodal_regex"):
        try:
            groups = re.compile(str(model.get(key) or "")).groups
        except re.error as error:
            raise UserError(f"{where}: model.{key} is no regular expression: {error}") from error
        if key == "action_regex" and groups > 1:
            raise UserError(f"{where}: model.{key} has {groups} groups; the one group is the command")
    output = {"output": "", "returncode": 0, "exception_info": ""}
    variables = dict.fromkeys((*AgentConfig.model_fields, *SandboxConfig.model_fields, *UNAME), "")
    variables |= dict.fromkeys(("task", "model_name", "n_model_calls", "model_cost", "elapsed_seconds"), "")
    faulty = {"actions": [], "error": "", "has_tool_calls": False, "finish_reason": "stop"}
    for place, template, values in (
        ("agent.system_template", agent["system_template"], variables),
        ("agent.instance_template", agent["instance_template"], variables),
        ("model.observation_template", model["observation_template"], variables | {"output": output}),
        ("model.format_error_template", model["format_error_template"], faulty),
    ):
        try:
            Template(template, undefined=StrictUndefined).render(**values)
        except TemplateError as error:
            raise UserError(f"{where}: {place}: {printable(str(error))}") from error
