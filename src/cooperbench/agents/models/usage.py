"""What one model call used: tokens and dollars, from LiteLLM's answer and its price list.

A model that the list does not have is counted as unpriced, never as free; one that the list has at zero is free.
"""

from __future__ import annotations

from typing import Any

from cooperbench.models import Usage


def usage_of(response: Any, model: str, seconds: float, litellm: Any) -> Usage:
    """`seconds` is how long the agent waited for this answer."""
    tokens = getattr(response, "usage", None)
    cost = _cost(response, model, litellm)
    return Usage(
        cost=cost or 0.0,
        prompt_tokens=_count(tokens, "prompt_tokens"),
        completion_tokens=_count(tokens, "completion_tokens"),
        cached_tokens=_cached(tokens),
        calls=1,
        model_seconds=seconds,
        unpriced_calls=int(cost is None),
    )


def _cost(response: Any, model: str, litellm: Any) -> float | None:
    try:
        cost = float(litellm.completion_cost(response, model=model))
    except Exception:
        # Whatever it stumbles over, it is the price that is not known; the answer itself is good.
        return None
    return cost if cost > 0 or _is_listed(model, litellm) else None


def _is_listed(model: str, litellm: Any) -> bool:
    prices = litellm.model_cost
    return any("input_cost_per_token" in prices.get(name, {}) for name in (model, model.partition("/")[2]))


def _cached(tokens: Any) -> int:
    """Of the prompt, as providers say it in two ways."""
    details = getattr(tokens, "prompt_tokens_details", None)
    return _count(details, "cached_tokens") or _count(tokens, "cache_read_input_tokens")


def _count(source: Any, name: str) -> int:
    value = getattr(source, name, None)
    return int(value) if isinstance(value, (int, float)) else 0
