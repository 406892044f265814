"""The budget of an experiment (`--max-cost`)."""

from __future__ import annotations

import threading

from cooperbench.models import Usage
from cooperbench.records.summary import BudgetSummary


class Budget:
    """Dollars that an experiment may spend. Its methods may be called from any thread.

    Once the budget is spent no new pair starts. Pairs that run already continue, so the final cost
    may exceed it.
    """

    def __init__(self, limit: float | None, spent: float = 0.0) -> None:
        self._limit = limit
        self._spent = spent
        self._pairs_not_started = 0
        self._lock = threading.Lock()

    def spend(self, usage: Usage) -> None:
        """Add the cost of a model call."""
        with self._lock:
            self._spent += usage.cost

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left for another pair."""
        return self._limit is not None and self._spent >= self._limit

    def try_start(self) -> bool:
        """Return whether another pair may start; count it if it may not."""
        with self._lock:
            if not self.is_spent:
                return True
            self._pairs_not_started += 1
            return False

    def record(self) -> BudgetSummary | None:
        """Return the budget as summary.json has it; None without a limit."""
        if self._limit is None:
            return None
        return BudgetSummary(
            max_cost=self._limit,
            spent=self._spent,
            pairs_not_started=self._pairs_not_started,
        )
