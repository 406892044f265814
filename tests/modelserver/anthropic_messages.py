"""Anthropic messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.modelserver.replies import Answer, Failure

PATHS = ("/v1/messages",)


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
            "input": json.loads(tool.arguments) if isinstance(tool.arguments, str) else dict(tool.arguments),
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
