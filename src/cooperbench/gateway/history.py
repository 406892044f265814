"""Contents of requests and replies in any API format: texts, tool calls, results of tools.

A program sends its whole history with each request. Each item of a history has a key that stays the
same when the program sends it again: fields that programs change (`_VOLATILE_FIELDS`) are not part
of it. Results of tools are identified by their calls, because programs may shorten old results.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cooperbench.gateway.api_formats import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    JsonMapping,
    JsonObject,
)

SUBAGENT = "cc_is_subagent=true"
"""Marker in the system prompt of Claude Code's sub-agents."""
_ITEMS_FIELD = {CHAT: "messages", RESPONSES: "input", ANTHROPIC: "messages", GEMINI: "contents"}
_SYSTEM_FIELDS = ("system", "instructions", "systemInstruction", "system_instruction")
_SYSTEM_ROLES = {"system", "developer"}
_MODEL_ROLES = {"assistant", "model"}
_VOLATILE_FIELDS = {"cache_control", "thoughtSignature", "thought_signature", "id", "status"}
_SIGNATURE_CHARACTERS = 200
_BILLING_LINE = re.compile(r"^x-anthropic-billing-header: .*\n?")
"""First line of Claude Code's system prompt. It differs between conversations."""


class Call(NamedTuple):
    """A tool call by the model."""

    id: str
    """Empty if the model did not give one."""
    name: str
    args: JsonObject


class Result(NamedTuple):
    """The result of a tool call."""

    call_id: str
    name: str
    """Name of the tool. Empty if the API format does not repeat it."""
    text: str


@dataclass
class Content:
    """Everything that one or more items contain."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def add_call(self, call_id: object, name: object, arguments: object) -> None:
        """Add a call. `arguments` is an object, or JSON text, which models may write invalid."""
        parsed = arguments
        if isinstance(arguments, str):
            try:
                parsed = json.loads(arguments)
            except ValueError:
                parsed = None
        if isinstance(parsed, dict):
            args = parsed
        elif arguments:
            args = {"arguments": arguments}
        else:
            args = {}
        self.calls.append(Call(str(call_id or ""), str(name or ""), args))

    def add_result(self, call_id: object, value: object, name: object = "") -> None:
        """Add a result. `value` is a text, or blocks that contain texts."""
        self.results.append(Result(str(call_id or ""), str(name or ""), _text_of(value)))


def read_content(items: Iterable[JsonObject]) -> Content:
    """Return the contents of items.

    The API format is not needed: no two formats use the same field with different meanings.
    """
    content = Content()
    for item in items:
        blocks = _blocks(item.get("content") or item.get("parts"))
        if item.get("role") == "tool":
            content.add_result(item.get("tool_call_id"), blocks)
            continue
        for block in (item, *blocks, *_objects(item.get("tool_calls"))):
            _read_block(block, content)
    return content


def _read_block(block: JsonObject, content: Content) -> None:
    if _read_reasoning(block, content) or _read_gemini_block(block, content):
        return
    kind = str(block.get("type"))
    match block:
        case {"type": "tool_use"}:
            content.add_call(block.get("id"), block.get("name"), block.get("input"))
        case {"type": "tool_result"}:
            content.add_result(block.get("tool_use_id"), block)
        case {"function": {**function}}:
            content.add_call(block.get("id"), function.get("name"), function.get("arguments"))
        case _ if kind.endswith("_call"):
            name = block.get("name") or kind.removesuffix("_call")
            content.add_call(block.get("call_id"), name, _arguments_of(block))
        case _ if kind.endswith("_output"):
            content.add_result(block.get("call_id"), block.get("output"))
        case {"text": str(text)} if text:
            content.texts.append(text)


def _read_reasoning(block: JsonObject, content: Content) -> bool:
    """Add the model's reasoning. Return whether the block is nothing but reasoning."""
    match block:
        case {"type": "reasoning"}:
            content.reasoning.append(_text_of(block.get("summary")))
        case (
            {"thinking": text}
            | {"thought": True, "text": text}
            | {"reasoning_content": str(text)}
            | {"reasoning": str(text)}
        ):
            content.reasoning.append(_text_of(text))
        case _:
            return False
    return True


def _read_gemini_block(block: JsonObject, content: Content) -> bool:
    """Add a call or a result in Gemini's format. Return whether the block is one."""
    match block:
        case {"functionCall": {**call}}:
            content.add_call(call.get("id"), call.get("name"), call.get("args"))
        case {"functionResponse": {**response}}:
            value = response.get("response") or {}
            output = None
            if isinstance(value, dict):
                output = value.get("output") or value.get("error")
            text = output if isinstance(output, str) else json.dumps(output or value)
            content.add_result(response.get("id"), text, response.get("name"))
        case _:
            return False
    return True


def _arguments_of(block: JsonObject) -> object:
    """Return the arguments of a call in the responses format: their field depends on the tool."""
    for name in ("arguments", "input", "action"):
        if name in block:
            return block[name]
    return None


def read_reply(api_format: str, reply: JsonMapping) -> tuple[Content, str]:
    """Return the contents of a whole reply, and its finish reason."""
    if api_format == RESPONSES:
        return read_content(_objects(reply.get("output"))), str(reply.get("status") or "")
    if api_format == ANTHROPIC:
        return read_content([dict(reply)]), str(reply.get("stop_reason") or "")
    if api_format == GEMINI:
        choices, message_field, finish_field = reply.get("candidates"), "content", "finishReason"
    else:
        choices, message_field, finish_field = reply.get("choices"), "message", "finish_reason"
    for choice in _objects(choices)[:1]:
        content = read_content(_objects([choice.get(message_field)]))
        return content, str(choice.get(finish_field) or "")
    return Content(), ""


class Item(NamedTuple):
    """One item (a message, a call, a result) of a history."""

    key: str
    is_from_model: bool
    results: list[Result]
    texts: list[str]
    """Texts for the model, without results of tools and without system prompts."""


class History:
    """The history in one request.

    Raises:
        ValueError: The body does not have the structure of its API format.
    """

    def __init__(self, api_format: str, body: JsonMapping) -> None:
        self._api_format = api_format
        self._body = body
        self._raw_items = _raw_items(api_format, body)
        self.items = _read_items(self._raw_items)
        self.keys = [item.key for item in self.items]
        self.results: list[Result] = []
        for item in self.items:
            self.results += item.results

    @property
    def system_prompt(self) -> str:
        """The instructions before the history or at its beginning."""
        for name in _SYSTEM_FIELDS:
            if self._body.get(name):
                return _text_of(self._body[name])
        for raw_item in self._raw_items:
            if str(raw_item.get("role")) in _SYSTEM_ROLES:
                return _text_of(raw_item)
        return ""

    @property
    def thread(self) -> str:
        """A name for the program's sub-agent that sends this request, if the program gives one."""
        thread_id = _object(self._body.get("client_metadata")).get("thread_id")
        if thread_id:
            return str(thread_id)
        if SUBAGENT in self.system_prompt[:_SIGNATURE_CHARACTERS]:
            return SUBAGENT
        return ""

    @property
    def tools(self) -> frozenset[str]:
        """Names of the tools that the model may call."""
        tools = _objects(self._body.get("tools"))
        declarations: list[JsonObject] = []
        for tool in tools:
            declarations += _objects(tool.get("functionDeclarations"))
        return frozenset(_tool_name(tool) for tool in declarations or tools)

    @property
    def signature(self) -> tuple[str, frozenset[str]]:
        """The part of a request that stays the same when a program shortens its history."""
        system_prompt = _BILLING_LINE.sub("", self.system_prompt)
        return system_prompt[:_SIGNATURE_CHARACTERS], self.tools

    @property
    def new_items(self) -> list[Item]:
        """The items after the model's last reply."""
        start = 0
        for index, item in enumerate(self.items):
            if item.is_from_model:
                start = index + 1
        return self.items[start:]

    def with_texts(self, texts: Mapping[str, Sequence[str]]) -> JsonObject:
        """Return the body with user texts added after the items that have these keys.

        Texts are never put between two results of the same turn.
        """
        raw_items: list[JsonObject] = []
        pending: list[str] = []
        for index, raw_item in enumerate(self._raw_items):
            raw_items.append(raw_item)
            pending += texts.get(self.keys[index], [])
            next_items = self.items[index + 1 : index + 2]
            if not pending or any(item.results for item in next_items):
                continue
            if self._api_format == ANTHROPIC:
                # Anthropic does not allow two consecutive messages of one role.
                blocks = _blocks(raw_item.get("content")) + [_block(text) for text in pending]
                raw_items[-1] = raw_item | {"content": blocks}
            else:
                raw_items += [_user_item(self._api_format, text) for text in pending]
            pending = []
        return {**self._body, _ITEMS_FIELD[self._api_format]: raw_items}


def _raw_items(api_format: str, body: JsonMapping) -> list[JsonObject]:
    name = _ITEMS_FIELD[api_format]
    items = body.get(name)
    if api_format == RESPONSES and isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"{name} must be a list of objects")
    return items


def _read_items(raw_items: Iterable[JsonObject]) -> list[Item]:
    items = []
    counts = Counter[str]()
    for raw_item in raw_items:
        content = read_content([raw_item])
        key = _item_key(raw_item, content.results)
        counts[key] += 1
        role, kind = str(raw_item.get("role")), str(raw_item.get("type"))
        item = Item(
            key=f"{key} {counts[key]}",
            is_from_model=role in _MODEL_ROLES or kind.endswith("_call") or kind == "reasoning",
            results=content.results,
            texts=[] if role in _SYSTEM_ROLES else content.texts,
        )
        items.append(item)
    return items


def _item_key(raw_item: JsonObject, results: Sequence[Result]) -> str:
    call_ids = [result.call_id for result in results]
    if call_ids and all(call_ids):
        return f"results {call_ids}"
    text = json.dumps(_without_volatile_fields(raw_item), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _tool_name(tool: JsonObject) -> str:
    return str(tool.get("name") or _object(tool.get("function")).get("name") or tool.get("type"))


def _user_item(api_format: str, text: str) -> JsonObject:
    if api_format == GEMINI:
        return {"role": "user", "parts": [{"text": text}]}
    if api_format == RESPONSES:
        block = {"type": "input_text", "text": text}
        return {"type": "message", "role": "user", "content": [block]}
    return {"role": "user", "content": text}


def _block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _blocks(content: object) -> list[JsonObject]:
    return [_block(content)] if isinstance(content, str) else _objects(content)


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[JsonObject]:
    if not isinstance(value, list):
        return []
    return [element for element in value if isinstance(element, dict)]


def _text_of(value: object) -> str:
    """Return all texts in a message, a block, or a list of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [_text_of(element) for element in value]
        return "\n".join(text for text in texts if text)
    inner = _object(value)
    for name in ("text", "content", "parts"):
        if inner.get(name):
            return _text_of(inner[name])
    return ""


def _without_volatile_fields(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_volatile_fields(element) for element in value]
    if not isinstance(value, dict):
        return value
    kept: JsonObject = {}
    for name, inner in value.items():
        if name not in _VOLATILE_FIELDS:
            kept[name] = _without_volatile_fields(inner)
    if isinstance(kept.get("content"), str):
        kept["content"] = [_block(kept["content"])]
    return kept
