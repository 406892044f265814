"""What of an agent's requests and answers goes on record, and what teammates send, in the requests of its program.

A program sends its whole history with each request: that tells its conversations apart (docs/gateway.md). A message
stays at its place in all later requests; when a compaction has removed the place, it is given once more, at the end.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cooperbench.agents.session import DEFAULT_COMMAND_SECONDS, AgentSession
from cooperbench.gateway.api_formats import SUBAGENT, Body, Call, History, Result, read_reply
from cooperbench.models import Usage

AGAIN = "\n\n[You were shown this before; it is repeated because the conversation was shortened.]"
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
_EXIT_CODE_WITHIN = 300
_SIDE = "side"


@dataclass
class _Added:
    """A teammate's message in the main conversation."""

    text: str
    after: str
    """The key of the item that it follows."""
    again: bool = False


@dataclass
class _Step:
    """A call whose result has not come."""

    number: int
    call: Call
    call_id: str
    began: float


@dataclass
class _Conversation:
    label: str
    """Empty for the main one; how others fare says nothing about the agent."""
    thread: str
    keys: list[str] = field(default_factory=list)
    """Of the last request."""
    signature: tuple[str, frozenset[str]] | None = None
    added: list[_Added] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)


class Exchange(NamedTuple):
    """One request and its answer."""

    conversation: _Conversation
    api_format: str
    sent: Mapping[str, Any]
    """What the program asks."""
    body: Body
    """What the provider is asked."""


class Calls:
    """Of a framework outside of the sandbox: its steps and messages are on record already, replies are not."""

    def __init__(self, session: AgentSession) -> None:
        self._session = session

    def request(self, api_format: str, body: Body) -> Exchange:
        """ValueError for a body that is none of its API format."""
        return Exchange(_Conversation("", ""), api_format, body, body)

    def answered(self, exchange: Exchange, answer: Mapping[str, Any], usage: Usage) -> None:
        """Put on record what the program got: the whole answer in its API format, also where it was streamed."""
        content, finish_reason = read_reply(exchange.api_format, answer)
        ids = self._begin_steps(exchange.conversation, content.calls)
        calls = [
            {"id": call_id, "name": call.name, "arguments": json.dumps(call.args)}
            for call_id, call in zip(ids, content.calls, strict=False)
        ]
        more = {
            "finish_reason": finish_reason,
            "tool_calls": calls,
            "reasoning": "".join(content.reasoning),
        }
        about = {name: value for name, value in more.items() if value}
        self._session.reply("".join(content.texts), usage, **about, **_label(exchange.conversation))

    def finish(self) -> None:
        """The agent is over."""

    def _begin_steps(self, conversation: _Conversation, calls: Sequence[Call]) -> list[str]:  # noqa: ARG002
        """The ids under which the calls are on record."""
        return [call.id for call in calls]


class Conversations(Calls):
    """Of a program in the sandbox: calls of tools are its steps, and messages are added to what it asks.

    The first request with tools begins the main conversation; one that repeats a known call or a known beginning goes
    on with its conversation. A new history with the instructions and tools of the main one is that after a compaction;
    with others it is a sub-agent's; without tools it is a side request (a title, a summary).
    """

    def __init__(self, session: AgentSession) -> None:
        super().__init__(session)
        self._main: _Conversation | None = None
        self._all: list[_Conversation] = []
        self._by_call: dict[tuple[str, str], _Conversation] = {}
        """By thread, and the id of a call."""

    def request(self, api_format: str, body: Body) -> Exchange:
        """What came of earlier calls goes on record."""
        history = History(api_format, body)
        conversation = self._conversation(history)
        for result in history.results:
            self._by_call.setdefault((history.thread, result.call_id), conversation)
        self._record_results(conversation, history)
        conversation.keys = history.keys
        if conversation is self._main and history.tools and not _is_instruction(history):
            self._add_messages(conversation, history)
        texts: dict[str, list[str]] = {}
        for one in conversation.added:
            texts.setdefault(one.after, []).append(one.text)
        return Exchange(conversation, api_format, body, history.with_texts(texts))

    def finish(self) -> None:
        """Calls whose results were never seen go on record too."""
        for conversation in self._all:
            for step in conversation.steps:
                self._record(conversation, step, None)
            conversation.steps = []

    def _begin_steps(self, conversation: _Conversation, calls: Sequence[Call]) -> list[str]:
        # A side request has no tools: what looks like a call is carried out by nobody.
        if conversation.label == _SIDE:
            return []
        ids = []
        for call in calls:
            number = self._session.begin_own_step()
            ids.append(call.id or f"call_{number}")
            conversation.steps.append(_Step(number, call, ids[-1], time.monotonic()))
            if call.id:
                self._by_call[conversation.thread, call.id] = conversation
        return ids

    def _conversation(self, history: History) -> _Conversation:
        thread, keys, main = history.thread, history.keys, self._main
        for result in reversed(history.results):
            if (thread, result.call_id) in self._by_call:
                return self._by_call[thread, result.call_id]
        same = [
            one for one in self._all if one.thread == thread and one.keys == keys[: len(one.keys)]
        ]
        if same:
            return max(same, key=lambda one: len(one.keys))
        if not history.tools:
            return _Conversation(_SIDE, thread)
        said = "\n\n".join(text for place in history.tail for text in place.texts)
        if main is not None and (thread, history.signature) == (main.thread, main.signature):
            self._session.tell(said, "compacted")
            return main
        if main is None and thread != SUBAGENT:
            found = self._main = _Conversation("", thread)
            self._session.tell(history.system, "system")
            self._session.tell(said, "task")
        else:
            found = _Conversation(f"subagent {len(self._all)}", thread)
            self._session.tell(said, found.label)
        self._all.append(found)
        return found

    def _add_messages(self, main: _Conversation, history: History) -> None:
        main.signature = history.signature
        last = main.keys[-1]
        for one in [one for one in main.added if one.after not in main.keys]:
            main.added.remove(one)
            if not one.again:
                main.added.append(_Added(one.text + AGAIN, last, again=True))
        for message in self._session.incoming():
            main.added.append(_Added(message.shown, last))

    def _record_results(self, conversation: _Conversation, history: History) -> None:
        by_id = {result.call_id: result for result in history.results if result.call_id}
        newest = [result for place in history.tail for result in place.results]
        for step in list(conversation.steps):
            # Some programs name a call themselves that the model has given no id.
            nameless = [one for one in newest if not step.call.id and one.name == step.call.name]
            result = by_id.get(step.call.id) or next(iter(nameless), None)
            if result is not None:
                newest = [one for one in newest if one is not result]
                conversation.steps.remove(step)
                self._record(conversation, step, result)

    def _record(self, conversation: _Conversation, step: _Step, result: Result | None) -> None:
        action, args = _action(step.call)
        about: Body = {"tool": step.call.name, "call_id": step.call_id, **_label(conversation)}
        text = result.text if result else ""
        if result:
            about["duration_seconds"] = round(time.monotonic() - step.began, 4)
        if action == "run" and (code := _EXIT_CODE.search(text[:_EXIT_CODE_WITHIN])):
            about["returncode"] = int(code[1])
        self._session.recorder.entry(action, args, text, step=step.number, **about)


def _label(conversation: _Conversation) -> dict[str, str]:
    return {"conversation": conversation.label} if conversation.label else {}


def _is_instruction(history: History) -> bool:
    """The program's own words after tools' results; reminders that it adds to these are in tags."""
    tail = history.tail
    results = [number for number, place in enumerate(tail) if place.results]
    texts = (
        [text.lstrip() for place in tail[results[-1] :] for text in place.texts] if results else []
    )
    return not tail or any(text and not text.startswith("<") for text in texts)


def _action(call: Call) -> tuple[str, Body]:
    """As other agents' steps are called: commands and messages are the same; other tools keep their names."""
    args = call.args
    command = args.get("command", args.get("cmd"))
    if call.name in _SHELL_TOOLS and command:
        if isinstance(command, list):
            command = command[-1] if command[1:2] == ["-lc"] else shlex.join(map(str, command))
        return "run", {"command": str(command), "timeout_seconds": DEFAULT_COMMAND_SECONDS}
    if call.name.endswith("send_message"):
        return "send_message", {"to": str(args.get("to")), "content": str(args.get("text"))}
    return call.name, args
