"""The worker of the agent `openhands`: the SDK's Agent, LLM and Conversation with our sandbox, messages and limits.

Runs in OpenHands' environment, not in ours: besides the SDK it imports the file beside it and those of `worker/` that
stand alone. The agent config has the SDK's own settings, by section.
"""

from __future__ import annotations

import inspect
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client import Ended, Harness, connect, message_text
from model_faults import Verdict, detail, for_user, judge_model_error
from openhands.sdk import LLM, Agent, Conversation, Event
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.conversation.state import ConversationExecutionStatus
from openhands.sdk.event import MessageEvent, SystemPromptEvent
from openhands.sdk.event.conversation_error import ConversationErrorEvent
from openhands.sdk.llm import content_to_str
from openhands.sdk.llm.exceptions import types as faults
from openhands.tools.preset.default import get_default_condenser
from openhands_tools import sandbox_tools
from pydantic import PrivateAttr

TRAJECTORY = "openhands"
"""The folder with what the SDK itself writes down, beside trajectory.json."""
_MOST_REFUSALS = 3
"""In a row, by the provider's content filter. The SDK would go on asking until its iterations are used up."""
_CONVERSATION = {
    "max_iteration_per_run",
    "stuck_detection",
    "stuck_detection_thresholds",
    "max_budget_per_run",
}
_DEFAULT_TOOLS = ("terminal", "file_editor", "task_tracker")
_OURS_IN_AGENT = {"llm", "tools"}
_DEFAULT_TERMINAL_SECONDS = 300.0
_OUTCOMES = (
    (faults.LLMContextWindowExceedError, "context_overflow"),
    (faults.LLMContentPolicyViolationError, "content_policy"),
    (faults.LLMMalformedConversationHistoryError, "request_rejected"),
    (faults.LLMMalformedActionError, "format_error"),
    (faults.LLMNoActionError, "format_error"),
    (faults.FunctionCallConversionError, "format_error"),
    (faults.FunctionCallValidationError, "format_error"),
    (faults.FunctionCallNotExistsError, "format_error"),
)


class BadSettings(Exception):
    """One line for the user."""


@dataclass(frozen=True)
class Settings:
    llm: dict[str, Any]
    agent: dict[str, Any]
    conversation: dict[str, Any]
    tools: tuple[str, ...]
    terminal_seconds: float


def read_settings(start: dict[str, Any], llm_class: Any, agent_class: Any) -> Settings:
    config = start["config"] or {}
    llm = _section(config, "llm", set(llm_class.model_fields))
    agent = _section(config, "agent", set(agent_class.model_fields) - _OURS_IN_AGENT)
    conversation = _section(config, "conversation", _CONVERSATION)
    terminal = _section(config, "terminal", {"timeout_seconds"})
    tools = config.get("tools", list(_DEFAULT_TOOLS))
    if not isinstance(tools, list) or not set(tools) <= set(_DEFAULT_TOOLS):
        raise BadSettings(f"agent config: tools is a list of {', '.join(_DEFAULT_TOOLS)}, not {tools!r}")
    steps = start["limits"]["steps"]
    if steps is not None:
        # The harness counts steps; this is only so that the SDK's own limit does not come first.
        conversation.setdefault("max_iteration_per_run", 2 * int(steps) + 50)
    return Settings(
        {"model": start["model"], "usage_id": "agent"} | llm,
        agent,
        conversation,
        tuple(tools),
        float(terminal.get("timeout_seconds", _DEFAULT_TERMINAL_SECONDS)),
    )


def _section(config: dict[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    section = config.get(name) or {}
    if not isinstance(section, dict):
        raise BadSettings(f"agent config: {name} is no mapping")
    unknown = sorted(set(section) - known)
    if unknown:
        raise BadSettings(
            f"agent config: {name} has no setting {unknown[0]!r}; there are: {', '.join(sorted(known))}"
        )
    return dict(section)


class Refused(Exception):
    """The provider does not want to answer, however it is asked."""


class AccountedLLM(LLM):
    """The SDK's LLM; each call is checked against the limits before it, and accounted for after it."""

    _harness: Harness = PrivateAttr()
    _calls: list[int] = PrivateAttr(default_factory=lambda: [0])
    _errors: list[Exception] = PrivateAttr(default_factory=list)

    def completion(self, *args: Any, **kwargs: Any) -> Any:
        return self._accounted(super().completion, args, kwargs)

    def responses(self, *args: Any, **kwargs: Any) -> Any:
        return self._accounted(super().responses, args, kwargs)

    @property
    def calls(self) -> int:
        """Over all copies of it: the condenser has one."""
        return self._calls[0]

    @property
    def last_error(self) -> Exception | None:
        """Of the last call, if that failed."""
        return self._errors[-1] if self._errors else None

    def _make_retry_decorator(self) -> Any:
        """The SDK's; the harness learns of each attempt, since one that fails is not the agent's time."""
        tried_again = super()._make_retry_decorator()

        def decorate(attempt: Any) -> Any:
            def checked(**kwargs: Any) -> Any:
                self._harness.check_limits()
                return attempt(**kwargs)

            return tried_again(checked)

        return decorate

    def _accounted(self, ask: Any, args: Any, kwargs: Any) -> Any:
        cost_before, started = self.metrics.accumulated_cost, time.monotonic()
        try:
            response = ask(*args, **kwargs)
        except Exception as error:
            self._errors.append(error)
            latest = self._errors[-_MOST_REFUSALS:]
            refused = [isinstance(each, faults.LLMContentPolicyViolationError) for each in latest]
            if len(latest) == _MOST_REFUSALS and all(refused):
                raise Refused(str(error)) from error
            raise
        self._errors.clear()
        self._calls[0] += 1
        usage = self.metrics.token_usages[-1]
        cost = self.metrics.accumulated_cost - cost_before
        message = response.message
        calls = [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls or []
        ]
        self._harness.reply(
            "".join(content_to_str(message.content)),
            cost=cost,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cache_read_tokens,
            model_seconds=time.monotonic() - started,
            unpriced=not cost and not self._has_price(),
            **({"tool_calls": calls} if calls else {}),
            **({"reasoning": message.reasoning_content} if message.reasoning_content else {}),
        )
        return response

    def _has_price(self) -> bool:
        listed = (self.model_info or {}).get("input_cost_per_token")
        return self.input_cost_per_token is not None or listed is not None


class ColleagueAgent(Agent):
    """The SDK's agent; what colleagues write comes in between two steps."""

    _harness: Harness = PrivateAttr()

    @property
    def prompt_dir(self) -> str:
        """The SDK's own, which it would look for beside this file."""
        return str(Path(inspect.getfile(Agent)).parent / "prompts")

    def step(self, conversation: Any, *args: Any, **kwargs: Any) -> None:
        for message in self._harness.incoming():
            text = message_text(message["from"], message["text"])
            conversation.send_message(text, sender=message["from"])
        super().step(conversation, *args, **kwargs)


def main() -> None:
    harness = connect()
    try:
        harness.finish(work(harness))
    except Ended:
        return
    except BadSettings as error:
        harness.failed("user", str(error))


def work(harness: Harness) -> Verdict:
    settings = read_settings(harness.start, LLM, Agent)
    llm = AccountedLLM(**settings.llm)
    llm._harness = harness
    conversation = converse(harness, settings, llm)
    try:
        conversation.send_message(harness.start["prompt"])
        conversation.run()
    except ConversationRunError as error:
        cause = error.__cause__ or error
        if isinstance(cause, Ended):
            raise cause from None
        # What broke it off may be what came of a failed call, e.g. nothing left to be cut from a full context.
        return judge(llm.last_error or cause, str(harness.start["model"]), first_call=llm.calls == 0)
    finally:
        conversation.close()
    return outcome(conversation, llm, str(harness.start["model"]))


def converse(harness: Harness, settings: Settings, llm: AccountedLLM) -> Any:
    folder = Path(os.environ["HOME"]) / "workspace"
    folder.mkdir()
    tools = sandbox_tools(harness, settings.tools, settings.terminal_seconds, folder)
    condenser = get_default_condenser(llm=llm.model_copy(update={"usage_id": "condenser"}))
    agent = ColleagueAgent(llm=llm, tools=tools, **({"condenser": condenser} | settings.agent))
    agent._harness = harness

    def on_event(event: Event) -> None:
        if isinstance(event, SystemPromptEvent):
            harness.tell(event.system_prompt.text, "system")
        elif isinstance(event, MessageEvent) and event.source == "user" and not event.sender:
            harness.tell("".join(content_to_str(event.llm_message.content)), "task")

    return Conversation(
        agent=agent,
        workspace=str(folder),
        callbacks=[on_event],
        visualizer=None,
        persistence_dir=str(Path(harness.start["folder"]) / TRAJECTORY),
        delete_on_close=False,
        **settings.conversation,
    )


def outcome(conversation: Any, llm: AccountedLLM, model: str) -> Verdict:
    """How a conversation ended that ended by itself."""
    status = conversation.state.execution_status
    if status == ConversationExecutionStatus.FINISHED:
        return Verdict("done", "submitted", "")
    if status == ConversationExecutionStatus.STUCK:
        if llm.last_error is not None:
            # Going in circles, but not the agent: e.g. a context that stays full however much is left out of it.
            return judge(llm.last_error, model, first_call=llm.calls == 0)
        return Verdict("done", "stuck", "the framework found the agent going in circles")
    errors = [event for event in conversation.state.events if isinstance(event, ConversationErrorEvent)]
    if errors and errors[-1].code in ("MaxIterationsReached", "MaxBudgetReached"):
        kind = "step_limit" if errors[-1].code == "MaxIterationsReached" else "cost_limit"
        return Verdict("done", kind, f"{errors[-1].detail} (agent config)")
    detail = errors[-1].detail if errors else f"the conversation ended as {status.value}"
    return Verdict("failed", "infra", detail)


def judge(error: BaseException, model: str, *, first_call: bool) -> Verdict:
    """What a broken conversation means. The SDK has retried already, and wrapped the provider's error in its own."""
    for kind, status in _OUTCOMES:
        if isinstance(error, kind):
            return Verdict("done", status, detail(error))
    cause = error.__cause__ if isinstance(error, faults.LLMError) and error.__cause__ else error
    verdict = judge_model_error(cause, model, first_call=first_call)
    if isinstance(error, faults.LLMAuthenticationError) and verdict.kind != "user":
        # The SDK knows it by the words where a provider answers with another status than 401.
        return for_user(model, f"the provider does not accept the key: {detail(error)}")
    if isinstance(error, faults.LLMContextWindowTooSmallError):
        return for_user(model, detail(error))
    return verdict


if __name__ == "__main__":
    main()
