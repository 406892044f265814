"""Streamed events, joined into the reply that the same request would have got without streaming."""

from __future__ import annotations

from collections.abc import Sequence

from cooperbench.gateway.api_formats import ANTHROPIC, CHAT, GEMINI, JsonObject

_CHUNK_FIELDS = ("id", "created", "model", "usage")
_REASONING_NAMES = ("reasoning_content", "reasoning")
"""Names of a model's reasoning in chat completions; servers use one or the other."""


class BrokenStream(Exception):
    """A provider's stream that ended before its reply did."""

    def __init__(self) -> None:
        super().__init__("the provider's stream ended early")


def join_events(api_format: str, events: Sequence[JsonObject]) -> JsonObject:
    """Return the whole reply.

    Raises:
        BrokenStream: The end of the reply is missing.
    """
    if api_format == CHAT:
        return _join_chat(events)
    if api_format == ANTHROPIC:
        return _join_anthropic(events)
    if api_format == GEMINI:
        return _join_gemini(events)
    return _last_response(events)


def has_finish_reason(chunk: JsonObject) -> bool:
    """Return whether a chunk of a chat completion is the last one with content."""
    return any(choice.get("finish_reason") for choice in chunk.get("choices") or [])


def _join_chat(chunks: Sequence[JsonObject]) -> JsonObject:
    """Join chunks of a chat completion. Only the first choice is read: programs ask for one."""
    reply: JsonObject = {"object": "chat.completion"}
    message: JsonObject = {"role": "assistant", "content": None}
    tool_calls: dict[int, JsonObject] = {}
    finish_reason = None
    for chunk in chunks:
        reply |= {name: chunk[name] for name in _CHUNK_FIELDS if chunk.get(name) is not None}
        for choice in (chunk.get("choices") or [])[:1]:
            finish_reason = choice.get("finish_reason") or finish_reason
            _add_chat_delta(message, tool_calls, choice.get("delta") or {})
    if finish_reason is None:
        raise BrokenStream
    if tool_calls:
        message["tool_calls"] = [tool_calls[index] for index in sorted(tool_calls)]
    reply["choices"] = [{"index": 0, "message": message, "finish_reason": finish_reason}]
    return reply


def _add_chat_delta(
    message: JsonObject, tool_calls: dict[int, JsonObject], delta: JsonObject
) -> None:
    if delta.get("content"):
        message["content"] = (message["content"] or "") + delta["content"]
    for name in _REASONING_NAMES:
        if isinstance(delta.get(name), str):
            message[name] = message.get(name, "") + delta[name]
    for position, piece in enumerate(delta.get("tool_calls") or []):
        # Some servers leave the index out.
        index = position if piece.get("index") is None else piece["index"]
        if index not in tool_calls:
            function = {"name": "", "arguments": ""}
            tool_calls[index] = {"id": "", "type": "function", "function": function}
        _add_tool_call_piece(tool_calls[index], piece)


def _add_tool_call_piece(call: JsonObject, piece: JsonObject) -> None:
    call["id"] = piece.get("id") or call["id"]
    function = piece.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


def _join_anthropic(events: Sequence[JsonObject]) -> JsonObject:
    reply: JsonObject = {}
    inputs: dict[int, str] = {}
    """JSON text of the arguments of tool calls, by the index of the content block."""
    for event in events:
        match event.get("type"):
            case "message_start":
                reply = {**event["message"], "content": []}
            case "content_block_start":
                reply["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                _add_anthropic_delta(reply, inputs, event["index"], event["delta"])
            case "message_delta":
                reply |= event["delta"]
                counts = event.get("usage", {})
                reply.setdefault("usage", {})
                for name, count in counts.items():
                    if count is not None:
                        reply["usage"][name] = count
            case "message_stop":
                # The text is kept as it is: models may write invalid JSON.
                for index, text in inputs.items():
                    reply["content"][index]["input"] = text
                return reply
    raise BrokenStream


def _add_anthropic_delta(
    reply: JsonObject, inputs: dict[int, str], index: int, delta: JsonObject
) -> None:
    block = reply["content"][index]
    for name in ("text", "thinking", "signature"):
        if name in delta:
            block[name] = block.get(name, "") + delta[name]
    if delta.get("partial_json"):
        inputs[index] = inputs.get(index, "") + delta["partial_json"]


def _join_gemini(events: Sequence[JsonObject]) -> JsonObject:
    reply: JsonObject = {}
    parts: list[JsonObject] = []
    finish_reason = None
    for event in events:
        reply |= event
        for candidate in event.get("candidates", [])[:1]:
            finish_reason = candidate.get("finishReason") or finish_reason
            parts += candidate.get("content", {}).get("parts", [])
    if finish_reason is None and "promptFeedback" not in reply:
        raise BrokenStream
    content = {"role": "model", "parts": parts}
    return reply | {"candidates": [{"content": content, "finishReason": finish_reason}]}


def _last_response(events: Sequence[JsonObject]) -> JsonObject:
    """Return the response in the last event of OpenAI's responses API, which repeats everything."""
    for event in reversed(events):
        if event.get("type") in ("response.completed", "response.incomplete"):
            return dict(event["response"])
    raise BrokenStream
