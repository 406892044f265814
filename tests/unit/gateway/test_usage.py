"""Token counts of each API format."""

from __future__ import annotations

from typing import Any

import pytest

from cooperbench.gateway.usage import read_token_counts

ANTHROPIC_USAGE = {
    "input_tokens": 600,
    "cache_read_input_tokens": 300,
    "cache_creation_input_tokens": 100,
    "output_tokens": 50,
}
GEMINI_USAGE = {
    "promptTokenCount": 1000,
    "candidatesTokenCount": 30,
    "thoughtsTokenCount": 20,
    "cachedContentTokenCount": 300,
    "totalTokenCount": 1050,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cached tokens are not in Anthropic's input": ("anthropic", {"usage": ANTHROPIC_USAGE}),
    "thoughts are not in Gemini's candidates": ("gemini", {"usageMetadata": GEMINI_USAGE}),
    "some Gemini models include them": (
        "gemini",
        {"usageMetadata": {**GEMINI_USAGE, "candidatesTokenCount": 50}},
    ),
    "responses": (
        "responses",
        {
            "usage": {
                "input_tokens": 1000,
                "output_tokens": 50,
                "input_tokens_details": {"cached_tokens": 300},
            }
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_counts_include_everything_that_is_billed(case: str) -> None:
    api_format, reply = CASES[case]
    counts = read_token_counts(api_format, reply)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (1000, 50)
    assert counts["prompt_tokens_details"]["cached_tokens"] == 300


@pytest.mark.parametrize("api_format", ["chat", "responses", "anthropic", "gemini"])
def test_a_reply_without_usage_counts_nothing(api_format: str) -> None:
    assert read_token_counts(api_format, {}).get("prompt_tokens", 0) == 0
