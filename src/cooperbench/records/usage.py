"""Usage of models and sandboxes, as result.json and summary.json record it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from cooperbench.models import Usage


class HasUsage(Protocol):
    """A record that says what an agent, a pair or a run has used; None for what is not known."""

    @property
    def cost(self) -> float | None:
        """US dollars, without the calls to models whose price is not known."""
        ...

    @property
    def model_calls(self) -> int | None:
        """Number of calls to models."""
        ...

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens sent to models."""
        ...

    @property
    def completion_tokens(self) -> int | None:
        """Tokens received from models."""
        ...

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the provider had cached."""
        ...

    @property
    def model_seconds(self) -> float | None:
        """Time spent waiting for models."""
        ...

    @property
    def unpriced_calls(self) -> int | None:
        """Calls to models whose price is not known."""
        ...

    @property
    def sandbox_seconds(self) -> float | None:
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
    """Return the sums over agents, pairs or settings. What is not known counts as 0."""
    entries = list(records)
    return UsageTotals(
        cost=sum(entry.cost or 0.0 for entry in entries),
        model_calls=sum(entry.model_calls or 0 for entry in entries),
        prompt_tokens=sum(entry.prompt_tokens or 0 for entry in entries),
        completion_tokens=sum(entry.completion_tokens or 0 for entry in entries),
        cached_tokens=sum(entry.cached_tokens or 0 for entry in entries),
        model_seconds=round(sum(entry.model_seconds or 0.0 for entry in entries), 3),
        unpriced_calls=sum(entry.unpriced_calls or 0 for entry in entries),
        sandbox_seconds=round(sum(entry.sandbox_seconds or 0.0 for entry in entries), 3),
    )


def sum_if_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of some values; None if one of them is not known."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def count_if_known(values: Iterable[int | None]) -> int | None:
    """Return the sum of some counts; None if one of them is not known."""
    total = sum_if_known(values)
    return None if total is None else int(total)
