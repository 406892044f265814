"""The worker of the agent `openhands`: the SDK's Agent, LLM and Conversation with our sandbox, messages and limits.

Runs in OpenHands' environment, not in ours: besides the SDK it imports the file beside it and those of `worker/` that
stand alone. The agent config has the SDK's own settings, by section.
"""

from __future__ import annotations

import inspect
import os
import time
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
from openhands_tools import TOOLS, sandbox_tools
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
_SECTIONS = {"llm", "agent", "conversation", "tools", "terminal"}
_DEFAULT_TERMINAL_SECONDS = 300.0
_OUTCOMES: dict[type[Exception], str] = {
    faults.LLMContextWindowExceedError: "context_overflow",
    faults.LLMContentPolicyViolationError: "content_policy",
    faults.LLMMalformedConversationHistoryError: "request_rejected",
    faults.LLMMalformedActionError: "format_error",
    faults.LLMNoActionError: "format_error",
    faults.FunctionCallConversionError: "format_error",
    faults.FunctionCallValidationError: "format_error",
    faults.FunctionCallNotExistsError: "format_error",
}


class BadSettings(Exception):
    """One line for the user."""


class Settings:
    """The agent config, by section, with what the harness adds."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._config = start["config"] or {}
        if not isinstance(self._config, dict) or not set(self._config) <= _SECTIONS:
            raise BadSettings(
                f"agent config: it is a mapping with {', '.join(sorted(_SECTIONS))}, and nothing else"
            )
        self.llm = {"model": start["model"], "usage_id": "agent"} | self._section(
            "llm", set(LLM.model_fields)
        )
        self.agent = self._section("agent", set(Agent.model_fields) - {"llm", "tools"})
        self.conversation = self._section("conversation", _CONVERSATION)
        terminal = self._section("terminal", {"timeout_seconds"})
        self.terminal_seconds = float(terminal.get("timeout_seconds", _DEFAULT_TERMINAL_SECONDS))
        self.tools = self._config.get("tools", list(TOOLS))
        if not isinstance(self.tools, list) or not set(self.tools) <= set(TOOLS):
            raise BadSettings(f"agent config: tools is a list of {', '.join(TOOLS)}, not {self.tools!r}")
        if start["limits"]["steps"] is not None:
            # The harness counts steps; this is only so that the SDK's own limit does not come first.
            self.conversation.setdefault("max_iteration_per_run", 2 * int(start["limits"]["steps"]) + 50)

    def _section(self, name: str, known: set[str]) -> dict[str, Any]:
        section = self._config.get(name) or {}
        if not isinstance(section, dict):
            raise BadSettings(f"agent config: {name} is no mapping")
        for key in section:
            if key not in known:
                there_are = ", ".join(sorted(known))
                raise BadSettings(f"agent config: {name} has no setting {key!r}; there are: {there_are}")
        return dict(section)


class AccountedLLM(LLM):
    """The SDK's LLM; each call is checked against the limits before it, and accounted for after it."""

    _harness: Harness = PrivateAttr()
    # Shared by all copies of it: the condenser has one.
    _answers: list[Any] = PrivateAttr(default_factory=list)
    _errors: list[Exception] = PrivateAttr(default_factory=list)
    """Since the last answer."""

    def completion(self, *args: Any, **kwargs: Any) -> Any:
        return self._accounted(super().completion, args, kwargs)

    def responses(self, *args: Any, **kwargs: Any) -> Any:
        return self._accounted(super().responses, args, kwargs)

    def judge(self, error: BaseException | None) -> Verdict | None:
        """What broke off the conversation: the last call, if that failed, since other errors may come of it."""
        error = self._errors[-1] if self._errors else error
        return error and judge(error, str(self.model), first_call=not self._answers)

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
            refusals = [isinstance(each, faults.LLMContentPolicyViolationError) for each in self._errors]
            if len(refusals) >= _MOST_REFUSALS and all(refusals):
                raise RuntimeError("refused, however it is asked") from error
            raise
        self._errors.clear()
        self._answers.append(response.id)
        usage = self.metrics.token_usages[-1]
        cost = self.metrics.accumulated_cost - cost_before
        listed = (self.model_info or {}).get("input_cost_per_token", self.input_cost_per_token)
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
            unpriced=not cost and listed is None,
            **({"tool_calls": calls} if calls else {}),
            **({"reasoning": message.reasoning_content} if message.reasoning_content else {}),
        )
        return response


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
    settings = Settings(harness.start)
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
        return llm.judge(cause)
    finally:
        conversation.close()
    return outcome(conversation, llm)


def converse(harness: Harness, settings: Settings, llm: AccountedLLM) -> Any:
    home = Path(os.environ["HOME"])
    (home / "workspace").mkdir()
    tools = sandbox_tools(harness, settings.tools, settings.terminal_seconds, home / "copies")
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
        workspace=str(home / "workspace"),
        callbacks=[on_event],
        visualizer=None,
        persistence_dir=str(Path(harness.start["folder"]) / TRAJECTORY),
        delete_on_close=False,
        **settings.conversation,
    )


def outcome(conversation: Any, llm: AccountedLLM) -> Verdict:
    """How a conversation ended that ended by itself."""
    status = conversation.state.execution_status
    if status == ConversationExecutionStatus.FINISHED:
        return Verdict("done", "submitted", "")
    if status == ConversationExecutionStatus.STUCK:
        # Going in circles, but it may not be the agent: e.g. a context that stays full however much is left out of it.
        stuck = Verdict("done", "stuck", "the framework found the agent going in circles")
        return llm.judge(None) or stuck
    errors = [event for event in conversation.state.events if isinstance(event, ConversationErrorEvent)]
    code, text = (errors[-1].code, errors[-1].detail) if errors else ("", f"it ended as {status.value}")
    limit = {"MaxIterationsReached": "step_limit", "MaxBudgetReached": "cost_limit"}.get(code)
    return Verdict("done", limit, f"{text} (agent config)") if limit else Verdict("failed", "infra", text)


def judge(error: BaseException, model: str, *, first_call: bool) -> Verdict:
    """What a broken conversation means. The SDK has retried already, and wrapped the provider's error in its own."""
    for kind, status in _OUTCOMES.items():
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
