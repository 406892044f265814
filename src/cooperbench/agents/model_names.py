"""Vendors of models that are given without one."""

from __future__ import annotations

_VENDORS = {
    "claude-": "anthropic",
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1-": "openai",
    "o3-": "openai",
    "o4-": "openai",
    "gemini-": "gemini",
    "mistral-": "mistral",
    "deepseek-": "deepseek",
    "grok-": "xai",
    "command-": "cohere",
}


def with_vendor(model: str) -> str:
    """Return the model with its vendor: `anthropic/claude-sonnet-4-5` for `claude-sonnet-4-5`.

    Names that have a vendor already, and names with an unknown prefix, are returned unchanged.
    """
    if "/" in model:
        return model
    for prefix, vendor in _VENDORS.items():
        # `o3` is a complete name, so the end of the name counts as a separator.
        if f"{model}-".startswith(prefix):
            return f"{vendor}/{model}"
    return model
