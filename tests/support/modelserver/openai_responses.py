"""OpenAI responses."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.support.modelserver.openai_chat import failure as failure
from tests.support.modelserver.replies import pieces, sse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.modelserver.replies import Answer

PATHS = re.compile(r"(/v1)?/responses")


def messages_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    system = (
        [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    )
    given = body.get("input", [])
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [*system, *(_message(item) for item in items)]


def _message(item: Mapping[str, Any]) -> Mapping[str, Any]:
    if str(item.get("type", "")).endswith("_output"):
        return {"role": "tool", "content": item["output"]}
    return item


def answer(reply: Answer, model: str, serial: int) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        output.append(
            {
                "type": "message",
                "id": f"msg_{serial}",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    for place, tool in enumerate(reply.calls):
        arguments = (
            tool.arguments if isinstance(tool.arguments, str) else json.dumps(tool.arguments)
        )
        name = {
            "type": "function_call",
            "id": f"fc_{serial}_{place}",
            "name": tool.name,
            "status": "completed",
        }
        output.append(name | {"call_id": f"call_{serial}_{place}", "arguments": arguments})
    tokens = reply.tokens
    return {
        "id": f"resp_{serial}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": tokens.prompt,
            "input_tokens_details": {"cached_tokens": tokens.cached},
            "output_tokens": tokens.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens.prompt + tokens.completion,
        },
    }


def events(whole: Mapping[str, Any]) -> Iterator[bytes]:
    """The same, streamed."""
    count = 0

    def event(kind: str, **more: Any) -> bytes:
        nonlocal count
        count += 1
        return sse({"type": kind, "sequence_number": count, **more}, kind)

    yield event(
        "response.created", response={**whole, "output": [], "status": "in_progress", "usage": None}
    )
    for index, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            yield event(
                "response.output_item.added", output_index=index, item=item | {"content": []}
            )
            part = item["content"][0]
            yield event(
                "response.content_part.added", **place, content_index=0, part=part | {"text": ""}
            )
            for piece in pieces(part["text"]):
                yield event(
                    "response.output_text.delta", **place, content_index=0, delta=piece, logprobs=[]
                )
            yield event(
                "response.output_text.done",
                **place,
                content_index=0,
                text=part["text"],
                logprobs=[],
            )
            yield event("response.content_part.done", **place, content_index=0, part=part)
        else:
            yield event(
                "response.output_item.added", output_index=index, item=item | {"arguments": ""}
            )
            for piece in pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", **place, delta=piece)
            yield event(
                "response.function_call_arguments.done", **place, arguments=item["arguments"]
            )
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=whole)
