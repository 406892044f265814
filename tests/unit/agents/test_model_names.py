from __future__ import annotations

import pytest

from cooperbench.agents.llm import load_litellm
from cooperbench.agents.model_names import with_vendor


@pytest.mark.parametrize(
    ("model", "full"),
    [
        ("claude-3-5-sonnet-20241022", "anthropic/claude-3-5-sonnet-20241022"),
        ("gpt-4o", "openai/gpt-4o"),
        ("o3", "openai/o3"),
        ("o4-mini", "openai/o4-mini"),
        ("chatgpt-4o-latest", "openai/chatgpt-4o-latest"),
        ("gemini-2.5-pro", "gemini/gemini-2.5-pro"),
        ("mistral-large-latest", "mistral/mistral-large-latest"),
        ("deepseek-chat", "deepseek/deepseek-chat"),
        ("grok-4", "xai/grok-4"),
        ("command-r-plus", "cohere/command-r-plus"),
        ("bedrock/claude-3", "bedrock/claude-3"),
        ("o3000", "o3000"),
        ("my-model", "my-model"),
    ],
)
def test_vendor_follows_from_the_prefix(model: str, full: str) -> None:
    assert with_vendor(model) == full


@pytest.mark.xdist_group("litellm")
def test_litellm_knows_the_vendors() -> None:
    litellm = load_litellm()
    for model in ("claude-3-5-sonnet-20241022", "o3", "grok-4", "command-r-plus", "mistral-x"):
        vendor, _, name = with_vendor(model).partition("/")
        assert litellm.get_llm_provider(with_vendor(model))[:2] == (name, vendor)
