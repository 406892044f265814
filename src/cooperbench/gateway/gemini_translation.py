"""Gemini's generateContent, translated to a chat completion and back.

LiteLLM has `agenerate_content` for this. It is not used, because its streams lose the token usage,
its replies lose the number of cached tokens, and two calls of one tool get the same id.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from cooperbench.gateway.api_formats import CHAT, JsonMapping, JsonObject
from cooperbench.gateway.history import Call, read_reply
from cooperbench.gateway.streams import join_events

_SETTINGS = {
    "temperature": "temperature",
    "topP": "top_p",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "seed": "seed",
    "frequencyPenalty": "frequency_penalty",
    "presencePenalty": "presence_penalty",
}
"""Names in `generationConfig`, and in a chat completion."""
_TOOL_CHOICES = {"AUTO": "auto", "ANY": "required", "NONE": "none"}
_FINISH_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
_UPPER_CASE_TYPES = {"OBJECT", "ARRAY", "STRING", "NUMBER", "INTEGER", "BOOLEAN", "NULL"}
_GEMINI_ONLY_SCHEMA_FIELDS = {"propertyOrdering", "property_ordering"}


def to_chat_request(body: JsonMapping) -> JsonObject:
    """Return the arguments of a chat completion for a request of generateContent."""
    request: JsonObject = {"messages": _messages(body)}
    config = body.get("generationConfig") or {}
    for gemini_name, chat_name in _SETTINGS.items():
        if config.get(gemini_name) is not None:
            request[chat_name] = config[gemini_name]
    response_format = _response_format(config)
    if response_format:
        request["response_format"] = response_format
    tools = _tools(body.get("tools") or [])
    if tools:
        request["tools"] = tools
        request["tool_choice"] = _tool_choice(body)
    return request


def _tool_choice(body: JsonMapping) -> str:
    tool_config = body.get("toolConfig") or body.get("tool_config") or {}
    mode = (tool_config.get("functionCallingConfig") or {}).get("mode")
    return _TOOL_CHOICES.get(str(mode), "auto")


def to_gemini_reply(reply: JsonMapping) -> JsonObject:
    """Return a whole chat completion in Gemini's format."""
    content, finish_reason = read_reply(CHAT, reply)
    parts: list[JsonObject] = [{"text": text} for text in content.texts]
    parts += [_function_call(call) for call in content.calls]
    return _reply(reply, parts, finish_reason)


async def to_gemini_events(chunks: AsyncIterable[JsonObject]) -> AsyncIterator[JsonObject]:
    """Yield a streamed chat completion in Gemini's format.

    Text is passed on as it comes. Tool calls, finish reason and usage follow at the end.
    """
    received = []
    async for chunk in chunks:
        received.append(chunk)
        for choice in (chunk.get("choices") or [])[:1]:
            text = (choice.get("delta") or {}).get("content")
            if text:
                parts = {"role": "model", "parts": [{"text": text}]}
                yield {"candidates": [{"index": 0, "content": parts}]}
    reply = join_events(CHAT, received)
    content, finish_reason = read_reply(CHAT, reply)
    yield _reply(reply, [_function_call(call) for call in content.calls], finish_reason)


def _messages(body: JsonMapping) -> list[JsonObject]:
    messages: list[JsonObject] = []
    system = body.get("systemInstruction") or body.get("system_instruction")
    if system:
        texts = [part.get("text", "") for part in system.get("parts", [])]
        messages.append({"role": "system", "content": "\n".join(texts)})
    call_ids = _CallIds()
    for content in body.get("contents") or []:
        parts = content.get("parts") or []
        if content.get("role") == "model":
            messages.append(_assistant_message(parts, call_ids))
        else:
            messages += _user_messages(parts, call_ids)
    return messages


class _CallIds:
    """Ids of tool calls. Gemini's own are optional; results come in the order of the calls."""

    def __init__(self) -> None:
        self._count = 0
        self._unanswered: dict[str, list[str]] = {}
        """Ids of calls without a result, by the tool's name."""

    def add_call(self, call: JsonObject) -> str:
        """Return the id of a call."""
        self._count += 1
        call_id = str(call.get("id") or f"call_{self._count}")
        self._unanswered.setdefault(str(call.get("name")), []).append(call_id)
        return call_id

    def find_call(self, response: JsonObject) -> str:
        """Return the id of the call that a result belongs to."""
        unanswered = self._unanswered.get(str(response.get("name")), [])
        call_id = response.get("id")
        if call_id is None and unanswered:
            call_id = unanswered[0]
        if call_id in unanswered:
            unanswered.remove(call_id)
        return str(call_id or f"call_{response.get('name')}")


def _assistant_message(parts: list[JsonObject], call_ids: _CallIds) -> JsonObject:
    texts = [part["text"] for part in parts if part.get("text") and not part.get("thought")]
    message: JsonObject = {"role": "assistant", "content": "".join(texts) or None}
    tool_calls = []
    for part in parts:
        call = part.get("functionCall")
        if call:
            function = {"name": call.get("name"), "arguments": json.dumps(call.get("args") or {})}
            tool_call = {"id": call_ids.add_call(call), "type": "function", "function": function}
            tool_calls.append(tool_call)
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def _user_messages(parts: list[JsonObject], call_ids: _CallIds) -> list[JsonObject]:
    """Return results of tools first: they must follow the calls directly."""
    results: list[JsonObject] = []
    blocks: list[JsonObject] = []
    for part in parts:
        response = part.get("functionResponse")
        data = part.get("inlineData") or part.get("inline_data")
        if response:
            results.append(_tool_message(response, call_ids))
        elif data:
            blocks.append(_image_block(data))
        elif part.get("text"):
            blocks.append({"type": "text", "text": part["text"]})
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return [*results, {"role": "user", "content": blocks[0]["text"]}]
    if blocks:
        return [*results, {"role": "user", "content": blocks}]
    return results


def _tool_message(response: JsonObject, call_ids: _CallIds) -> JsonObject:
    return {
        "role": "tool",
        "tool_call_id": call_ids.find_call(response),
        "content": json.dumps(response.get("response") or {}),
    }


def _image_block(data: JsonObject) -> JsonObject:
    mime_type = data.get("mimeType") or data.get("mime_type")
    url = f"data:{mime_type};base64,{data.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tools(tools: list[JsonObject]) -> list[JsonObject]:
    functions = []
    for tool in tools:
        for declaration in tool.get("functionDeclarations") or []:
            function = {"name": declaration.get("name", "")}
            if declaration.get("description"):
                function["description"] = declaration["description"]
            schema = declaration.get("parametersJsonSchema") or declaration.get("parameters")
            if schema:
                function["parameters"] = _json_schema(schema)
            functions.append({"type": "function", "function": function})
    return functions


def _response_format(config: JsonMapping) -> JsonObject | None:
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if schema:
        json_schema = {"name": "response", "schema": _json_schema(schema)}
        return {"type": "json_schema", "json_schema": json_schema}
    if config.get("responseMimeType") == "application/json":
        return {"type": "json_object"}
    return None


def _json_schema(schema: Any) -> Any:
    """Return a schema with the types of JSON Schema in lower case and without Gemini's fields."""
    if isinstance(schema, list):
        return [_json_schema(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {}
    for name, value in schema.items():
        if name == "type" and value in _UPPER_CASE_TYPES:
            converted[name] = value.lower()
        elif name not in _GEMINI_ONLY_SCHEMA_FIELDS:
            converted[name] = _json_schema(value)
    return converted


def _function_call(call: Call) -> JsonObject:
    return {"functionCall": {"name": call.name, "args": call.args}}


def _reply(chat_reply: JsonMapping, parts: list[JsonObject], finish: str) -> JsonObject:
    candidate = {
        "index": 0,
        "content": {"role": "model", "parts": parts},
        "finishReason": _FINISH_REASONS.get(finish, "STOP"),
    }
    usage = chat_reply.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": prompt,
            "candidatesTokenCount": completion,
            "cachedContentTokenCount": details.get("cached_tokens") or 0,
            "totalTokenCount": prompt + completion,
        },
    }
