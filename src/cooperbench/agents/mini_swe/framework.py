"""mini-swe-agent's configs and classes, connected to our sandbox, teammates and gateway.

The user's file is merged over the framework's own, key by key. A config that cannot work is
rejected before anything starts.
"""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import yaml
from jinja2 import StrictUndefined, Template, TemplateError
from minisweagent.agents.default import AgentConfig, DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.exceptions import FormatError, Submitted
from minisweagent.models.litellm_model import LitellmModel, LitellmModelConfig
from minisweagent.models.litellm_textbased_model import (
    LitellmTextbasedModel,
    LitellmTextbasedModelConfig,
)
from minisweagent.models.utils.actions_text import parse_regex_actions
from minisweagent.models.utils.actions_toolcall import BASH_TOOL, parse_toolcall_actions
from minisweagent.models.utils.cache_control import set_cache_control
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, StringConstraints, ValidationError

from cooperbench.agents.base import REPO_DIR, read_yaml
from cooperbench.agents.llm import load_litellm
from cooperbench.agents.session import AgentSession
from cooperbench.errors import AgentFailure, UserError
from cooperbench.gateway.access import Access
from cooperbench.records import JsonObject
from cooperbench.text import plural, printable

Message = JsonObject
"""A message of the framework."""
M = TypeVar("M", bound=LitellmModelConfig)
_INTERACTIVE_KEYS = ("mode", "whitelist_actions", "confirm_exit")
"""Settings of the framework's interactive agent in its own files. They have no effect here."""
_FORBIDDEN_SETTINGS = {
    ("agent", "output_path"): "the harness writes trajectory.json",
    ("model", "model_name"): "the option -m/--model names the model",
    ("model", "cost_tracking"): "the harness counts calls without a known price",
}
"""Settings that the user must not set, by section and name, and the reason."""
_UNAME = ("system", "release", "version", "machine")
"""Template variables about the system where commands run."""
_RESERVED_ARGUMENTS = {"model", "messages", "tools", "stream", "n", "num_retries", "max_retries"}
_SUBMIT_LINE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
# Version 1 of the framework wrote commands in the first way; configs for version 2 use the second.
_ACTION_REGEX = r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n```"


class AgentSettings(AgentConfig, extra="forbid"):
    """Settings in the section `agent`."""


class SandboxConfig(BaseModel, extra="forbid"):
    """Settings in the section `environment`."""

    cwd: str = REPO_DIR
    """Working directory of commands."""
    env: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = {}
    """Environment variables of commands."""
    timeout: int = 300
    """Time limit of a command in seconds."""


class ToolCallSettings(LitellmModelConfig, extra="forbid"):
    """Settings in the section `model`, for commands as tool calls."""


class TextSettings(LitellmTextbasedModelConfig, extra="forbid"):
    """Settings in the section `model`, for commands as text."""


class Config(BaseModel, Generic[M], extra="forbid"):
    """An agent config."""

    agent: AgentSettings
    environment: SandboxConfig
    model: M


def load_config(path: Path | None, *, tool_calls: bool) -> Config[Any]:
    """Return the framework's config, with the user's file merged into it.

    Raises:
        UserError: The file cannot be read, or it has unknown keys or invalid values.
    """
    user_config = read_yaml(path) or {}
    config_class: type[Config[Any]] = Config[TextSettings]
    if tool_calls:
        config_class = Config[ToolCallSettings]
    try:
        _check_user_config(user_config)
        settings = recursive_merge(_default_config(tool_calls=tool_calls), user_config)
        if isinstance(settings["agent"], dict):
            for key in _INTERACTIVE_KEYS:
                settings["agent"].pop(key, None)
        config = config_class.model_validate(settings)
        _check_model(config.model)
        _check_templates(config)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: {printable(location)}: {printable(first['msg'])}") from error
    except ValueError as error:
        raise UserError(f"{path}: {printable(str(error))}") from error
    return config


def _check_user_config(user_config: Any) -> None:
    if not isinstance(user_config, dict):
        raise ValueError("the config is not a mapping of agent, environment and model")
    for (section, key), reason in _FORBIDDEN_SETTINGS.items():
        if key in (user_config.get(section) or ()):
            raise ValueError(f"{section}.{key} cannot be set: {reason}")


def _default_config(*, tool_calls: bool) -> JsonObject:
    """Return the framework's own file, with our prompt, and with commands as in version 1."""
    name = "mini.yaml" if tool_calls else "mini_textbased.yaml"
    text = (builtin_config_dir / name).read_text(encoding="utf-8")
    text = text.replace("```mswea_bash_command", "```bash")
    text = text.replace("Please solve this issue: {{task}}", "{{task}}")
    config: JsonObject = yaml.safe_load(text)
    # Remove the default, so that `model_fields_set` shows whether the user has set a limit.
    del config["agent"]["cost_limit"]
    config["model"] |= {"model_name": "", "cost_tracking": "ignore_errors"}
    if not tool_calls:
        config["model"]["action_regex"] = _ACTION_REGEX
    return config


def _check_model(model: LitellmModelConfig) -> None:
    for name in sorted(_RESERVED_ARGUMENTS & set(model.model_kwargs)):
        raise ValueError(f"model.model_kwargs.{name} cannot be set: the harness sets it")
    if not isinstance(model.model_kwargs.get("timeout", 1), int | float):
        raise ValueError("model.model_kwargs.timeout is not a number of seconds")
    if model.litellm_model_registry and not Path(model.litellm_model_registry).is_file():
        raise ValueError(
            f"model.litellm_model_registry: no such file: {model.litellm_model_registry}"
        )
    patterns = {"multimodal_regex": model.multimodal_regex}
    if isinstance(model, LitellmTextbasedModelConfig):
        patterns["action_regex"] = model.action_regex
    for key, pattern in patterns.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"model.{key} is not a regular expression: {error}") from error


def _check_templates(config: Config[Any]) -> None:
    """Render all templates with the variables that they will have."""
    variables: JsonObject = config.agent.model_dump() | config.environment.model_dump()
    names = (*_UNAME, "task", "model_name", "n_model_calls", "model_cost", "elapsed_seconds")
    variables |= dict.fromkeys(names, "")
    variables["output"] = {"output": "", "returncode": 0, "exception_info": ""}
    error_variables: JsonObject = {
        "actions": [],
        "error": "",
        "has_tool_calls": False,
        "finish_reason": "stop",
    }
    for name, template, values in (
        ("agent.system_template", config.agent.system_template, variables),
        ("agent.instance_template", config.agent.instance_template, variables),
        ("model.observation_template", config.model.observation_template, variables),
        ("model.format_error_template", config.model.format_error_template, error_variables),
    ):
        try:
            Template(template, undefined=StrictUndefined).render(**values)
        except TemplateError as error:
            raise ValueError(f"{name}: {error}") from error


class SandboxEnvironment:
    """The framework's environment protocol on an agent's sandbox.

    Nothing of the harness's own environment is in it.
    """

    def __init__(self, session: AgentSession, config: SandboxConfig) -> None:
        self.config = config
        self._session = session
        self._uname: dict[str, str] | None = None

    def execute(
        self,
        action: Message,
        cwd: str = "",  # noqa: ARG002  # part of the protocol
    ) -> Message:
        """Run a command, with stdout and stderr in the order in which they were written.

        Raises:
            Submitted: The command submits the agent's work.
        """
        command = str(action.get("command", ""))
        seconds = self.config.timeout
        result = self._session.execute(
            self._shell_prefix() + command, timeout_seconds=seconds, shown=command
        )
        exception_info = ""
        if result.timed_out:
            exception_info = f"The command was ended: it took longer than {seconds} seconds."
        output = result.stdout_read() + result.stderr_read()
        if result.returncode == 0:
            _raise_if_submitted(output)
        return {
            "output": output,
            "returncode": result.returncode,
            "exception_info": exception_info,
        }

    def get_template_vars(self, **kwargs: Any) -> Message:
        """Return the variables for templates."""
        return {**self.config.model_dump(), **self._read_uname(), **kwargs}

    def serialize(self) -> Message:
        """Return nothing: the harness has its own record."""
        return {}

    def _shell_prefix(self) -> str:
        """Return what comes before each command.

        It is on the command's first line, so that line numbers in bash's errors are the agent's.
        """
        prefix = "exec 2>&1; "
        if self.config.env:
            exports = [f"{name}={shlex.quote(value)}" for name, value in self.config.env.items()]
            prefix += f"export {' '.join(exports)}; "
        if self.config.cwd != REPO_DIR:
            prefix += f"cd {shlex.quote(self.config.cwd)} || exit; "
        return prefix

    def _read_uname(self) -> dict[str, str]:
        if self._uname is None:
            command = "uname -s; uname -r; uname -v; uname -m"
            result = self._session.execute(command, step=False)
            lines = [*result.stdout_read().splitlines(), "", "", "", ""]
            self._uname = dict(zip(_UNAME, lines, strict=False))
        return self._uname


def _raise_if_submitted(output: str) -> None:
    lines = output.lstrip().splitlines(keepends=True)
    if lines and lines[0].strip() == _SUBMIT_LINE:
        submission = "".join(lines[1:])
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})


class ToolCallModel(LitellmModel):
    """The framework's model with actions as calls of the tool `bash`, behind the gateway."""

    tools: ClassVar[list[Any]] = [BASH_TOOL]

    def __init__(self, access: Access, config: LitellmModelConfig) -> None:
        settings = config.model_dump(exclude_unset=True) | {"model_name": access.session.model}
        if any(part in settings["model_name"].lower() for part in ("anthropic", "claude")):
            # Anthropic's models only cache marked texts. The framework's own programs do the same.
            settings.setdefault("set_cache_control", "default_end")
        super().__init__(**settings)
        self._access = access

    def query(self, messages: list[Message], **kwargs: Any) -> Message:
        """Return the model's reply with its actions.

        Raises:
            FormatError: The reply has no valid action.
        """
        session = self._access.session
        sent = [_without_extra(message) for message in messages]
        sent = set_cache_control(sent, mode=self.config.set_cache_control)
        body = {"messages": sent, **kwargs}
        if self.tools:
            body["tools"] = self.tools
        cost_before = session.usage.cost
        response = load_litellm().ModelResponse(**self._access.ask(body))
        cost = session.usage.cost - cost_before
        choice = response.choices[0]
        try:
            actions = self.parse_actions(choice.message, choice.finish_reason)
        except FormatError as error:
            error.messages[0]["extra"]["cost"] = cost
            raise
        message: Message = choice.message.model_dump()
        message["extra"] = {"actions": actions, "cost": cost, "timestamp": time.time()}
        return message

    def parse_actions(self, message: Any, finish_reason: str | None) -> list[Message]:
        """Return the actions in a reply."""
        actions: list[Message] = parse_toolcall_actions(
            message.tool_calls or [],
            format_error_template=self.config.format_error_template,
            template_kwargs={"finish_reason": finish_reason},
        )
        return actions

    def get_template_vars(self, **kwargs: Any) -> Message:
        """Return the variables for templates, without settings, which may contain a key."""
        return {"model_name": self.config.model_name} | kwargs


class TextModel(ToolCallModel, LitellmTextbasedModel):
    """The framework's model with actions as blocks of text."""

    tools: ClassVar[list[Any]] = []

    def parse_actions(self, message: Any, finish_reason: str | None) -> list[Message]:
        """Return the actions in a reply."""
        actions: list[Message] = parse_regex_actions(
            message.content or "",
            action_regex=self.config.action_regex,
            format_error_template=self.config.format_error_template,
            template_kwargs={"finish_reason": finish_reason},
        )
        return actions


def _without_extra(message: Message) -> Message:
    """Return a message without the framework's own data."""
    return {name: value for name, value in message.items() if name != "extra"}


class Loop(DefaultAgent):
    """The framework's loop. Teammates' messages are added between two steps."""

    def __init__(self, access: Access, config: Config[Any], *, tool_calls: bool) -> None:
        session = access.session
        settings = config.agent.model_dump()
        # The session's clock counts, because an outage of the provider is not the agent's time.
        seconds = settings.pop("wall_time_limit_seconds")
        if session.limits.cost is not None and "cost_limit" not in config.agent.model_fields_set:
            # The framework's default must not be lower than --cost-limit.
            settings["cost_limit"] = 0.0
        model_class = ToolCallModel if tool_calls else TextModel
        model = model_class(access, config.model)
        super().__init__(model, SandboxEnvironment(session, config.environment), **settings)
        self._session = session
        if seconds > 0:
            session.limit_time(seconds, "agent config")

    def query(self) -> Message:
        """Add new messages of teammates, and return the model's reply."""
        for message in self._session.incoming():
            super().add_messages(self.model.format_message(role="user", content=message.shown))
        return super().query()

    def add_messages(self, *messages: Message) -> list[Message]:
        """Add messages to the conversation, and record prompts and format errors."""
        for message in messages:
            if not self.messages and message["role"] in ("system", "user"):
                kind = "system" if message["role"] == "system" else "task"
                self._session.tell(str(message.get("content")), kind)
            elif message.get("extra", {}).get("interrupt_type") == "FormatError":
                self._session.tell(str(message.get("content")), "format_error")
        return super().add_messages(*messages)

    def save(
        self,
        path: Path | None,  # noqa: ARG002  # nothing is saved
        *extra_dicts: Message,  # noqa: ARG002  # nothing is saved
    ) -> Message:
        """Save nothing: the framework would do it with every step, and the harness has a record."""
        return {}

    def end(self, extra: Message) -> None:
        """Return if the agent has submitted; otherwise raise an AgentFailure."""
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
                limit = f"cost limit of ${self.config.cost_limit:g} reached"
                raise AgentFailure("cost_limit", limit)
        status = extra.get("exit_status") or "no status"
        raise AgentFailure("gave_up", f"the framework ended with {status}")
