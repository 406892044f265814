"""Gemini's format as a chat completion and back: what LiteLLM's own translation gets wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.gateway.gemini_translation import (
    to_chat_request,
    to_gemini_events,
    to_gemini_reply,
)
from cooperbench.gateway.streams import BrokenStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def test_two_calls_of_one_tool_keep_their_results() -> None:
    calls = [{"functionCall": {"name": "bash", "args": {"command": name}}} for name in "ab"]
    results = [
        {"functionResponse": {"name": "bash", "response": {"output": name}}} for name in "ab"
    ]
    contents = [{"role": "model", "parts": calls}, {"role": "user", "parts": results}]
    assistant, *tool_messages = to_chat_request({"contents": contents})["messages"]
    call_ids = [call["id"] for call in assistant["tool_calls"]]
    assert len(set(call_ids)) == 2
    assert [message["tool_call_id"] for message in tool_messages] == call_ids
    assert ['"a"' in tool_messages[0]["content"], '"b"' in tool_messages[1]["content"]] == [
        True
    ] * 2


def test_results_come_before_texts_of_the_same_turn() -> None:
    parts = [{"text": "go on"}, {"functionResponse": {"id": "x", "name": "bash", "response": {}}}]
    messages = to_chat_request({"contents": [{"role": "user", "parts": parts}]})["messages"]
    assert [message["role"] for message in messages] == ["tool", "user"]


def test_the_whole_system_prompt_and_all_settings_are_kept() -> None:
    schema = {"type": "OBJECT", "properties": {"n": {"type": "INTEGER"}}, "propertyOrdering": ["n"]}
    request = to_chat_request(
        {
            "contents": [],
            "systemInstruction": {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]},
            "tools": [{"functionDeclarations": [{"name": "count", "parameters": schema}]}],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
            "generationConfig": {"temperature": 0, "maxOutputTokens": 9, "stopSequences": ["x"]},
        }
    )
    assert request["messages"] == [{"role": "system", "content": "Be brief.\nBe kind."}]
    assert request["tools"][0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
    }
    kept = {name: request[name] for name in ("temperature", "max_tokens", "stop", "tool_choice")}
    assert kept == {"temperature": 0, "max_tokens": 9, "stop": ["x"], "tool_choice": "required"}


USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 4},
}
GEMINI_USAGE = {
    "promptTokenCount": 10,
    "candidatesTokenCount": 5,
    "cachedContentTokenCount": 4,
    "totalTokenCount": 15,
}


def test_a_reply_has_texts_calls_and_cached_tokens() -> None:
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    message = {"content": "I look.", "tool_calls": [{"id": "1", "function": function}]}
    choice = {"message": message, "finish_reason": "tool_calls"}
    reply = to_gemini_reply({"choices": [choice], "usage": USAGE})
    assert reply["candidates"][0]["content"]["parts"] == [
        {"text": "I look."},
        {"functionCall": {"name": "bash", "args": {"command": "ls"}}},
    ]
    assert reply["usageMetadata"] == GEMINI_USAGE


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish_reason}]}


async def collect(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async def stream() -> AsyncIterator[dict[str, Any]]:
        for one_chunk in chunks:
            yield one_chunk

    return [event async for event in to_gemini_events(stream())]


def test_a_stream_passes_text_on_and_ends_with_calls_and_usage() -> None:
    pieces = [
        {"index": 0, "id": "1", "function": {"name": "bash", "arguments": '{"command"'}},
        {"index": 0, "function": {"arguments": ': "ls"}'}},
    ]
    events = asyncio.run(
        collect(
            [
                chunk(content="I "),
                chunk(content="look."),
                *(chunk(tool_calls=[piece]) for piece in pieces),
                chunk("length"),
                {"choices": [], "usage": USAGE},
            ]
        )
    )
    parts = [event["candidates"][0]["content"]["parts"] for event in events]
    call = {"functionCall": {"name": "bash", "args": {"command": "ls"}}}
    assert parts == [[{"text": "I "}], [{"text": "look."}], [call]]
    assert events[-1]["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert events[-1]["usageMetadata"] == GEMINI_USAGE


def test_a_stream_without_an_end_is_broken() -> None:
    with pytest.raises(BrokenStream):
        asyncio.run(collect([chunk(content="I ")]))
