"""Anthropic messages."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.support.modelserver.replies import pieces, sse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.modelserver.replies import Answer, Failure

PATHS = re.compile(r"(/anthropic)?/v1/messages")


def messages_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    return [*system, *body.get("messages", [])]


def answer(reply: Answer, model: str, serial: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    content += [
        {
            "type": "tool_use",
            "id": f"toolu_{serial}_{place}",
            "name": tool.name,
            "input": json.loads(tool.arguments)
            if isinstance(tool.arguments, str)
            else dict(tool.arguments),
        }
        for place, tool in enumerate(reply.calls)
    ]
    tokens = reply.tokens
    return {
        "id": f"msg_{serial}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reply.finish_reason or ("tool_use" if reply.calls else "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": tokens.prompt - tokens.cached - tokens.written,
            "output_tokens": tokens.completion,
            "cache_read_input_tokens": tokens.cached,
            "cache_creation_input_tokens": tokens.written,
        },
    }


def failure(reply: Failure) -> dict[str, Any]:
    return {"type": "error", "error": {"type": reply.kind, "message": reply.message}}


def events(whole: Mapping[str, Any]) -> Iterator[bytes]:
    """The same, streamed."""

    def event(kind: str, **more: Any) -> bytes:
        return sse({"type": kind, **more}, kind)

    usage = whole["usage"]
    opening = {**whole, "content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    yield event("message_start", message=opening)
    for index, block in enumerate(whole["content"]):
        is_text = block["type"] == "text"
        empty: dict[str, Any] = {"text": ""} if is_text else {"input": {}}
        yield event("content_block_start", index=index, content_block=block | empty)
        for piece in pieces(block["text"] if is_text else json.dumps(block["input"])):
            delta = (
                {"type": "text_delta", "text": piece}
                if is_text
                else {"type": "input_json_delta", "partial_json": piece}
            )
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    ending = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    yield event("message_delta", delta=ending, usage={"output_tokens": usage["output_tokens"]})
    yield event("message_stop")
