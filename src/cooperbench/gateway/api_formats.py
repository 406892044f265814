"""The four API formats: what is in a request and in an answer, how a text is added; events, errors and tools on the wire.

An answer is made of the same items as a history. An item's key stays the same when a program sends its history again:
what programs change (`_VOLATILE`) is not in it, and results are known by their calls, since old ones may be shortened.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cooperbench.agents.llm import CONTENT_POLICY, CONTEXT_OVERFLOW

Body = dict[str, Any]
CHAT, RESPONSES, ANTHROPIC, GEMINI = "chat", "responses", "anthropic", "gemini"
_ERROR_KINDS = {
    400: ("invalid_request_error", "INVALID_ARGUMENT"),
    401: ("authentication_error", "UNAUTHENTICATED"),
    404: ("not_found_error", "NOT_FOUND"),
    413: ("request_too_large", "INVALID_ARGUMENT"),
    503: ("overloaded_error", "UNAVAILABLE"),
}
"""By status, in the words of Anthropic and OpenAI, and of Google."""
_CLIENT_TOOLS = ("function", "custom", "namespace", "local_shell", "apply_patch")
_ANTHROPIC_CLIENT_TOOLS = ("custom", "bash_", "text_editor_", "memory_", "computer_")
_OVERFLOW_CODE = "context_length_exceeded"
_FAULT_CODES = {CONTEXT_OVERFLOW: _OVERFLOW_CODE, CONTENT_POLICY: "content_policy_violation"}
_HISTORY = {CHAT: "messages", RESPONSES: "input", ANTHROPIC: "messages", GEMINI: "contents"}
_SYSTEM = ("system", "instructions", "systemInstruction", "system_instruction")
_VOLATILE = {"cache_control", "thoughtSignature", "thought_signature", "id", "status"}
_SIGNATURE = 200
SUBAGENT = "cc_is_subagent=true"
_OWN_ROLES = {"assistant", "model"}
_SYSTEM_ROLES = {"system", "developer"}
_BILLING = re.compile(r"^x-anthropic-billing-header: .*\n?")
"""A line of Claude Code that differs between its conversations."""


class BrokenStream(Exception):
    """The provider's stream ended before its answer did."""

    def __init__(self) -> None:
        super().__init__("the provider's stream ended early")


class Refused(Exception):
    """What a program is told instead of an answer; `fault`: the agent's, which programs may know how to react to."""

    def __init__(self, status: int, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = _FAULT_CODES.get(fault)


def encode(api_format: str, event: Mapping[str, Any]) -> bytes:
    """An event as it is sent."""
    name = f"event: {event.get('type')}\n" if api_format in (RESPONSES, ANTHROPIC) else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def error_body(api_format: str, refusal: Refused) -> Body:
    """As the API format's providers word it."""
    kind, gemini_kind = _ERROR_KINDS[refusal.status]
    message = str(refusal)
    if refusal.code == _OVERFLOW_CODE:
        # Clients look for these words.
        words = (
            "prompt is too long"
            if api_format == ANTHROPIC
            else "this model's maximum context length is exceeded"
        )
        message = f"{words}: {message}"
    if api_format == ANTHROPIC:
        return {"type": "error", "error": {"type": kind, "message": message}}
    if api_format == GEMINI:
        return {"error": {"code": refusal.status, "message": message, "status": gemini_kind}}
    return {"error": {"message": message, "type": kind, "param": None, "code": refusal.code}}


def error_event(api_format: str, refusal: Refused) -> bytes:
    """The same inside a stream that has begun."""
    if api_format != RESPONSES:
        return encode(api_format, error_body(api_format, refusal))
    # Its clients read failures from the response, and try again unless the code is one that they know.
    code = "invalid_prompt" if refusal.status == 400 else "server_error"
    error = {
        "code": _OVERFLOW_CODE if refusal.code == _OVERFLOW_CODE else code,
        "message": str(refusal),
    }
    response = {"id": "", "object": "response", "status": "failed", "output": [], "error": error}
    return encode(api_format, {"type": "response.failed", "response": response})


def without_provider_tools(api_format: str, body: Body) -> Body:
    """The request without tools that the provider would run: a web search is a network that the sandbox has not."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return body
    if api_format == GEMINI:
        found = [
            tool.get("functionDeclarations") or tool.get("function_declarations") for tool in tools
        ]
        kept: list[Any] = [{"functionDeclarations": one} for one in found if one]
    elif api_format == ANTHROPIC:
        kept = [
            tool
            for tool in tools
            if str(tool.get("type", "custom")).startswith(_ANTHROPIC_CLIENT_TOOLS)
        ]
        body = {
            name: value for name, value in body.items() if name not in ("mcp_servers", "container")
        }
    else:
        kept = [tool for tool in tools if tool.get("type") in _CLIENT_TOOLS]
    rest = {name: value for name, value in body.items() if name != "tools"}
    return rest | ({"tools": kept} if kept else {})


def whole(api_format: str, events: Sequence[Body]) -> Body:
    """The streamed answer as one; BrokenStream where its end is missing. (Chat is put together by LiteLLM.)"""
    if api_format == ANTHROPIC:
        return _anthropic_whole(events)
    if api_format == GEMINI:
        return _gemini_whole(events)
    for event in reversed(events):
        if event.get("type") in ("response.completed", "response.incomplete"):
            return dict(event["response"])
    raise BrokenStream


def _anthropic_whole(events: Sequence[Body]) -> Body:
    reply: Body = {}
    pieces: dict[int, str] = {}
    for event in events:
        match event.get("type"):
            case "message_start":
                reply = {**event["message"], "content": []}
            case "content_block_start":
                reply["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                index, delta = event["index"], event["delta"]
                block = reply["content"][index]
                for name in ("text", "thinking", "signature"):
                    if name in delta:
                        block[name] = block.get(name, "") + delta[name]
                pieces[index] = pieces.get(index, "") + delta.get("partial_json", "")
            case "message_delta":
                reply |= event["delta"]
                used = {
                    name: count
                    for name, count in event.get("usage", {}).items()
                    if count is not None
                }
                reply["usage"] = reply.get("usage", {}) | used
            case "message_stop":
                # JSON text need not be valid: models write it. What is read of calls takes texts, too.
                for index, text in pieces.items():
                    if text:
                        reply["content"][index]["input"] = text
                return reply
    raise BrokenStream


def _gemini_whole(events: Sequence[Body]) -> Body:
    reply: Body = {}
    parts: list[Body] = []
    finish = None
    for event in events:
        reply |= event
        for candidate in event.get("candidates", [])[:1]:
            finish = candidate.get("finishReason") or finish
            parts += candidate.get("content", {}).get("parts", [])
    if finish is None and "promptFeedback" not in reply:
        raise BrokenStream
    return reply | {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": finish}]
    }


class Call(NamedTuple):
    """A tool that the model wants to be called."""

    id: str
    """Empty where the model has given none."""
    name: str
    args: Body


class Result(NamedTuple):
    """What a tool gave back."""

    call_id: str
    name: str
    """Empty where the API format does not say it."""
    text: str


@dataclass
class Content:
    """Of one item or several."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def add_call(self, call_id: Any, name: Any, given: Any) -> None:
        """`given` is an object, or JSON text that need not be valid: models write it."""
        try:
            args = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            args = None
        args = args if isinstance(args, dict) else {"arguments": given} if given else {}
        self.calls.append(Call(str(call_id or ""), str(name or ""), args))

    def add_result(self, call_id: Any, given: Any, name: Any = "") -> None:
        self.results.append(Result(str(call_id or ""), str(name or ""), _text_of(given)))


def content_of(items: Iterable[Body]) -> Content:
    """In any API format: none of them uses a word in another one's sense."""
    found = Content()
    for item in items:
        blocks = _blocks(item.get("content") or item.get("parts"))
        if item.get("role") == "tool":
            found.add_result(item.get("tool_call_id"), blocks)
            continue
        for block in (item, *blocks, *_objects(item.get("tool_calls"))):
            _read(block, found)
    return found


def _read(block: Body, found: Content) -> None:
    kind = str(block.get("type"))
    match block:
        case {"thinking": text} | {"thought": True, "text": text} | {"reasoning_content": text}:
            found.reasoning.append(_text_of(text))
        case {"type": "reasoning"}:
            found.reasoning.append(_text_of(block.get("summary")))
        case {"type": "tool_use"}:
            found.add_call(block.get("id"), block.get("name"), block.get("input"))
        case {"type": "tool_result"}:
            found.add_result(block.get("tool_use_id"), block)
        case {"functionCall": {**call}}:
            found.add_call(call.get("id"), call.get("name"), call.get("args"))
        case {"functionResponse": {**response}}:
            given = response.get("response") or {}
            output = (
                (given.get("output") or given.get("error")) if isinstance(given, dict) else None
            )
            text = output if isinstance(output, str) else json.dumps(output or given)
            found.add_result(response.get("id"), text, response.get("name"))
        case {"function": {**function}}:
            found.add_call(block.get("id"), function.get("name"), function.get("arguments"))
        case _ if kind.endswith("_call"):
            given = next(
                (block[key] for key in ("arguments", "input", "action") if key in block), None
            )
            found.add_call(
                block.get("call_id"), block.get("name") or kind.removesuffix("_call"), given
            )
        case _ if kind.endswith("_output"):
            found.add_result(block.get("call_id"), block.get("output"))
        case {"text": str(text)} if text:
            found.texts.append(text)


def read_reply(api_format: str, answer: Mapping[str, Any]) -> tuple[Content, str]:
    """What is in a whole answer, and its finish reason."""
    if api_format == RESPONSES:
        return content_of(_objects(answer.get("output"))), str(answer.get("status") or "")
    if api_format == ANTHROPIC:
        return content_of([dict(answer)]), str(answer.get("stop_reason") or "")
    names = ("choices", "message", "finish_reason")
    if api_format == GEMINI:
        names = ("candidates", "content", "finishReason")
    choice = next(iter(_objects(answer.get(names[0]))), {})
    return content_of(_objects([choice.get(names[1])])), str(choice.get(names[2]) or "")


class Place(NamedTuple):
    """An item of a history."""

    key: str
    own: bool
    """The model's own words or calls."""
    results: list[Result]
    texts: list[str]
    """What is said to the model; without results and instructions of the system."""


class History:
    """Of one request. ValueError for a body that is none of its API format."""

    def __init__(self, api_format: str, body: Mapping[str, Any]) -> None:
        self._api_format = api_format
        self._body = body
        items = body.get(_HISTORY[api_format])
        if api_format == RESPONSES and isinstance(items, str):
            items = [{"role": "user", "content": items}]
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ValueError(f"{_HISTORY[api_format]} is no list of objects")
        self._items: list[Body] = items
        self.places = list(_places(items))
        self.keys = [place.key for place in self.places]
        self.results = [result for place in self.places for result in place.results]
        first: Body = next((item for item in items if str(item.get("role")) in _SYSTEM_ROLES), {})
        self.system = _text_of(next((body[key] for key in _SYSTEM if body.get(key)), first))
        """The instructions that stand before the history, or at its beginning."""
        thread = _object(body.get("client_metadata")).get("thread_id")
        self.thread = str(thread or (SUBAGENT if SUBAGENT in self.system[:_SIGNATURE] else ""))
        """What tells a program's sub-agents from itself, where it says so."""

    @property
    def tools(self) -> frozenset[str]:
        """Their names."""
        found = _objects(self._body.get("tools"))
        declared = [one for tool in found for one in _objects(tool.get("functionDeclarations"))]
        return frozenset(
            str(tool.get("name") or _object(tool.get("function")).get("name") or tool.get("type"))
            for tool in declared or found
        )

    @property
    def signature(self) -> tuple[str, frozenset[str]]:
        """What stays the same when a program shortens its history."""
        return _BILLING.sub("", self.system)[:_SIGNATURE], self.tools

    @property
    def tail(self) -> list[Place]:
        """What has come after the model's last words."""
        own = [number for number, place in enumerate(self.places) if place.own]
        return self.places[own[-1] + 1 if own else 0 :]

    def with_texts(self, texts: Mapping[str, Sequence[str]]) -> Body:
        """The body with user texts after the places with these keys; never between the results of one turn."""
        items: list[Body] = []
        waiting: list[str] = []
        for number, item in enumerate(self._items):
            items.append(item)
            waiting += texts.get(self.keys[number], ())
            if not waiting or any(place.results for place in self.places[number + 1 : number + 2]):
                continue
            if self._api_format == ANTHROPIC:
                # Two messages of one role must not follow each other there.
                items[-1] = item | {
                    "content": [*_blocks(item.get("content")), *map(_block, waiting)]
                }
            else:
                items += [_user_item(self._api_format, text) for text in waiting]
            waiting = []
        return {**self._body, _HISTORY[self._api_format]: items}


def _places(items: Iterable[Body]) -> Iterator[Place]:
    seen = Counter[str]()
    for item in items:
        role, kind, content = str(item.get("role")), str(item.get("type")), content_of([item])
        ids = [result.call_id for result in content.results]
        stable = json.dumps(_stable(item), sort_keys=True).encode()
        key = f"results {ids}" if ids and all(ids) else hashlib.sha256(stable).hexdigest()[:20]
        seen[key] += 1
        own = role in _OWN_ROLES or kind.endswith("_call") or kind == "reasoning"
        texts = [] if role in _SYSTEM_ROLES else content.texts
        yield Place(f"{key} {seen[key]}", own, content.results, texts)


def _user_item(api_format: str, text: str) -> Body:
    if api_format == GEMINI:
        return {"role": "user", "parts": [{"text": text}]}
    if api_format == RESPONSES:
        return {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        }
    return {"role": "user", "content": text}


def _block(text: str) -> Body:
    return {"type": "text", "text": text}


def _blocks(content: Any) -> list[Body]:
    return [_block(content)] if isinstance(content, str) else _objects(content)


def _object(value: Any) -> Body:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Body]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text_of(value: Any) -> str:
    """All texts in a message, a block, or a list of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text_of, value)))
    inner = _object(value)
    return _text_of(
        next((inner[key] for key in ("text", "content", "parts") if inner.get(key)), "")
    )


def _stable(value: Any) -> Any:
    """Without what programs change from request to request."""
    if isinstance(value, dict):
        kept = {key: _stable(one) for key, one in value.items() if key not in _VOLATILE}
        if isinstance(kept.get("content"), str):
            kept["content"] = [_block(kept["content"])]
        return kept
    return [_stable(one) for one in value] if isinstance(value, list) else value
