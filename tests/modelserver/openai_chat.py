"""OpenAI chat completions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.modelserver.replies import Answer, Failure

PATHS = ("/v1/chat/completions", "/chat/completions")


def messages_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(body.get("messages", []))


def answer(reply: Answer, model: str, serial: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{serial}_{place}",
                "type": "function",
                "function": {
                    "name": tool.name,
                    "arguments": tool.arguments
                    if isinstance(tool.arguments, str)
                    else json.dumps(tool.arguments),
                },
            }
            for place, tool in enumerate(reply.calls)
        ]
    tokens = reply.tokens
    return {
        "id": f"chatcmpl-{serial}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": reply.finish_reason or ("tool_calls" if reply.calls else "stop"),
            }
        ],
        "usage": {
            "prompt_tokens": tokens.prompt,
            "completion_tokens": tokens.completion,
            "total_tokens": tokens.prompt + tokens.completion,
            "prompt_tokens_details": {"cached_tokens": tokens.cached},
        },
    }


def failure(reply: Failure) -> dict[str, Any]:
    return {"error": {"message": reply.message, "type": reply.kind, "param": None, "code": reply.code}}
