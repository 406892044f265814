"""What a call cost: by LiteLLM's list, which agents may add to; a model that is not in it is unpriced, never free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.agents.llm import load_litellm, usage_of

if TYPE_CHECKING:
    from cooperbench.models import Usage

pytestmark = [
    pytest.mark.xdist_group("litellm"),
    # About LiteLLM's own declarations.
    pytest.mark.filterwarnings("ignore:Item .* on TypedDict class:UserWarning"),
]


def used(model: str, **more: Any) -> Usage:
    litellm = load_litellm()
    usage = litellm.Usage(prompt_tokens=1000, completion_tokens=100, total_tokens=1100, **more)
    return usage_of(litellm.ModelResponse(model=model.partition("/")[2], usage=usage), model, 1.0)


def test_a_known_price_counts_each_kind_of_token() -> None:
    cached = used("openai/gpt-4o", prompt_tokens_details={"cached_tokens": 400})
    assert cached.cost == pytest.approx(0.0015 + 0.0005 + 0.001)
    assert cached.unpriced_calls == 0


def test_a_price_counts_from_when_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    litellm, model = load_litellm(), "openai/of-the-prices-test"
    monkeypatch.setattr(litellm, "model_cost", dict(litellm.model_cost))
    for _ in range(2):
        assert (used(model).cost, used(model).unpriced_calls) == (0.0, 1)
    price = {
        "input_cost_per_token": 1e-6,
        "output_cost_per_token": 1e-5,
        "litellm_provider": "openai",
    }
    litellm.register_model({model: price}, persist_across_reloads=False)
    assert used(model).cost == pytest.approx(0.002)
    assert used(model).unpriced_calls == 0


def test_unreadable_usage_affects_one_call() -> None:
    model = "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    litellm = load_litellm()
    broken = litellm.ModelResponse(model=model.partition("/")[2])
    broken.usage = "none"
    assert usage_of(broken, model, 1.0).cost == 0
    assert used(model).cost > 0


def test_a_cost_that_the_provider_states_counts_without_a_price() -> None:
    stated = used("perplexity/of-the-prices-test", cost=0.25)
    assert (stated.cost, stated.unpriced_calls) == (0.25, 0)
    assert used("perplexity/of-the-prices-test").unpriced_calls == 1
