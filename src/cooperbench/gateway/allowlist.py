"""The allowed content of requests: one table for each API format.

Requests come from sandboxes. Through the provider of its model an agent must get neither a network
nor files nor a memory that outlives the request. So tools run in the sandbox, data is inline, and
each request has its whole history. `request_filter.py` applies the tables.

Fields and tools that are not listed are removed, and the log of the agent names them: programs go
on working when a new version sends one more field. Contents that are not listed are refused, and so
are the fields of `refused_fields`: without them the model would answer another question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from cooperbench.gateway.api_formats import ANTHROPIC, CHAT, GEMINI, RESPONSES


class Value(Enum):
    """A value without structure of its own."""

    PLAIN = "any value, which the provider does not follow to data elsewhere"
    TEXT = "a text"
    BASE64 = "base64, not an address"
    DATA_URL = "a data URL"


@dataclass(frozen=True)
class Fields:
    """An object with these fields."""

    rules: Mapping[str, Rule]
    needs: frozenset[str] = frozenset()
    """Fields of which there must be at least one."""
    keeps_others: bool = False
    """Whether other fields are plain values. They are removed otherwise."""


@dataclass(frozen=True)
class Variants:
    """An object whose `type` decides which fields it has."""

    by_type: Mapping[str, Fields]
    default: str = ""
    """The type of an object that does not name one."""


@dataclass(frozen=True)
class Items:
    """A list. A single item, and a text in place of the list, are accepted too."""

    item: Fields | Variants
    removes: bool = False
    """Whether items that are not allowed are removed. The request is refused otherwise."""


Rule = Value | Fields | Variants | Items


@dataclass(frozen=True)
class FormatRules:
    """The table of an API format."""

    body: Fields
    native_fields: frozenset[str] = frozenset()
    """Fields of `body` that only a provider with this API format gets. LiteLLM does not."""
    refused_fields: Mapping[str, str] = field(default_factory=dict)
    """Fields without which a request means something else, and why they are refused."""

    @property
    def translated_fields(self) -> tuple[str, ...]:
        """Fields that LiteLLM gets as arguments. Others are addresses, keys and hooks there."""
        return tuple(name for name in self.body.rules if name not in self.native_fields)


PLAIN, TEXT, BASE64, DATA_URL = Value.PLAIN, Value.TEXT, Value.BASE64, Value.DATA_URL
_ANYTHING = Fields({}, keeps_others=True)
_TEXT_BLOCK = Fields({"text": TEXT}, needs=frozenset({"text"}), keeps_others=True)


def _plain(*names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, PLAIN)


REASONS = {
    "background": "the provider would keep the reply",
    "cachedContent": "the provider would add stored content",
    "container": "the provider would run code in it",
    "conversation": "the provider would add a stored history",
    "mcp_servers": "the provider would call these servers",
    "metadata": "the provider would store it",
    "previous_response_id": "the provider would add a stored history",
    "prompt": "the provider would add a stored prompt",
    "service_tier": "it changes the price, which is a setting of the run",
    "speed": "it changes the price, which is a setting of the run",
    "store": "the provider would keep the reply",
    "web_search_options": "the provider would search the web",
}
"""Why fields are not forwarded, for the log. Tools and contents have the reasons below."""
TOOL_REASON = "only tools that the program runs itself are forwarded"
CONTENT_REASON = "only inline data is forwarded"
SEND_WHOLE_HISTORY = "send the whole history in each request"

# --- OpenAI chat completions ---

_CHAT_CONTENT = Variants(
    {
        "text": _TEXT_BLOCK,
        "refusal": _ANYTHING,
        "thinking": _ANYTHING,
        "redacted_thinking": _ANYTHING,
        "image_url": Fields(
            {
                **_plain("type", "cache_control"),
                "image_url": Fields({**_plain("detail", "format"), "url": DATA_URL}),
            },
            needs=frozenset({"image_url"}),
        ),
        "input_audio": Fields(
            {
                **_plain("type", "cache_control"),
                "input_audio": Fields({**_plain("format"), "data": BASE64}),
            },
            needs=frozenset({"input_audio"}),
        ),
        "file": Fields(
            {
                **_plain("type", "cache_control"),
                "file": Fields(
                    {**_plain("filename", "format"), "file_data": DATA_URL},
                    needs=frozenset({"file_data"}),
                ),
            },
            needs=frozenset({"file"}),
        ),
    }
)
_CHAT_MESSAGE = Fields(
    {
        **_plain("role", "name", "tool_calls", "tool_call_id", "function_call", "refusal"),
        **_plain("reasoning", "reasoning_content", "reasoning_details", "cache_control"),
        "content": Items(_CHAT_CONTENT),
        "thinking_blocks": Items(Variants({"thinking": _ANYTHING, "redacted_thinking": _ANYTHING})),
        "reasoning_items": Items(Variants({"reasoning": _ANYTHING})),
        # LiteLLM turns others of these fields into results of tools that the provider has run.
        "provider_specific_fields": Fields(_plain("thought_signature", "thought_signatures")),
    },
    needs=frozenset({"role"}),
)
# LiteLLM takes further fields for other tools: `googleSearch` beside `function`, for example.
_CHAT_TOOLS = Variants(
    {
        "function": Fields(
            {
                **_plain("type", "cache_control"),
                "function": Fields(
                    _plain("name", "description", "parameters", "strict", "cache_control")
                ),
            },
            needs=frozenset({"function"}),
        ),
        "custom": Fields(_plain("type", "custom"), needs=frozenset({"custom"})),
    }
)
_CHAT = FormatRules(
    Fields(
        {
            **_plain("model", "stream", "stream_options"),
            "messages": Items(_CHAT_MESSAGE),
            "tools": Items(_CHAT_TOOLS, removes=True),
            **_plain("tool_choice", "temperature", "top_p", "parallel_tool_calls"),
            **_plain("max_tokens", "max_completion_tokens", "stop", "seed", "response_format"),
            **_plain("frequency_penalty", "presence_penalty", "reasoning_effort", "verbosity"),
            **_plain("prompt_cache_key", "thinking", "n"),
        }
    ),
    native_fields=frozenset({"model", "stream", "stream_options"}),
)

# --- OpenAI responses ---

_RESPONSES_CONTENT = Items(
    Variants(
        {
            "input_text": _TEXT_BLOCK,
            "output_text": _TEXT_BLOCK,
            "text": _TEXT_BLOCK,
            "summary_text": _TEXT_BLOCK,
            "reasoning_text": _TEXT_BLOCK,
            "refusal": _ANYTHING,
            "input_image": Fields(
                {**_plain("type", "detail"), "image_url": DATA_URL},
                needs=frozenset({"image_url"}),
            ),
            "input_file": Fields(
                {**_plain("type", "filename", "detail"), "file_data": DATA_URL},
                needs=frozenset({"file_data"}),
            ),
            "input_audio": Fields(
                {
                    **_plain("type"),
                    "input_audio": Fields({**_plain("format"), "data": BASE64}),
                },
                needs=frozenset({"input_audio"}),
            ),
        }
    )
)
_RESPONSES_CLIENT_TOOLS = {
    "function": _ANYTHING,
    "custom": _ANYTHING,
    "local_shell": _ANYTHING,
    "apply_patch": _ANYTHING,
}
_RESPONSES_TOOLS = Items(
    Variants(
        {
            **_RESPONSES_CLIENT_TOOLS,
            # A group of tools.
            "namespace": Fields(
                {"tools": Items(Variants(_RESPONSES_CLIENT_TOOLS), removes=True)},
                keeps_others=True,
            ),
        }
    ),
    removes=True,
)
_RESPONSES_CALL_OUTPUT = Fields({"output": _RESPONSES_CONTENT}, keeps_others=True)
_RESPONSES_ITEMS = Variants(
    {
        # An item with nothing but an id would be a reference to a stored one.
        "message": Fields(
            {"content": _RESPONSES_CONTENT}, needs=frozenset({"content"}), keeps_others=True
        ),
        "reasoning": _ANYTHING,
        "compaction": _ANYTHING,
        "compaction_summary": _ANYTHING,
        "function_call": _ANYTHING,
        "function_call_output": _RESPONSES_CALL_OUTPUT,
        "custom_tool_call": _ANYTHING,
        "custom_tool_call_output": _RESPONSES_CALL_OUTPUT,
        "local_shell_call": _ANYTHING,
        "local_shell_call_output": _RESPONSES_CALL_OUTPUT,
        "apply_patch_call": _ANYTHING,
        "apply_patch_call_output": _RESPONSES_CALL_OUTPUT,
    },
    default="message",
)
_RESPONSES = FormatRules(
    Fields(
        {
            **_plain("model", "stream", "stream_options", "client_metadata"),
            **_plain("include", "max_tool_calls", "prompt_cache_retention", "context_management"),
            "input": Items(_RESPONSES_ITEMS),
            "tools": _RESPONSES_TOOLS,
            **_plain("tool_choice", "temperature", "top_p", "parallel_tool_calls"),
            **_plain("instructions", "reasoning", "text", "max_output_tokens"),
            **_plain("prompt_cache_key", "truncation"),
        }
    ),
    native_fields=frozenset(
        {
            *("model", "stream", "stream_options", "client_metadata", "include"),
            *("max_tool_calls", "prompt_cache_retention", "context_management"),
        }
    ),
    refused_fields={
        "background": SEND_WHOLE_HISTORY,
        "conversation": SEND_WHOLE_HISTORY,
        "previous_response_id": SEND_WHOLE_HISTORY,
        "prompt": SEND_WHOLE_HISTORY,
    },
)

# --- Anthropic messages and count_tokens ---

_ANTHROPIC_BLOCKS: dict[str, Fields] = {}
_ANTHROPIC_CONTENT = Items(Variants(_ANTHROPIC_BLOCKS))
_BASE64_SOURCE = Fields({**_plain("type", "media_type"), "data": BASE64})
_ANTHROPIC_BLOCKS |= {
    "text": _TEXT_BLOCK,
    "image": Fields(
        {**_plain("type", "cache_control"), "source": Variants({"base64": _BASE64_SOURCE})},
        needs=frozenset({"source"}),
    ),
    "document": Fields(
        {
            **_plain("type", "title", "context", "citations", "cache_control"),
            "source": Variants(
                {
                    "base64": _BASE64_SOURCE,
                    "text": Fields({**_plain("type", "media_type"), "data": TEXT}),
                    "content": Fields({**_plain("type"), "content": _ANTHROPIC_CONTENT}),
                }
            ),
        },
        needs=frozenset({"source"}),
    ),
    # `source` only names where the text comes from.
    "search_result": Fields({"content": _ANTHROPIC_CONTENT}, keeps_others=True),
    "tool_use": _ANYTHING,
    "tool_result": Fields({"content": _ANTHROPIC_CONTENT}, keeps_others=True),
    "tool_reference": _ANYTHING,
    "thinking": _ANYTHING,
    "redacted_thinking": _ANYTHING,
    "compaction": _ANYTHING,
}
_ANTHROPIC_TOOL_FIELDS = _plain("type", "name", "cache_control", "defer_loading", "strict")
# The date at the end of a type (`bash_20250124`) is left out here.
_ANTHROPIC_TOOLS = Variants(
    {
        "custom": Fields(
            {
                **_ANTHROPIC_TOOL_FIELDS,
                **_plain("description", "input_schema", "input_examples"),
                **_plain("eager_input_streaming"),
            }
        ),
        "bash": Fields(_ANTHROPIC_TOOL_FIELDS),
        "text_editor": Fields({**_ANTHROPIC_TOOL_FIELDS, **_plain("max_characters")}),
        "memory": Fields(_ANTHROPIC_TOOL_FIELDS),
        "computer": Fields(
            {
                **_ANTHROPIC_TOOL_FIELDS,
                **_plain("display_width_px", "display_height_px", "display_number", "enable_zoom"),
            }
        ),
    },
    default="custom",
)
_ANTHROPIC = FormatRules(
    Fields(
        {
            **_plain("model", "stream", "cache_control", "context_management"),
            "metadata": Fields(_plain("user_id")),
            "messages": Items(
                Fields({**_plain("role"), "content": _ANTHROPIC_CONTENT}, needs=frozenset({"role"}))
            ),
            "system": Items(Variants({"text": _TEXT_BLOCK})),
            "tools": Items(_ANTHROPIC_TOOLS, removes=True),
            **_plain("tool_choice", "temperature", "top_p", "top_k", "parallel_tool_calls"),
            **_plain("max_tokens", "stop_sequences", "thinking", "output_config"),
            **_plain("output_format"),
        }
    ),
    native_fields=frozenset(
        {
            *("model", "stream", "cache_control", "context_management", "metadata"),
            *("output_format",),
        }
    ),
)

# --- Gemini generateContent and streamGenerateContent ---

_INLINE_DATA = Fields({**_plain("mimeType", "displayName"), "data": BASE64})
_GEMINI_PART = Fields(
    {
        **_plain("thought", "thoughtSignature", "functionCall"),
        **_plain("videoMetadata", "mediaResolution"),
        "text": TEXT,
        "inlineData": _INLINE_DATA,
        "functionResponse": Fields(
            {"parts": Items(Fields({"inlineData": _INLINE_DATA}, needs=frozenset({"inlineData"})))},
            keeps_others=True,
        ),
    },
    needs=frozenset({"text", "inlineData", "functionCall", "functionResponse", "thoughtSignature"}),
)
_GEMINI_CONTENT = Fields({**_plain("role"), "parts": Items(_GEMINI_PART)})
_GEMINI = FormatRules(
    Fields(
        {
            **_plain("model", "safetySettings"),
            "contents": Items(_GEMINI_CONTENT),
            "generationConfig": Fields(
                {
                    **_plain("temperature", "topP", "topK", "candidateCount", "maxOutputTokens"),
                    **_plain("stopSequences", "seed", "presencePenalty", "frequencyPenalty"),
                    **_plain("responseMimeType", "responseSchema", "responseJsonSchema"),
                    **_plain("responseLogprobs", "logprobs", "thinkingConfig", "mediaResolution"),
                }
            ),
            "systemInstruction": _GEMINI_CONTENT,
            "tools": Items(
                Fields(_plain("functionDeclarations"), needs=frozenset({"functionDeclarations"})),
                removes=True,
            ),
            "toolConfig": Fields(_plain("functionCallingConfig")),
        }
    ),
    native_fields=frozenset({"model", "safetySettings"}),
    refused_fields={"cachedContent": SEND_WHOLE_HISTORY},
)

RULES = {CHAT: _CHAT, RESPONSES: _RESPONSES, ANTHROPIC: _ANTHROPIC, GEMINI: _GEMINI}
"""The tables by API format."""
