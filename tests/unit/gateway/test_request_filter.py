"""What agents may send to a provider, and what they may not, for each API format."""

from __future__ import annotations

from typing import Any

import pytest

from cooperbench.gateway.allowlist import RULES
from cooperbench.gateway.api_formats import Refused
from cooperbench.gateway.request_filter import allow_request
from tests.support.gateway.programs import API_FORMATS, Program, Turn

Json = dict[str, Any]
URL = "https://attacker.example/data"
SMALL_IMAGE = "iVBORw0KGgo="
DATA_URL = f"data:image/png;base64,{SMALL_IMAGE}"
FUNCTION: dict[str, Json] = {
    "chat": {"type": "function", "function": {"name": "bash", "parameters": {}}},
    "responses": {"type": "function", "name": "bash", "parameters": {}},
    "anthropic": {"name": "bash", "input_schema": {}},
    "gemini": {"functionDeclarations": [{"name": "bash"}]},
}


def request(api_format: str, *content: Json, **more: Any) -> Json:
    """Return a request whose only message has this content."""
    text: Json = {"type": "input_text" if api_format == "responses" else "text", "text": "hello"}
    message: Json = {"role": "user", "content": [text, *content]}
    match api_format:
        case "gemini":
            parts = [{"text": "hello"}, *content]
            return {"contents": [{"role": "user", "parts": parts}], **more}
        case "responses":
            return {"input": [message], "store": False, **more}
    return {"messages": [message], **more}


def in_result(block: Json) -> Json:
    return {"type": "tool_result", "tool_use_id": "t", "content": [block]}


def document(source: Json) -> Json:
    return {"type": "document", "source": source}


URL_SOURCE = {"type": "url", "url": URL}
FILE_SOURCE = {"type": "file", "file_id": "file_1"}
IMAGE_BY_URL = {"type": "image", "source": URL_SOURCE}
CONTENTS: list[tuple[str, Json]] = [
    ("anthropic", IMAGE_BY_URL),
    ("anthropic", {"type": "image", "source": FILE_SOURCE}),
    ("anthropic", {"type": "image", "source": {"type": "base64", "data": URL}}),
    ("anthropic", document(URL_SOURCE)),
    ("anthropic", document(FILE_SOURCE)),
    ("anthropic", document({"type": "content", "content": [IMAGE_BY_URL]})),
    ("anthropic", in_result(IMAGE_BY_URL)),
    ("anthropic", in_result(in_result(document(URL_SOURCE)))),
    ("anthropic", {"type": "container_upload", "file_id": "file_1"}),
    ("anthropic", {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
    ("chat", {"type": "image_url", "image_url": {"url": URL}}),
    ("chat", {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}),
    ("chat", {"type": "file", "file": {"file_id": "file_1"}}),
    ("chat", {"type": "file", "file": {"file_data": "gs://bucket/name"}}),
    ("chat", {"type": "input_audio", "input_audio": {"data": URL, "format": "wav"}}),
    ("chat", {"type": "video_url", "video_url": {"url": URL}}),
    ("chat", document(URL_SOURCE)),
    ("responses", {"type": "input_image", "image_url": URL}),
    ("responses", {"type": "input_image", "file_id": "file_1"}),
    ("responses", {"type": "input_file", "file_url": URL}),
    ("responses", {"type": "input_file", "file_id": "file_1"}),
    ("gemini", {"fileData": {"mimeType": "text/html", "fileUri": URL}}),
    ("gemini", {"file_data": {"mime_type": "text/html", "file_uri": URL}}),
    ("gemini", {"inlineData": {"mimeType": "text/html", "data": URL}}),
    ("gemini", {"executableCode": {"language": "PYTHON", "code": "1"}}),
    (
        "gemini",
        {"functionResponse": {"name": "a", "response": {}, "parts": [{"fileData": {}}]}},
    ),
]


@pytest.mark.parametrize(("api_format", "content"), CONTENTS)
def test_content_that_is_not_inline_is_refused(api_format: str, content: Json) -> None:
    with pytest.raises(Refused, match="only inline data is forwarded") as raised:
        allow_request(api_format, request(api_format, content))
    assert raised.value.status == 400


REFERENCES = [
    {"type": "item_reference", "id": "msg_1"},
    {"id": "msg_1"},
    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
    {"type": "computer_call_output", "call_id": "c", "output": {"image_url": URL}},
    {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_image", "image_url": URL}],
    },
]


@pytest.mark.parametrize("item", REFERENCES)
def test_items_that_are_not_inline_are_refused(item: Json) -> None:
    with pytest.raises(Refused, match=r"input\[\].*only inline data is forwarded"):
        allow_request("responses", {"input": [item]})


STATES: list[tuple[str, Json]] = [
    ("responses", {"previous_response_id": "resp_1"}),
    ("responses", {"conversation": "conv_1"}),
    ("responses", {"background": True}),
    ("responses", {"prompt": {"id": "pmpt_1"}}),
    ("gemini", {"cachedContent": "cachedContents/1"}),
    ("gemini", {"cached_content": "cachedContents/1"}),
]


@pytest.mark.parametrize(("api_format", "fields"), STATES)
def test_a_request_that_needs_stored_state_is_refused(api_format: str, fields: Json) -> None:
    (name,) = fields
    assert allow_request(api_format, request(api_format, **{name: None})).body
    with pytest.raises(Refused, match="send the whole history"):
        allow_request(api_format, request(api_format, **fields))


REMOVED_FIELDS: list[tuple[str, Json]] = [
    ("anthropic", {"mcp_servers": [{"type": "url", "url": URL, "name": "a"}]}),
    ("anthropic", {"container": {"skills": []}}),
    ("anthropic", {"service_tier": "auto"}),
    ("anthropic", {"new_server_feature": {"url": URL}}),
    ("chat", {"web_search_options": {}}),
    ("chat", {"store": True}),
    ("chat", {"service_tier": "priority"}),
    ("chat", {"api_base": URL}),
    ("chat", {"extra_body": {"tools": []}}),
    ("responses", {"service_tier": "priority"}),
    ("responses", {"api_base": URL}),
    ("gemini", {"labels": {"a": "b"}}),
    ("gemini", {"new_server_feature": {"url": URL}}),
]


@pytest.mark.parametrize(("api_format", "fields"), REMOVED_FIELDS)
def test_other_fields_are_removed_and_named(api_format: str, fields: Json) -> None:
    plain = request(api_format)
    allowed = allow_request(api_format, {**plain, **fields})
    assert allowed.body == plain
    (name,) = allowed.removed
    assert name.replace("newServerFeature", "new_server_feature") in fields


def test_replies_are_not_kept_at_the_provider() -> None:
    for store in ({}, {"store": True}, {"store": False}):
        assert allow_request("responses", {"input": "hi", **store}).body["store"] is False


TOOLS: list[tuple[str, Json]] = [
    ("anthropic", {"type": "web_search_20250305", "name": "web_search"}),
    ("anthropic", {"type": "web_fetch_20250910", "name": "web_fetch"}),
    ("anthropic", {"type": "code_execution_20250825", "name": "code_execution"}),
    ("anthropic", {"type": "mcp_toolset", "mcp_server_name": "a"}),
    ("anthropic", {"type": "bash_code_execution", "name": "bash"}),
    ("chat", {"type": "web_search"}),
    ("chat", {"type": "function", "googleSearch": {}}),
    ("chat", {"type": "function", "url_context": {}}),
    ("chat", {"googleSearch": {}}),
    ("chat", {"type": "mcp", "server_url": URL}),
    ("responses", {"type": "web_search"}),
    ("responses", {"type": "file_search", "vector_store_ids": ["vs_1"]}),
    ("responses", {"type": "code_interpreter", "container": {"type": "auto"}}),
    ("responses", {"type": "mcp", "server_url": URL, "server_label": "a"}),
    ("responses", {"type": "computer_use_preview"}),
    ("responses", {"type": "image_generation"}),
    ("responses", {"type": "shell", "environment": {"type": "container_auto"}}),
    ("gemini", {"googleSearch": {}}),
    ("gemini", {"google_search": {}}),
    ("gemini", {"urlContext": {}}),
    ("gemini", {"codeExecution": {}}),
    ("gemini", {"mcpServers": [{"url": URL}]}),
]


@pytest.mark.parametrize(("api_format", "tool"), TOOLS)
def test_tools_of_the_provider_are_removed(api_format: str, tool: Json) -> None:
    function = FUNCTION[api_format]
    allowed = allow_request(api_format, request(api_format, tools=[tool, function]))
    assert allowed.body["tools"] == [function]
    assert allowed.removed
    for tools in ([tool], tool):
        # Google's servers also accept a single tool in place of the list.
        alone = request(api_format, tools=tools, tool_choice="auto")
        assert allow_request(api_format, alone).body == request(api_format)


def test_a_tool_of_the_provider_beside_functions_is_removed() -> None:
    gemini = {**FUNCTION["gemini"], "googleSearch": {}, "url_context": {}}
    allowed = allow_request("gemini", request("gemini", tools=gemini))
    assert allowed.body["tools"] == [FUNCTION["gemini"]]
    chat = {**FUNCTION["chat"], "googleSearch": {}}
    assert allow_request("chat", request("chat", tools=[chat])).body["tools"] == [FUNCTION["chat"]]
    group = {"type": "namespace", "name": "n", "tools": [{"type": "mcp"}, FUNCTION["responses"]]}
    allowed = allow_request("responses", request("responses", tools=[group]))
    assert allowed.body["tools"] == [{**group, "tools": [FUNCTION["responses"]]}]


def test_provider_tool_results_are_filtered() -> None:
    fields = {"thought_signatures": ["s"], "compaction_blocks": [IMAGE_BY_URL], "tool_results": []}
    message = {"role": "assistant", "content": "hi", "provider_specific_fields": fields}
    (allowed,) = allow_request("chat", {"messages": [message]}).body["messages"]
    assert allowed["provider_specific_fields"] == {"thought_signatures": ["s"]}


INLINE: list[tuple[str, Json]] = [
    (
        "anthropic",
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": SMALL_IMAGE},
            "cache_control": {"type": "ephemeral"},
        },
    ),
    ("anthropic", document({"type": "text", "media_type": "text/plain", "data": f"see {URL}"})),
    ("anthropic", in_result({"type": "tool_reference", "tool_name": "a"})),
    ("anthropic", {"type": "tool_result", "tool_use_id": "t", "content": "done", "is_error": True}),
    ("anthropic", {"type": "thinking", "thinking": "hm", "signature": "s"}),
    ("chat", {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}}),
    ("chat", {"type": "file", "file": {"filename": "a", "file_data": DATA_URL}}),
    ("responses", {"type": "input_image", "image_url": DATA_URL, "detail": "auto"}),
    ("responses", {"type": "input_file", "filename": "a.pdf", "file_data": DATA_URL}),
    ("gemini", {"inlineData": {"mimeType": "image/png", "data": SMALL_IMAGE}}),
    ("gemini", {"text": f"see {URL}", "thought": True, "thoughtSignature": "s"}),
    ("gemini", {"functionCall": {"id": "c", "name": "a", "args": {"file_data": URL}}}),
]


@pytest.mark.parametrize(("api_format", "content"), INLINE)
def test_inline_content_is_forwarded_unchanged(api_format: str, content: Json) -> None:
    body = request(api_format, content)
    allowed = allow_request(api_format, body)
    assert allowed.body == body
    assert not allowed.removed


FIELDS_OF_PROGRAMS: dict[str, Json] = {
    "chat": {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "tool_choice": "auto",
        "max_tokens": 32000,
        "reasoning_effort": "high",
        "prompt_cache_key": "k",
    },
    "responses": {
        "model": "m",
        "stream": True,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "text": {"verbosity": "low"},
        "prompt_cache_key": "k",
        "client_metadata": {"thread_id": "t"},
    },
    "anthropic": {
        "model": "m",
        "stream": True,
        "max_tokens": 32000,
        "metadata": {"user_id": "u"},
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "tool_choice": {"type": "auto"},
    },
    "gemini": {
        "systemInstruction": {"role": "user", "parts": [{"text": "s"}]},
        "generationConfig": {
            "temperature": 1,
            "topP": 0.95,
            "topK": 64,
            "thinkingConfig": {"includeThoughts": True},
        },
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    },
}
"""What Claude Code, Codex, Gemini CLI and OpenCode send."""


@pytest.mark.parametrize("api_format", API_FORMATS)
def test_requests_of_programs_are_forwarded_unchanged(api_format: str) -> None:
    program = Program(api_format, "task")
    program.takes(Turn("I look.", calls=[program.shell("c1", "ls"), ("c2", "read", {"path": "a"})]))
    program.returns("a", "b", instruction="go on")
    body = {**program.body(), **FIELDS_OF_PROGRAMS[api_format]}
    allowed = allow_request(api_format, body)
    allowed.body.pop("store", None)
    assert allowed.body == body
    assert not allowed.removed


def test_names_in_snake_case_are_read_too() -> None:
    body = {"contents": [], "generation_config": {"top_p": 1}, "system_instruction": {"parts": []}}
    expected = {"contents": [], "generationConfig": {"topP": 1}, "systemInstruction": {"parts": []}}
    assert allow_request("gemini", body).body == expected


@pytest.mark.parametrize("api_format", API_FORMATS)
def test_malformed_requests_are_refused(api_format: str) -> None:
    items = {"gemini": "contents", "responses": "input"}.get(api_format, "messages")
    bad: list[Any]
    for bad in ([7], [[]], [{"role": "user", "content": [7], "parts": [7]}]):
        with pytest.raises(Refused) as raised:
            allow_request(api_format, {items: bad})
        assert raised.value.status == 400


def test_every_table_names_its_native_fields() -> None:
    for rules in RULES.values():
        assert rules.native_fields <= rules.body.rules.keys()
