"""summary.json: rates, costs and one line per pair of a whole run."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from cooperbench.records.files import Record


class Rate(msgspec.Struct, kw_only=True, frozen=True):
    """A share of pairs or agents."""

    passed: int
    of: int
    rate: float | None
    """None if `of` is 0."""


class Rates(msgspec.Struct, kw_only=True, frozen=True):
    """The share of evaluated pairs with each kind of success."""

    individual_success: Rate
    merge_success: Rate
    merged_success: Rate
    overall_success: Rate
    overall_success_strict: Rate


class UnsoundPairs(msgspec.Struct, kw_only=True, frozen=True):
    """Evaluated pairs with a feature whose tests pass without it."""

    pairs: int
    rates: Rates
    """Rates without these pairs."""


class PairSummary(msgspec.Struct, kw_only=True, frozen=True):
    """One pair in a summary."""

    repo: str
    task_id: int | None
    features: list[int]
    state: str
    """`passed`, `failed`, `error`, `no_reference`, `unevaluated`, `missing` or `broken`."""
    individual_success: bool | None
    merge_success: bool | None
    merged_success: bool | None
    overall_success: bool | None
    overall_success_strict: bool | None
    merge_status: str | None
    strategy: str | None
    unsound: list[int]
    suspicious: bool
    network: str | None
    agent_statuses: dict[str, str] = {}
    """How each agent ended, by agent id; empty in older files."""
    attempts: int = 1
    """Attempts at the pair, with those that failed, were interrupted or were replaced."""
    messages: int | None
    cost: float | None
    unpriced_calls: int | None
    error: str | None


class SettingSummary(msgspec.Struct, kw_only=True, frozen=True):
    """All pairs of one setting."""

    pairs: int
    evaluated: int
    """Pairs with a verdict; the rates are over these."""
    errors: int
    no_reference: int
    unevaluated: int
    missing: int
    broken: int
    """Pairs with a file that cannot be read."""
    rates: Rates
    unsound: UnsoundPairs | None
    suspicious: int
    successes: int = 0
    """Successes of a patch with a feature; 0 in older files."""
    unconfirmed: int = 0
    """Successes that no confirmation run supports; 0 in older files."""
    agent_success: Rate
    agent_outcomes: dict[str, int]
    """Number of agents by status."""
    merge_outcomes: dict[str, int]
    """Number of evaluated pairs by merge status."""
    messages: int
    cost: float
    """US dollars, without the calls to models whose price is not known."""
    model_calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    model_seconds: float
    unpriced_calls: int
    sandbox_seconds: float
    steps: int
    agent_seconds: float
    test_seconds: float
    results: list[PairSummary]


class BudgetSummary(msgspec.Struct, kw_only=True, frozen=True):
    """The state of `--max-cost`."""

    max_cost: float
    spent: float
    pairs_not_started: int


class SandboxUse(msgspec.Struct, kw_only=True, frozen=True):
    """Resources that the sandboxes of all calls have reserved."""

    count: int
    what: str
    """`sandbox` or `machine`."""
    seconds: float
    vcpu_seconds: float
    gib_seconds: float


class Summary(Record, kw_only=True, frozen=True):
    """A whole run, by setting."""

    SCHEMA: ClassVar[str] = "cooperbench.summary/1"
    OMITTED_IF_NONE: ClassVar[frozenset[str]] = frozenset(("imported",))

    run_name: str
    time: str
    version: str
    imported: str | None = None
    """Name of the folder that the run was imported from; None for runs of our own."""
    settings: dict[str, SettingSummary]
    errors: int
    cost: float
    """US dollars, all settings together; so are the next fields."""
    model_calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    model_seconds: float
    unpriced_calls: int
    sandbox_seconds: float
    spent: float
    """US dollars, including attempts that were interrupted or replaced."""
    budget: BudgetSummary | None
    """None without `--max-cost`."""
    sandboxes: SandboxUse | None
    """None if the backend does not report it."""
