"""What is in a request and in an answer, in each dialect: the history, tools' results, calls; how a text is added.

A history is looked at as a list of places. A place has a key that stays the same when a program sends its history
again: what programs change from request to request (`_VOLATILE`) is left out of it, and a tool's result is known by the
id of its call, since old results may be shortened. In Anthropic's dialect a place is a block of a message: results and
texts that follow them share one user message there. In the others it is an item.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Json = dict[str, Any]
_HISTORY = {"chat": "messages", "responses": "input", "anthropic": "messages", "gemini": "contents"}
_VOLATILE = {"cache_control", "thoughtSignature", "thought_signature", "id", "status"}
_SIGNATURE = 200
SUBAGENT = "cc_is_subagent=true"
_OWN_ROLES = {"assistant", "model"}
_SYSTEM_ROLES = {"system", "developer"}
_BILLING = re.compile(r"^x-anthropic-billing-header: .*\n?")
"""A line of Claude Code that differs between its conversations."""


class Result(NamedTuple):
    """What a tool gave back."""

    call_id: str
    name: str
    """Empty where the dialect does not say it."""
    text: str


class Place(NamedTuple):
    key: str
    item: int
    """Its number in the history."""
    block: int
    """Its number within the item; 0 in dialects without."""
    own: bool
    """The model's own words or calls."""
    results: tuple[Result, ...]
    text: str
    """What is said to the model; without results and instructions of the system."""


class Call(NamedTuple):
    """A tool that the model wants to be called."""

    id: str
    """Empty where the model has given none."""
    name: str
    args: Json


@dataclass
class Reply:
    """What a model answered."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    calls: list[Call] = field(default_factory=list)

    def say(self, reasoning: Any, text: Any) -> None:
        self.reasoning += _text_of(reasoning)
        self.text += _text_of(text)

    def call(self, call_id: Any, name: Any, given: Any) -> None:
        """`given` is an object, or JSON text that need not be valid: models write it."""
        try:
            args = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            args = None
        args = args if isinstance(args, dict) else {"arguments": given} if given else {}
        self.calls.append(Call(str(call_id or ""), str(name or ""), args))


class History:
    """Of one request. ValueError for a body that is none of its dialect."""

    def __init__(self, dialect: str, body: Mapping[str, Any]) -> None:
        self.dialect = dialect
        self.body = body
        items = body.get(_HISTORY[dialect])
        if dialect == "responses" and isinstance(items, str):
            items = [{"role": "user", "content": items}]
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ValueError(f"{_HISTORY[dialect]} is no list of objects")
        self._items: list[Json] = items
        self.places = self._places()

    @property
    def keys(self) -> list[str]:
        return [place.key for place in self.places]

    @property
    def tools(self) -> frozenset[str]:
        """Their names."""
        found = _objects(self.body.get("tools"))
        declared = [one for tool in found for one in _objects(tool.get("functionDeclarations"))]
        return frozenset(
            str(tool.get("name") or _object(tool.get("function")).get("name") or tool.get("type"))
            for tool in declared or found
        )

    @property
    def system(self) -> str:
        """The instructions that stand before the history, or at its beginning."""
        given = next((self.body[key] for key in _SYSTEM if self.body.get(key)), None)
        first = next((item for item in self._items if str(item.get("role")) in _SYSTEM_ROLES), {})
        return _text_of(given if given is not None else first)

    @property
    def signature(self) -> tuple[str, frozenset[str]]:
        """What stays the same when a program shortens its history."""
        return _BILLING.sub("", self.system)[:_SIGNATURE], self.tools

    @property
    def thread(self) -> str:
        """What tells a program's sub-agents from itself, where it says so."""
        thread = _object(self.body.get("client_metadata")).get("thread_id")
        return str(thread or (SUBAGENT if SUBAGENT in self.system[:_SIGNATURE] else ""))

    @property
    def tail(self) -> list[Place]:
        """What has come after the model's last words."""
        own = [number for number, place in enumerate(self.places) if place.own]
        return self.places[own[-1] + 1 if own else 0 :]

    def results(self) -> Iterator[Result]:
        for place in self.places:
            yield from place.results

    def with_texts(self, texts: Mapping[str, Sequence[str]]) -> Json:
        """The body with user texts after the places with these keys; never between the results of one turn."""
        added: dict[tuple[int, int], list[str]] = {}
        for number, place in enumerate(self.places):
            if place.key in texts:
                while number + 1 < len(self.places) and self.places[number + 1].results:
                    number += 1
                added.setdefault(self.places[number][1:3], []).extend(texts[place.key])
        items: list[Json] = []
        for index, item in enumerate(self._items):
            if self.dialect == "anthropic":
                blocks = _blocks(item.get("content"))
                after = [added.get((index, number), []) for number in range(len(blocks))]
                if any(after):
                    together = zip(blocks, after, strict=True)
                    item = item | {
                        "content": [one for block, more in together for one in (block, *map(_block, more))]
                    }
                items.append(item)
            else:
                items += [item, *(_user_item(self.dialect, text) for text in added.get((index, 0), []))]
        return {**self.body, _HISTORY[self.dialect]: items}

    def _places(self) -> list[Place]:
        found, seen = [], Counter[str]()
        for number, item in enumerate(self._items):
            role, kind = str(item.get("role")), str(item.get("type"))
            own = role in _OWN_ROLES or kind.endswith("_call") or kind == "reasoning"
            blocks = _blocks(item.get("content")) if self.dialect == "anthropic" else [item]
            for place, block in enumerate(blocks):
                results = tuple(_results(block))
                ids = [result.call_id for result in results]
                key = f"results {ids}" if ids and all(ids) else _fingerprint([role, block])
                seen[key] += 1
                hidden = role in _SYSTEM_ROLES or (results and self.dialect != "gemini")
                text = "" if hidden else _text_of(block)
                found.append(Place(f"{key} {seen[key]}", number, place, own, results, text))
        return found


_SYSTEM = ("system", "instructions", "systemInstruction", "system_instruction")


def _user_item(dialect: str, text: str) -> Json:
    if dialect == "gemini":
        return {"role": "user", "parts": [{"text": text}]}
    if dialect == "responses":
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"role": "user", "content": text}


def _block(text: str) -> Json:
    return {"type": "text", "text": text}


def _blocks(content: Any) -> list[Json]:
    return [_block(content)] if isinstance(content, str) else _objects(content)


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _results(item: Json) -> Iterator[Result]:
    """Of an item or a block, in any dialect."""
    kind = str(item.get("type", ""))
    if item.get("role") == "tool":
        yield Result(str(item.get("tool_call_id", "")), "", _text_of(item))
    elif kind.endswith("_output"):
        yield Result(str(item.get("call_id", "")), "", _text_of(item.get("output")))
    elif kind == "tool_result":
        yield Result(str(item.get("tool_use_id", "")), "", _text_of(item))
    for part in _objects(item.get("parts")):
        if response := _object(part.get("functionResponse")):
            given = _object(response.get("response"))
            text = given.get("output") or given.get("error") or given
            text = text if isinstance(text, str) else json.dumps(text)
            yield Result(str(response.get("id", "")), str(response.get("name", "")), text)


def _text_of(value: Any) -> str:
    """All texts in a message, a block, or a list of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text_of, value)))
    inner = _object(value)
    return _text_of(next((inner[key] for key in ("text", "content", "parts") if inner.get(key)), ""))


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(_stable(value), sort_keys=True).encode()).hexdigest()[:20]


def _stable(value: Any) -> Any:
    """Without what programs change from request to request."""
    if isinstance(value, dict):
        kept = {key: _stable(one) for key, one in value.items() if key not in _VOLATILE}
        if isinstance(kept.get("content"), str):
            kept["content"] = [_block(kept["content"])]
        return kept
    return [_stable(one) for one in value] if isinstance(value, list) else value


def reply_of(dialect: str, answer: Mapping[str, Any]) -> Reply:
    """Of a whole answer in the dialect in which the program gets it."""
    reply = Reply()
    if dialect == "chat":
        choice = next(iter(_objects(answer.get("choices"))), {})
        message = _object(choice.get("message"))
        reply.finish_reason = str(choice.get("finish_reason") or "")
        reply.say(message.get("reasoning_content"), message.get("content"))
        for call in _objects(message.get("tool_calls")):
            function = _object(call.get("function"))
            reply.call(call.get("id"), function.get("name"), function.get("arguments"))
    elif dialect == "responses":
        reply.finish_reason = str(answer.get("status") or "")
        for item in _objects(answer.get("output")):
            kind = str(item.get("type"))
            if kind.endswith("_call"):
                given = next((item[key] for key in ("arguments", "input", "action") if key in item), None)
                reply.call(item.get("call_id"), item.get("name") or kind.removesuffix("_call"), given)
            else:
                reply.say(
                    _text_of(item.get("summary")), _text_of(item.get("content")) if kind == "message" else ""
                )
    elif dialect == "anthropic":
        reply.finish_reason = str(answer.get("stop_reason") or "")
        for block in _objects(answer.get("content")):
            reply.say(block.get("thinking"), block.get("text"))
            if block.get("type") == "tool_use":
                reply.call(block.get("id"), block.get("name"), block.get("input"))
    else:
        candidate = next(iter(_objects(answer.get("candidates"))), {})
        reply.finish_reason = str(candidate.get("finishReason") or "")
        for part in _objects(_object(candidate.get("content")).get("parts")):
            text = part.get("text")
            reply.say(*((text, "") if part.get("thought") else ("", text)))
            if call := _object(part.get("functionCall")):
                reply.call(call.get("id"), call.get("name"), call.get("args"))
    return reply
