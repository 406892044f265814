"""OpenHands at work: its Agent, LLM and Conversation, with our sandbox, colleagues, limits and accounts.

Runs in OpenHands' environment, not in ours: besides the SDK it imports the files beside it and the worker client.
"""

from __future__ import annotations

import inspect
import os
import time
from pathlib import Path
from typing import Any

from client import Ended, Harness, connect
from model_faults import Verdict
from openhands.sdk import LLM, Agent, Conversation, Event
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.conversation.state import ConversationExecutionStatus
from openhands.sdk.event import MessageEvent, SystemPromptEvent
from openhands.sdk.event.conversation_error import ConversationErrorEvent
from openhands.sdk.llm import content_to_str
from openhands.sdk.llm.exceptions.types import LLMContentPolicyViolationError
from openhands.tools.preset.default import get_default_condenser
from openhands_faults import judge
from openhands_settings import BadSettings, Settings, read_settings
from openhands_tools import sandbox_tools
from pydantic import PrivateAttr

TRAJECTORY = "openhands"
"""The folder with what the SDK itself writes down, beside trajectory.json."""
_MOST_REFUSALS = 3
"""In a row, by the provider's content filter. The SDK would go on asking until its iterations are used up."""


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
            refused = [isinstance(each, LLMContentPolicyViolationError) for each in latest]
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
            conversation.send_message(
                f"Message from {message['from']}:\n\n{message['text']}", sender=message["from"]
            )
        super().step(conversation, *args, **kwargs)


def main() -> None:
    harness = connect()
    try:
        end(harness, work(harness))
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


def end(harness: Harness, verdict: Verdict) -> None:
    if verdict.type == "done":
        harness.done(verdict.kind, verdict.message)
    else:
        harness.failed(verdict.kind, verdict.message)


if __name__ == "__main__":
    main()
