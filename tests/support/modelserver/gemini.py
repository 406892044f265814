"""Gemini's generateContent. The model's name is in the path only."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.support.modelserver.replies import pieces, sse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.modelserver.replies import Answer, Failure

PATHS = re.compile(
    r"(/v1beta|/v1alpha|/v1)?/(models/)?[^/:]+:(generateContent|streamGenerateContent)"
)
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
}
_STATUS |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}


def messages_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    system = body.get("systemInstruction") or body.get("system_instruction")
    opening = [{"role": "system", "content": system["parts"]}] if system else []
    return [
        *opening,
        *(
            {"role": turn.get("role", "user"), "content": _blocks(turn["parts"])}
            for turn in body.get("contents", [])
        ),
    ]


def _blocks(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"text": json.dumps(part["functionResponse"].get("response"))}
        if "functionResponse" in part
        else part
        for part in parts
    ]


def answer(reply: Answer, model: str, serial: int) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": reply.text}] if reply.text else []
    for tool in reply.calls:
        arguments = (
            json.loads(tool.arguments) if isinstance(tool.arguments, str) else dict(tool.arguments)
        )
        parts.append({"functionCall": {"name": tool.name, "args": arguments}})
    tokens = reply.tokens
    content = {"role": "model", "parts": parts}
    return {
        "candidates": [
            {"index": 0, "content": content, "finishReason": reply.finish_reason or "STOP"}
        ],
        "usageMetadata": {
            "promptTokenCount": tokens.prompt,
            "candidatesTokenCount": tokens.completion,
            "cachedContentTokenCount": tokens.cached,
            "totalTokenCount": tokens.prompt + tokens.completion,
        },
        "modelVersion": model or "gemini",
        "responseId": f"resp{serial}",
    }


def events(whole: Mapping[str, Any]) -> Iterator[bytes]:
    """The same, streamed."""
    candidate = whole["candidates"][0]
    common = {name: whole[name] for name in ("modelVersion", "responseId")}

    def chunk(part: Mapping[str, Any]) -> bytes:
        return sse(
            common | {"candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}}]}
        )

    for part in candidate["content"]["parts"]:
        if "text" in part:
            for piece in pieces(part["text"]):
                yield chunk({"text": piece})
        else:
            yield chunk(part)
    ending = {"index": 0, "content": {"role": "model", "parts": [{"text": ""}]}}
    finish = ending | {"finishReason": candidate["finishReason"]}
    yield sse(common | {"candidates": [finish], "usageMetadata": whole["usageMetadata"]})


def failure(reply: Failure) -> dict[str, Any]:
    status = _STATUS.get(reply.status, "UNKNOWN")
    return {"error": {"code": reply.status, "message": reply.message, "status": status}}
