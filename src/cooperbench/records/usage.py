"""Usage of models and sandboxes, as result.json and summary.json record it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from cooperbench.models import Usage


class HasUsage(Protocol):
    """A record that says what an agent, a pair or a run has used."""

    @property
    def cost(self) -> float:
        """US dollars, without the calls to models whose price is not known."""
        ...

    @property
    def model_calls(self) -> int:
        """Number of calls to models."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Tokens sent to models."""
        ...

    @property
    def completion_tokens(self) -> int:
        """Tokens received from models."""
        ...

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the provider had cached."""
        ...

    @property
    def model_seconds(self) -> float:
        """Time spent waiting for models."""
        ...

    @property
    def unpriced_calls(self) -> int:
        """Calls to models whose price is not known."""
        ...

    @property
    def sandbox_seconds(self) -> float:
        """Time spent on commands in sandboxes."""
        ...


class UsageTotals(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of `HasUsage` by themselves, for `**msgspec.structs.asdict(totals)`."""

    cost: float = 0.0
    """US dollars, without the calls to models whose price is not known."""
    model_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the provider had cached."""
    model_seconds: float = 0.0
    """Time spent waiting for models."""
    unpriced_calls: int = 0
    """Calls to models whose price is not known."""
    sandbox_seconds: float = 0.0
    """Time spent on commands in sandboxes."""


def agent_usage(usage: Usage, sandbox_seconds: float) -> UsageTotals:
    """Return what one agent has used."""
    return UsageTotals(
        cost=usage.cost,
        model_calls=usage.calls,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        model_seconds=round(usage.model_seconds, 3),
        unpriced_calls=usage.unpriced_calls,
        sandbox_seconds=round(sandbox_seconds, 3),
    )


def total_usage(records: Iterable[HasUsage]) -> UsageTotals:
    """Return the sums over agents, pairs or settings."""
    entries = list(records)
    return UsageTotals(
        cost=sum(entry.cost for entry in entries),
        model_calls=sum(entry.model_calls for entry in entries),
        prompt_tokens=sum(entry.prompt_tokens for entry in entries),
        completion_tokens=sum(entry.completion_tokens for entry in entries),
        cached_tokens=sum(entry.cached_tokens for entry in entries),
        model_seconds=round(sum(entry.model_seconds for entry in entries), 3),
        unpriced_calls=sum(entry.unpriced_calls for entry in entries),
        sandbox_seconds=round(sum(entry.sandbox_seconds for entry in entries), 3),
    )
