"""The four dialects as they look on the wire: events, errors, tools. Which provider answers is not known here.

A streamed answer is a sequence of events, each the JSON object of one server-sent event. `whole` puts them together to
what the same request would have got without streaming; an answer that has no end is a broken one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


class BrokenStream(Exception):
    """The provider's stream ended before its answer did."""

    def __init__(self) -> None:
        super().__init__("the provider's stream ended early")


class Refused(Exception):
    """What a program is told instead of an answer; `overflow`: the context is full, which programs can react to."""

    def __init__(self, status: int, message: str, *, overflow: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.overflow = overflow


def encode(dialect: str, event: Mapping[str, Any]) -> bytes:
    """An event as it is sent."""
    name = f"event: {event.get('type')}\n" if dialect in (RESPONSES, ANTHROPIC) else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def error_body(dialect: str, refusal: Refused) -> Body:
    """As the dialect's providers word it."""
    kind, gemini_kind = _ERROR_KINDS[refusal.status]
    message = str(refusal)
    if dialect == ANTHROPIC:
        message = f"prompt is too long: {message}" if refusal.overflow else message
        return {"type": "error", "error": {"type": kind, "message": message}}
    if dialect == GEMINI:
        return {"error": {"code": refusal.status, "message": message, "status": gemini_kind}}
    code = _OVERFLOW_CODE if refusal.overflow else None
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_event(dialect: str, refusal: Refused) -> bytes:
    """The same inside a stream that has begun."""
    if dialect != RESPONSES:
        return encode(dialect, error_body(dialect, refusal))
    # Its clients read failures from the response, and try again unless the code is one that they know.
    code = "invalid_prompt" if refusal.status == 400 else "server_error"
    error = {"code": _OVERFLOW_CODE if refusal.overflow else code, "message": str(refusal)}
    response = {"id": "", "object": "response", "status": "failed", "output": [], "error": error}
    return encode(dialect, {"type": "response.failed", "response": response})


def without_provider_tools(dialect: str, body: Body) -> Body:
    """The request without tools that the provider would run: a web search is a network that the sandbox has not."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return body
    if dialect == GEMINI:
        found = [tool.get("functionDeclarations") or tool.get("function_declarations") for tool in tools]
        kept: list[Any] = [{"functionDeclarations": one} for one in found if one]
    elif dialect == ANTHROPIC:
        kept = [tool for tool in tools if str(tool.get("type", "custom")).startswith(_ANTHROPIC_CLIENT_TOOLS)]
        body = {name: value for name, value in body.items() if name not in ("mcp_servers", "container")}
    else:
        kept = [tool for tool in tools if tool.get("type") in _CLIENT_TOOLS]
    rest = {name: value for name, value in body.items() if name != "tools"}
    return rest | ({"tools": kept} if kept else {})


def whole(dialect: str, events: Sequence[Body]) -> Body:
    """The streamed answer as one; BrokenStream where its end is missing. Chat is put together by LiteLLM."""
    if dialect == ANTHROPIC:
        return _anthropic_whole(events)
    if dialect == GEMINI:
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
                used = {name: count for name, count in event.get("usage", {}).items() if count is not None}
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
    return reply | {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": finish}]}
