"""The framework's classes with our sandbox, colleagues, limits and accounts under them.

Its loop decides what happens when; what is overridden here is where the world comes in: before a model is asked
(messages, limits), how it is asked (retries, accounts), where a command runs, and what is put on record.
"""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import Submitted
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

from cooperbench.agents.base import REPO_DIR
from cooperbench.agents.llm import DEFAULT_CALL_SECONDS, NO_OTHER_RETRIES, Caller, load_litellm, usage_of
from cooperbench.agents.mini_swe.config import UNAME
from cooperbench.agents.worker.client import litellm_extras, message_text
from cooperbench.errors import AgentFailure
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from minisweagent.models.litellm_model import LitellmModelConfig

    from cooperbench.agents.mini_swe.config import Config, SandboxConfig
    from cooperbench.agents.session import Session

SUBMISSION = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
Message = dict[str, Any]


class SandboxEnvironment:
    """The framework's Environment protocol over one agent's sandbox. Nothing of the harness's environment is in it."""

    def __init__(self, session: Session, config: SandboxConfig) -> None:
        self.config = config
        self._session = session
        lines = (
            session.execute("uname -s; uname -r; uname -v; uname -m", step=False).stdout_read().splitlines()
        )
        self._uname = dict(zip(UNAME, [*lines, "", "", "", ""], strict=False))
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in config.env.items())
        # On the command's own first line, so that the lines in bash's error messages stay the agent's.
        self._prefix = "exec 2>&1; " + (f"export {exports}; " if exports else "")
        if config.cwd != REPO_DIR:
            self._prefix += f"cd {shlex.quote(config.cwd)} || exit; "

    def execute(self, action: Message, cwd: str = "") -> Message:
        """One command, stdout and stderr in the order in which they came. The submission ends the agent."""
        command = str(action.get("command", ""))
        result = self._session.execute(
            self._prefix + (f"cd {shlex.quote(cwd)} || exit; " if cwd else "") + command,
            timeout_seconds=self.config.timeout,
            shown=command,
        )
        output = result.stdout_read() + result.stderr_read()
        first, _, rest = output.lstrip().partition("\n")
        if first.strip() == SUBMISSION and result.returncode == 0:
            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        late = f"The command was ended: it took longer than {self.config.timeout} seconds."
        return {
            "output": output,
            "returncode": result.returncode,
            "exception_info": late if result.timed_out else "",
        }

    def get_template_vars(self, **kwargs: Any) -> Message:
        return self.config.model_dump() | self._uname | kwargs

    def serialize(self) -> Message:
        return {}


class ToolCallModel(LitellmModel):
    """The framework's model with actions as calls of the tool `bash`; each call is accounted for and on record."""

    def __init__(self, session: Session, config: LitellmModelConfig) -> None:
        assert session.model is not None
        settings = config.model_dump(exclude_unset=True) | {"model_name": session.model}
        if any(part in session.model.lower() for part in ("anthropic", "claude")):
            # Anthropic's models cache what is marked; the framework's own programs mark it, too.
            settings.setdefault("set_cache_control", "default_end")
        super().__init__(**settings)
        # The framework tries nothing again: neither Ctrl-C nor a time limit would end that.
        self.abort_exceptions = [Exception]
        self._session = session
        self._caller = Caller(session.model, session.check_running, session.note, again=session.check_limits)
        self._cost = 0.0
        asked_for = self.config.model_kwargs.get("timeout") or DEFAULT_CALL_SECONDS
        self._arguments = NO_OTHER_RETRIES | {"timeout": float(asked_for)}

    def _query(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
        ask: Callable[..., Any] = super()._query

        def attempt() -> Any:
            response = ask(messages, **(kwargs | self._arguments))
            if not response.choices:
                raise ValueError("the answer has no choices in it")
            return response

        started, exchanges = time.monotonic(), self._session.exchanges
        request = {"messages": messages, **kwargs}
        recorded = exchanges.find("mini_swe_agent", request)
        if recorded is None:
            response = self._caller.ask(attempt)
            exchanges.keep("mini_swe_agent", request, [response.model_dump()], self._session.received)
        else:
            response = load_litellm().ModelResponse(**recorded[0])
        usage = usage_of(response, self.config.model_name, time.monotonic() - started)
        self._cost = usage.cost
        self._session.reply(response.choices[0].message.content or "", usage, **litellm_extras(response))
        return response

    def _calculate_cost(self, response: Any) -> dict[str, float]:  # noqa: ARG002  # known since it came
        return {"cost": self._cost}

    def get_template_vars(self, **kwargs: Any) -> Message:
        """Without the settings of the model: a key may be among them."""
        return {"model_name": self.config.model_name} | kwargs


class TextModel(ToolCallModel, LitellmTextbasedModel):
    """Actions as blocks of text: the framework's other model, asked in the same way."""


class Loop(DefaultAgent):
    """The framework's loop; what colleagues write comes in between two steps."""

    def __init__(self, session: Session, config: Config, *, tool_calls: bool) -> None:
        settings = config.agent.model_dump()
        # The session's clock counts: an outage of the provider is not the agent's time.
        seconds = settings.pop("wall_time_limit_seconds")
        if session.limits.cost is not None and not config.sets_cost_limit:
            # The framework's default must not undercut what was asked for.
            settings["cost_limit"] = 0.0
        model = (ToolCallModel if tool_calls else TextModel)(session, config.model)
        super().__init__(model, SandboxEnvironment(session, config.environment), **settings)
        self._session = session
        if seconds > 0:
            session.limit_time(seconds, "agent config")

    def query(self) -> Message:
        self._session.check_limits()
        for message in self._session.incoming():
            text = message_text(message.sender, message.text)
            super().add_messages(self.model.format_message(role="user", content=text))
        return super().query()

    def add_messages(self, *messages: Message) -> list[Message]:
        for message in messages:
            if not self.messages and message["role"] in ("system", "user"):
                self._session.tell(_text(message), "system" if message["role"] == "system" else "task")
            elif message.get("extra", {}).get("interrupt_type") == "FormatError":
                self._session.tell(_text(message), "format_error")
        return super().add_messages(*messages)

    def end(self, extra: Message) -> None:
        """Return where the agent has submitted; everything else is an AgentFailure."""
        match extra.get("exit_status"):
            case "Submitted":
                return
            case "RepeatedFormatError":
                count = plural(self.n_consecutive_format_errors, "reply", "replies")
                raise AgentFailure("format_error", f"{count} in a row without a valid action")
            case "LimitsExceeded" if 0 < self.config.step_limit <= self.n_calls:
                raise AgentFailure(
                    "step_limit", f"step limit of {self.config.step_limit} (agent config) reached"
                )
            case "LimitsExceeded":
                raise AgentFailure("cost_limit", f"cost limit of ${self.config.cost_limit:g} reached")
        raise AgentFailure("gave_up", f"the framework ended with {extra.get('exit_status') or 'nothing'}")


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else str(content)
