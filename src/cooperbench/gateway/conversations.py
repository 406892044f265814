"""The conversations of one agent, told from what its program sends; colleagues' messages in them; the record of steps.

A program sends its whole history with each request. The first one that has tools begins its main conversation; one
that repeats a known call or a known beginning goes on with that conversation. A new history with the instructions and
the tools of the main conversation is the main one after a compaction; with others it is a sub-agent's; without tools
it is a side request (a title, a summary).

What colleagues send is added to the main conversation only: after the last item of the request before which it came,
and at that place in every later request. When a compaction has removed the place, the message is given once more, at
the end of the new history. An instruction of the program itself (to summarise) gets no new messages.
"""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cooperbench.agents.session import DEFAULT_COMMAND_SECONDS
from cooperbench.agents.worker.client import message_text
from cooperbench.gateway.history import SUBAGENT, Call, History, reply_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cooperbench.agents.session import Session
    from cooperbench.gateway.history import Json, Result
    from cooperbench.models import Usage

AGAIN = "\n\n[You were shown this before; it is repeated because the conversation was shortened.]"
_SHELL_TOOLS = {"Bash", "bash", "exec_command", "local_shell", "run_shell_command", "shell", "shell_command"}
_EXIT_CODE = re.compile(r"^(?:Process exited with code|Exit code|Exit Code:) (-?\d+)$", re.MULTILINE)
_EXIT_CODE_WITHIN = 300


@dataclass
class _Added:
    """A colleague's message in the main conversation."""

    text: str
    after: str
    """The key of the place that it follows."""
    again: bool = False


@dataclass
class _Step:
    number: int
    call: Call
    action: str
    args: Json
    began: float


@dataclass
class _Conversation:
    label: str
    """Empty for the main one."""
    thread: str
    keys: list[str]
    added: list[_Added] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)
    """Calls whose results have not come."""
    signature: tuple[str, frozenset[str]] = ("", frozenset())


class Conversations:
    """Calls are one at a time: the gateway holds the lock of the agent's access."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._main: _Conversation | None = None
        self._all: list[_Conversation] = []
        self._by_id: dict[tuple[str, str], _Conversation] = {}
        """By thread, and id of a call or of an earlier response."""

    def request(self, dialect: str, body: Mapping[str, Any]) -> Exchange:
        """What came of earlier calls goes on record. ValueError for a body that is none of its dialect."""
        history = History(dialect, body)
        conversation = self._conversation(history)
        if conversation is None:
            return Exchange(self, None, history, dict(body))
        results = list(history.results())
        for result in results:
            self._by_id.setdefault((history.thread, result.call_id), conversation)
        self._record_steps(conversation, results, [one for place in history.tail for one in place.results])
        continued = bool(body.get("previous_response_id"))
        if not continued:
            conversation.keys = history.keys
        if conversation is self._main:
            self._add_messages(conversation, history, continued=continued)
        return Exchange(self, conversation, history, self._with_messages(conversation, history))

    def finish(self) -> None:
        """The agent is over: calls whose results were never seen go on record too."""
        for conversation in self._all:
            for step in conversation.steps:
                self._record(step, conversation, "", {})
            conversation.steps = []

    def _conversation(self, history: History) -> _Conversation | None:
        """None for a side request."""
        thread, keys = history.thread, history.keys
        ids = [
            str(history.body.get("previous_response_id") or ""),
            *(one.call_id for one in history.results()),
        ]
        for known in reversed([one for one in ids if one]):
            if (thread, known) in self._by_id:
                return self._by_id[thread, known]
        same = [one for one in self._all if one.thread == thread and one.keys == keys[: len(one.keys)]]
        if same:
            return max(same, key=lambda one: len(one.keys))
        if not history.tools:
            return None
        main = self._main
        if main is not None and (thread, history.signature) == (main.thread, main.signature):
            self._session.tell(_said(history), "compacted")
            return main
        first = main is None and thread != SUBAGENT
        label = "" if first else f"subagent {len(self._all) + (main is None)}"
        found = _Conversation(label, thread, [])
        self._all.append(found)
        if first:
            self._main = found
            self._session.tell(history.system, "system")
        self._session.tell(_said(history), "task" if first else label)
        return found

    def _add_messages(self, main: _Conversation, history: History, *, continued: bool) -> None:
        if not history.tools or not history.places or _is_instruction(history):
            return
        main.signature = history.signature
        last = history.places[-1].key
        if not continued:
            for one in [one for one in main.added if one.after not in main.keys]:
                main.added.remove(one)
                if not one.again:
                    main.added.append(_Added(one.text + AGAIN, last, again=True))
        texts = [message_text(one.sender, one.text) for one in self._session.incoming()]
        main.added += [_Added(text, last) for text in texts]

    def _with_messages(self, conversation: _Conversation, history: History) -> Json:
        texts: dict[str, list[str]] = {}
        for one in conversation.added:
            texts.setdefault(one.after, []).append(one.text)
        return history.with_texts(texts)

    def _record_steps(self, conversation: _Conversation, results: list[Result], newest: list[Result]) -> None:
        by_id = {result.call_id: result for result in results if result.call_id}
        unknown = [one for one in newest if one.call_id not in {step.call.id for step in conversation.steps}]
        for step in list(conversation.steps):
            result = by_id.get(step.call.id)
            if result is None:
                # Some programs name the calls themselves that the model has given no id.
                result = next((one for one in unknown if one.name == step.call.name), None)
                if result is None:
                    continue
                unknown.remove(result)
            conversation.steps.remove(step)
            seconds = time.monotonic() - step.began
            self._record(step, conversation, result.text, _outcome(step, result, seconds))

    def _record(self, step: _Step, conversation: _Conversation, text: str, more: Mapping[str, Any]) -> None:
        about = {"tool": step.call.name, "call_id": step.call.id, **_label(conversation), **more}
        self._session.end_own_step(step.number, step.action, step.args, text, **about)

    def _answered(
        self,
        conversation: _Conversation | None,
        history: History,
        events: Iterable[Mapping[str, Any]],
        usage: Usage,
    ) -> None:
        reply = reply_of(history.dialect, events)
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in reply.calls]
        more = {"finish_reason": reply.finish_reason, "tool_calls": calls, "reasoning": reply.reasoning}
        about = {name: value for name, value in more.items() if value}
        self._session.reply(reply.text, usage, **about, **_label(conversation))
        if conversation is None:
            return
        for call in reply.calls:
            step = _Step(self._session.begin_own_step(), call, *_action(call), time.monotonic())
            conversation.steps.append(step)
        for known in (reply.response_id, *(call.id for call in reply.calls)):
            if known:
                self._by_id[history.thread, known] = conversation


@dataclass(frozen=True)
class Exchange:
    """One request and its answer."""

    _conversations: Conversations
    _conversation: _Conversation | None
    _history: History
    body: Json
    """What the provider is asked."""

    def answered(self, events: Iterable[Mapping[str, Any]], usage: Usage) -> None:
        """Put on record what the program got: the one JSON object of a whole answer, or all events of a stream."""
        self._conversations._answered(self._conversation, self._history, events, usage)  # noqa: SLF001


def _said(history: History) -> str:
    return "\n\n".join(place.text for place in history.tail if place.text)


def _label(conversation: _Conversation | None) -> dict[str, str]:
    label = "side" if conversation is None else conversation.label
    return {"conversation": label} if label else {}


def _is_instruction(history: History) -> bool:
    """The program's own words after tools' results; reminders that it adds to these are in tags."""
    tail = history.tail
    if not tail:
        return True
    has_results = [number for number, place in enumerate(tail) if place.results]
    after = tail[has_results[-1] + 1 :] if has_results else []
    return any(not place.text.lstrip().startswith("<") for place in after)


def _action(call: Call) -> tuple[str, Json]:
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


def _outcome(step: _Step, result: Result, seconds: float) -> Json:
    found: Json = {"duration_seconds": round(seconds, 4)}
    if step.action == "run":
        code = _EXIT_CODE.search(result.text[:_EXIT_CODE_WITHIN])
        if code:
            found["returncode"] = int(code[1])
    return found
