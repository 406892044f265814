"""Token counts of replies, read from each API format in LiteLLM's terms, which prices them."""

from __future__ import annotations

from cooperbench.gateway.api_formats import ANTHROPIC, GEMINI, RESPONSES, JsonMapping, JsonObject


def read_token_counts(api_format: str, reply: JsonMapping) -> JsonObject:
    """Return arguments for `litellm.Usage`."""
    if api_format == GEMINI:
        return _read_gemini(reply.get("usageMetadata") or {})
    usage = reply.get("usage") or {}
    if api_format == ANTHROPIC:
        return _read_anthropic(usage)
    if api_format == RESPONSES:
        return _read_responses(usage)
    return dict(usage)


def _read_anthropic(usage: JsonMapping) -> JsonObject:
    """Add cached tokens to the prompt: Anthropic's `input_tokens` does not include them."""
    read = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    uncached = usage.get("input_tokens") or 0
    prompt = uncached + read + written
    completion = usage.get("output_tokens") or 0
    details: JsonObject = {
        "cached_tokens": read,
        "cache_creation_tokens": written,
        "text_tokens": uncached,
    }
    # Entries that live for one hour cost more than those that live for five minutes.
    by_lifetime = usage.get("cache_creation")
    if isinstance(by_lifetime, dict):
        details["cache_creation_token_details"] = by_lifetime
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": details,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
    }


def _read_responses(usage: JsonMapping) -> JsonObject:
    prompt = usage.get("input_tokens") or 0
    completion = usage.get("output_tokens") or 0
    input_details = usage.get("input_tokens_details") or {}
    output_details = usage.get("output_tokens_details") or {}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": input_details.get("cached_tokens") or 0},
        "completion_tokens_details": {
            "reasoning_tokens": output_details.get("reasoning_tokens") or 0
        },
    }


def _read_gemini(usage: JsonMapping) -> JsonObject:
    """Add the tokens of thoughts to the completion: `candidatesTokenCount` does not include them.

    Some models include them nevertheless. Then the counts add up to the total without thoughts.
    """
    cached = usage.get("cachedContentTokenCount") or 0
    thoughts = usage.get("thoughtsTokenCount") or 0
    prompt = (usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0)
    completion = usage.get("candidatesTokenCount") or 0
    total = usage.get("totalTokenCount")
    if prompt + completion != total:
        completion += thoughts
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thoughts},
        "cache_read_input_tokens": cached,
    }
