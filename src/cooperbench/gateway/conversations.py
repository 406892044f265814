"""An agent's requests and replies on record, and teammates' messages in its program's requests.

A program sends its whole history with each request, which shows to which conversation a request
belongs (docs/gateway.md). A message keeps its position in all later requests. If a compaction has
removed that position, the message is repeated once, at the end.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cooperbench.agents.session import DEFAULT_COMMAND_SECONDS, AgentSession
from cooperbench.gateway.api_formats import JsonMapping, JsonObject
from cooperbench.gateway.history import SUBAGENT, Call, History, Item, Result, read_reply
from cooperbench.models import Usage

REPEATED = (
    "\n\n[You were shown this before; it is repeated because the conversation was shortened.]"
)
_SHELL_TOOLS = {
    "Bash",
    "bash",
    "exec_command",
    "local_shell",
    "run_shell_command",
    "shell",
    "shell_command",
}
_EXIT_CODE = re.compile(
    r"^(?:Process exited with code|Exit code|Exit Code:) (-?\d+)$", re.MULTILINE
)
_EXIT_CODE_CHARACTERS = 300
"""Length of the beginning of a result in which the exit code is searched for."""
_SIDE = "side"


@dataclass
class _AddedMessage:
    """A teammate's message in the main conversation."""

    text: str
    after: str
    """Key of the item that it follows."""
    is_repeated: bool = False


@dataclass
class _Step:
    """A tool call without a result."""

    number: int
    call: Call
    call_id: str
    started: float


@dataclass
class Conversation:
    """One of the conversations that a program has with its model."""

    label: str
    """Empty for the main one. Others do not decide the agent's outcome."""
    thread: str
    keys: list[str] = field(default_factory=list)
    """Keys of the items of the last request."""
    signature: tuple[str, frozenset[str]] | None = None
    added: list[_AddedMessage] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)

    @property
    def is_main(self) -> bool:
        """Whether this is the agent's own conversation, not a sub-agent's or a side request."""
        return not self.label

    @property
    def record_fields(self) -> dict[str, str]:
        """Fields that name the conversation in entries of the record."""
        return {"conversation": self.label} if self.label else {}


class Exchange(NamedTuple):
    """One request, for which a reply is expected."""

    conversation: Conversation
    api_format: str
    sent: JsonMapping
    """The request of the program."""
    body: JsonObject
    """The request for the provider."""


class Calls:
    """Requests of a framework outside of the sandbox. It records steps and messages itself."""

    def __init__(self, session: AgentSession) -> None:
        self._session = session

    def begin_exchange(self, api_format: str, body: JsonObject) -> Exchange:
        """Return the exchange that a request begins.

        Raises:
            ValueError: The body does not have the structure of its API format.
        """
        return Exchange(Conversation(label="", thread=""), api_format, sent=body, body=body)

    def record_reply(self, exchange: Exchange, reply: JsonMapping, usage: Usage) -> None:
        """Put a whole reply on record."""
        content, finish_reason = read_reply(exchange.api_format, reply)
        call_ids = self._begin_steps(exchange.conversation, content.calls)
        tool_calls = []
        for call_id, call in zip(call_ids, content.calls, strict=False):
            arguments = json.dumps(call.args)
            tool_calls.append({"id": call_id, "name": call.name, "arguments": arguments})
        fields: JsonObject = {}
        if finish_reason:
            fields["finish_reason"] = finish_reason
        if tool_calls:
            fields["tool_calls"] = tool_calls
        if any(content.reasoning):
            fields["reasoning"] = "".join(content.reasoning)
        fields |= exchange.conversation.record_fields
        self._session.reply("".join(content.texts), usage, **fields)

    def finish(self) -> None:
        """End the record."""

    def _begin_steps(
        self,
        conversation: Conversation,  # noqa: ARG002  # subclasses use it
        calls: Sequence[Call],
    ) -> list[str]:
        """Return the ids of the calls on record."""
        return [call.id for call in calls]


class Conversations(Calls):
    """Requests of a program in the sandbox. Its tool calls are its steps; messages are added.

    The first request with tools begins the main conversation. A request that repeats a known call
    or a known beginning continues its conversation. A new history with the instructions and tools
    of the main conversation is the main conversation after a compaction. With other instructions or
    tools it belongs to a sub-agent; without tools it is a side request (a title, a summary).
    """

    def __init__(self, session: AgentSession) -> None:
        super().__init__(session)
        self._main: Conversation | None = None
        self._all: list[Conversation] = []
        self._by_call: dict[tuple[str, str], Conversation] = {}
        """Conversations by thread and id of a call."""

    def begin_exchange(self, api_format: str, body: JsonObject) -> Exchange:
        """Record the results of earlier calls, and return the exchange with messages added."""
        history = History(api_format, body)
        conversation = self._find_conversation(history)
        for result in history.results:
            self._by_call.setdefault((history.thread, result.call_id), conversation)
        self._record_results(conversation, history)
        conversation.keys = history.keys
        if conversation is self._main and history.tools and not _ends_with_instruction(history):
            self._add_messages(conversation, history)
        texts: dict[str, list[str]] = {}
        for message in conversation.added:
            texts.setdefault(message.after, []).append(message.text)
        return Exchange(conversation, api_format, sent=body, body=history.with_texts(texts))

    def finish(self) -> None:
        """Record calls whose results were never sent."""
        for conversation in self._all:
            for step in conversation.steps:
                self._record_step(conversation, step, result=None)
            conversation.steps = []

    def _begin_steps(self, conversation: Conversation, calls: Sequence[Call]) -> list[str]:
        # A side request has no tools. Nobody executes what looks like a call.
        if conversation.label == _SIDE:
            return []
        call_ids = []
        for call in calls:
            number = self._session.begin_own_step()
            call_id = call.id or f"call_{number}"
            call_ids.append(call_id)
            conversation.steps.append(_Step(number, call, call_id, time.monotonic()))
            if call.id:
                self._by_call[conversation.thread, call.id] = conversation
        return call_ids

    def _find_conversation(self, history: History) -> Conversation:
        conversation = self._find_known(history)
        if conversation:
            return conversation
        if not history.tools:
            return Conversation(_SIDE, history.thread)
        prompt = "\n\n".join(_texts_of(history.new_items))
        main = self._main
        if main is None and history.thread != SUBAGENT:
            self._main = Conversation(label="", thread=history.thread)
            self._session.tell(history.system_prompt, "system")
            self._session.tell(prompt, "task")
            self._all.append(self._main)
            return self._main
        if main and (history.thread, history.signature) == (main.thread, main.signature):
            self._session.tell(prompt, "compacted")
            return main
        subagent = Conversation(f"subagent {len(self._all)}", history.thread)
        self._session.tell(prompt, subagent.label)
        self._all.append(subagent)
        return subagent

    def _find_known(self, history: History) -> Conversation | None:
        """Return the conversation that has one of the calls, or else the longest same beginning."""
        for result in reversed(history.results):
            by_call = self._by_call.get((history.thread, result.call_id))
            if by_call:
                return by_call
        longest = None
        for conversation in self._all:
            keys = conversation.keys
            if conversation.thread != history.thread or keys != history.keys[: len(keys)]:
                continue
            if longest is None or len(keys) > len(longest.keys):
                longest = conversation
        return longest

    def _add_messages(self, main: Conversation, history: History) -> None:
        main.signature = history.signature
        last_key = main.keys[-1]
        kept: list[_AddedMessage] = []
        repeated: list[_AddedMessage] = []
        for message in main.added:
            if message.after in main.keys:
                kept.append(message)
            elif not message.is_repeated:
                repeated.append(_AddedMessage(message.text + REPEATED, last_key, is_repeated=True))
        incoming = [_AddedMessage(message.shown, last_key) for message in self._session.incoming()]
        main.added = kept + repeated + incoming

    def _record_results(self, conversation: Conversation, history: History) -> None:
        by_id = {result.call_id: result for result in history.results if result.call_id}
        new_results: list[Result] = []
        for item in history.new_items:
            new_results += item.results
        for step in list(conversation.steps):
            if step.call.id:
                result = by_id.get(step.call.id)
            else:
                # The model gave no id. Some programs then make one up, so compare names.
                result = _pop_result_of(step.call.name, new_results)
            if result is not None:
                conversation.steps.remove(step)
                self._record_step(conversation, step, result)

    def _record_step(self, conversation: Conversation, step: _Step, result: Result | None) -> None:
        action, args = _action_of(step.call)
        fields: JsonObject = {
            "tool": step.call.name,
            "call_id": step.call_id,
            **conversation.record_fields,
        }
        text = ""
        if result:
            text = result.text
            fields["duration_seconds"] = round(time.monotonic() - step.started, 4)
        exit_code = _EXIT_CODE.search(text[:_EXIT_CODE_CHARACTERS])
        if action == "run" and exit_code:
            fields["returncode"] = int(exit_code[1])
        self._session.recorder.entry(action, args, text, step=step.number, **fields)


def _texts_of(items: Sequence[Item]) -> list[str]:
    texts: list[str] = []
    for item in items:
        texts += item.texts
    return texts


def _pop_result_of(tool: str, results: list[Result]) -> Result | None:
    """Remove and return the first result of a tool."""
    for index, result in enumerate(results):
        if result.name == tool:
            return results.pop(index)
    return None


def _ends_with_instruction(history: History) -> bool:
    """Return whether the program itself writes to the model after the results of tools.

    Reminders that programs add to results are in tags.
    """
    items = history.new_items
    if not items:
        return True
    indexes = [index for index, item in enumerate(items) if item.results]
    if not indexes:
        return False
    texts = [text.lstrip() for text in _texts_of(items[indexes[-1] :])]
    return any(text and not text.startswith("<") for text in texts)


def _action_of(call: Call) -> tuple[str, JsonObject]:
    """Return the name and arguments of a step on record.

    Commands and messages look like those of other agents. Other tools keep their names.
    """
    args = call.args
    command = args.get("command", args.get("cmd"))
    if call.name in _SHELL_TOOLS and command:
        if isinstance(command, list):
            is_script = command[1:2] == ["-lc"]
            command = command[-1] if is_script else shlex.join(map(str, command))
        return "run", {"command": str(command), "timeout_seconds": DEFAULT_COMMAND_SECONDS}
    if call.name.endswith("send_message"):
        return "send_message", {"to": str(args.get("to")), "content": str(args.get("text"))}
    return call.name, args
