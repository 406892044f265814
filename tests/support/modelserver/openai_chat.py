"""OpenAI chat completions."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.support.modelserver.replies import pieces, sse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.modelserver.replies import Answer, Failure

PATHS = re.compile(r"(/v1)?/chat/completions")


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
    return {
        "error": {"message": reply.message, "type": reply.kind, "param": None, "code": reply.code}
    }


def events(whole: Mapping[str, Any]) -> Iterator[bytes]:
    """The same, streamed."""
    choice = whole["choices"][0]
    message = choice["message"]
    common = {name: whole[name] for name in ("id", "created", "model")} | {
        "object": "chat.completion.chunk"
    }

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        return sse(common | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(message["content"] or ""):
        yield chunk({"content": piece})
    for place, tool in enumerate(message.get("tool_calls", [])):
        function = {"name": tool["function"]["name"], "arguments": ""}
        yield chunk({"tool_calls": [tool | {"index": place, "function": function}]})
        for piece in pieces(tool["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    yield sse(common | {"choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"
