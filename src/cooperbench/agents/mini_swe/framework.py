"""The framework's configs and classes with our sandbox, teammates and gateway under them.

The user's file is merged over the framework's own, key by key; what cannot work is refused before anything starts.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import yaml
from jinja2 import StrictUndefined, Template, TemplateError
from minisweagent.agents.default import AgentConfig, DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel, LitellmModelConfig
from minisweagent.models.litellm_textbased_model import (
    LitellmTextbasedModel,
    LitellmTextbasedModelConfig,
)
from minisweagent.models.utils.actions_toolcall import BASH_TOOL
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, StringConstraints, ValidationError

from cooperbench.agents.base import REPO_DIR, read_yaml
from cooperbench.agents.llm import load_litellm
from cooperbench.agents.session import AgentSession
from cooperbench.errors import AgentFailure, UserError
from cooperbench.gateway.access import Access
from cooperbench.text import plural, printable

Message = dict[str, Any]
M = TypeVar("M", bound=LitellmModelConfig)
_INTERACTIVE_KEYS = ("mode", "whitelist_actions", "confirm_exit")
"""Of the framework's interactive agent; they are in the files that it ships, and mean nothing here."""
_OURS = {
    ("agent", "output_path"): "the harness writes trajectory.json",
    ("model", "model_name"): "the model is named by -m/--model",
    ("model", "cost_tracking"): "what has no price is counted as such",
}
_UNAME = ("system", "release", "version", "machine")
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


class Config(BaseModel, Generic[M], extra="forbid"):
    agent: AgentSettings
    environment: SandboxConfig
    model: M


def load_config(path: Path | None, *, tool_calls: bool) -> Config[Any]:
    """UserError, in one line, for a file that cannot be read, unknown keys and values that cannot work."""
    user = read_yaml(path) or {}
    try:
        if not isinstance(user, dict):
            raise ValueError("it is no mapping of agent, environment and model")
        for (section, key), reason in _OURS.items():
            if key in (user.get(section) or ()):
                raise ValueError(f"{section}.{key} cannot be set: {reason}")
        settings = recursive_merge(_defaults(tool_calls=tool_calls), user)
        if isinstance(settings["agent"], dict):
            for key in _INTERACTIVE_KEYS:
                settings["agent"].pop(key, None)
        kind: type[Config[Any]] = Config[ToolCallSettings] if tool_calls else Config[TextSettings]
        config = kind.model_validate(settings)
        _check_model(config.model)
        _check_templates(config)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {printable(place)}: {printable(first['msg'])}") from error
    except ValueError as error:
        raise UserError(f"{path}: {printable(str(error))}") from error
    return config


def _defaults(*, tool_calls: bool) -> dict[str, Any]:
    """The framework's file, in the words of version 1, with the task as the harness words it."""
    name = "mini.yaml" if tool_calls else "mini_textbased.yaml"
    text = (builtin_config_dir / name).read_text(encoding="utf-8")
    text = text.replace("```mswea_bash_command", "```bash")
    text = text.replace("Please solve this issue: {{task}}", "{{task}}")
    content: dict[str, Any] = yaml.safe_load(text)
    # It is the default anyway; and where it is set, it is the user's.
    del content["agent"]["cost_limit"]
    content["model"] |= {"model_name": "", "cost_tracking": "ignore_errors"}
    if not tool_calls:
        content["model"]["action_regex"] = _ACTION_REGEX
    return content


def _check_model(model: LitellmModelConfig) -> None:
    for name in sorted(_OUR_CALL_ARGUMENTS & set(model.model_kwargs)):
        raise ValueError(f"model.model_kwargs.{name} cannot be set: it is the harness's")
    if not isinstance(model.model_kwargs.get("timeout", 1), int | float):
        raise ValueError("model.model_kwargs.timeout is no number of seconds")
    if model.litellm_model_registry and not Path(model.litellm_model_registry).is_file():
        raise ValueError(
            f"model.litellm_model_registry: no such file: {model.litellm_model_registry}"
        )
    for key in ("action_regex", "multimodal_regex"):
        try:
            re.compile(getattr(model, key, ""))
        except re.error as error:
            raise ValueError(f"model.{key} is no regular expression: {error}") from error


def _check_templates(config: Config[Any]) -> None:
    variables: dict[str, Any] = config.agent.model_dump() | config.environment.model_dump()
    names = (*_UNAME, "task", "model_name", "n_model_calls", "model_cost", "elapsed_seconds")
    variables |= dict.fromkeys(names, "")
    variables["output"] = {"output": "", "returncode": 0, "exception_info": ""}
    faulty = {"actions": [], "error": "", "has_tool_calls": False, "finish_reason": "stop"}
    for place, template, values in (
        ("agent.system_template", config.agent.system_template, variables),
        ("agent.instance_template", config.agent.instance_template, variables),
        ("model.observation_template", config.model.observation_template, variables),
        ("model.format_error_template", config.model.format_error_template, faulty),
    ):
        try:
            Template(template, undefined=StrictUndefined).render(**values)
        except TemplateError as error:
            raise ValueError(f"{place}: {error}") from error


class SandboxEnvironment(LocalEnvironment):
    """The framework's environment over one agent's sandbox. Nothing of the harness's own environment is in it."""

    def __init__(self, session: AgentSession, config: SandboxConfig) -> None:
        self.config = config
        self._session = session
        uname = session.execute("uname -s; uname -r; uname -v; uname -m", step=False)
        lines = [*uname.stdout_read().splitlines(), "", "", "", ""]
        self._uname = dict(zip(_UNAME, lines, strict=False))
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in config.env.items())
        # On the command's own first line, so that the lines in bash's error messages stay the agent's.
        self._prefix = "exec 2>&1; " + (f"export {exports}; " if exports else "")
        if config.cwd != REPO_DIR:
            self._prefix += f"cd {shlex.quote(config.cwd)} || exit; "

    def execute(self, action: Message, cwd: str = "", *, timeout: int | None = None) -> Message:  # noqa: ARG002
        """One command, stdout and stderr in the order in which they came. The submission ends the agent."""
        command = str(action.get("command", ""))
        seconds = self.config.timeout
        result = self._session.execute(
            self._prefix + command, timeout_seconds=seconds, shown=command
        )
        late = (
            f"The command was ended: it took longer than {seconds} seconds."
            if result.timed_out
            else ""
        )
        text = result.stdout_read() + result.stderr_read()
        output = {"output": text, "returncode": result.returncode, "exception_info": late}
        self._check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> Message:
        return {**self.config.model_dump(), **self._uname, **kwargs}


class ToolCallModel(LitellmModel):
    """The framework's model with actions as calls of the tool `bash`, asked through the gateway."""

    tools: ClassVar[list[Any]] = [BASH_TOOL]

    def __init__(self, access: Access, config: LitellmModelConfig) -> None:
        settings = config.model_dump(exclude_unset=True) | {"model_name": access.session.model}
        if any(part in settings["model_name"].lower() for part in ("anthropic", "claude")):
            # Anthropic's models cache what is marked; the framework's own programs mark it, too.
            settings.setdefault("set_cache_control", "default_end")
        super().__init__(**settings)
        # The framework tries nothing again: that is the gateway's work.
        self.abort_exceptions = [Exception]
        self._access = access

    def _query(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
        body = {"messages": messages, **({"tools": self.tools} if self.tools else {}), **kwargs}
        self._cost_before = self._access.session.usage.cost
        return load_litellm().ModelResponse(**self._access.ask(body))

    def _calculate_cost(self, response: Any) -> dict[str, float]:  # noqa: ARG002
        """The gateway has calculated it."""
        return {"cost": self._access.session.usage.cost - self._cost_before}

    def get_template_vars(self, **kwargs: Any) -> Message:
        """Without the settings of the model: a key may be among them."""
        return {"model_name": self.config.model_name} | kwargs


class TextModel(ToolCallModel, LitellmTextbasedModel):
    """Actions as blocks of text: the framework's other model, asked in the same way."""

    tools: ClassVar[list[Any]] = []


class Loop(DefaultAgent):
    """The framework's loop; what teammates write comes in between two steps."""

    def __init__(self, access: Access, config: Config[Any], *, tool_calls: bool) -> None:
        session = access.session
        settings = config.agent.model_dump()
        # The session's clock counts: an outage of the provider is not the agent's time.
        seconds = settings.pop("wall_time_limit_seconds")
        if session.limits.cost is not None and "cost_limit" not in config.agent.model_fields_set:
            # The framework's default must not undercut what was asked for.
            settings["cost_limit"] = 0.0
        model = (ToolCallModel if tool_calls else TextModel)(access, config.model)
        super().__init__(model, SandboxEnvironment(session, config.environment), **settings)
        self._session = session
        if seconds > 0:
            session.limit_time(seconds, "agent config")

    def query(self) -> Message:
        for message in self._session.incoming():
            super().add_messages(self.model.format_message(role="user", content=message.shown))
        return super().query()

    def add_messages(self, *messages: Message) -> list[Message]:
        for message in messages:
            if not self.messages and message["role"] in ("system", "user"):
                kind = "system" if message["role"] == "system" else "task"
                self._session.tell(str(message.get("content")), kind)
            elif message.get("extra", {}).get("interrupt_type") == "FormatError":
                self._session.tell(str(message.get("content")), "format_error")
        return super().add_messages(*messages)

    def save(self, path: Path | None, *extra_dicts: Message) -> Message:  # noqa: ARG002
        """With every step; the harness has a record of its own."""
        return {}

    def end(self, extra: Message) -> None:
        """Return where the agent has submitted; everything else is an AgentFailure."""
        match extra.get("exit_status"):
            case "Submitted":
                return
            case "RepeatedFormatError":
                count = plural(self.n_consecutive_format_errors, "reply", "replies")
                raise AgentFailure("format_error", f"{count} in a row without a valid action")
            case "LimitsExceeded" if 0 < self.config.step_limit <= self.n_calls:
                limit = f"step limit of {self.config.step_limit} (agent config) reached"
                raise AgentFailure("step_limit", limit)
            case "LimitsExceeded":
                raise AgentFailure(
                    "cost_limit", f"cost limit of ${self.config.cost_limit:g} reached"
                )
        raise AgentFailure(
            "gave_up", f"the framework ended with {extra.get('exit_status') or 'nothing'}"
        )
