"""What is left to do, read from what is on disk, and what it may cost.

No new pair starts once `--max-cost` is reached; those at work go on to their own limits, so the end may lie above it by
what they still spend. Calls of models without a known price are not in it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.eval.evaluator import is_evaluated
from cooperbench.storage import is_finished, is_undamaged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.models import Pair, Usage
    from cooperbench.runner.config import RunConfig


@dataclass(frozen=True)
class Plan:
    pairs: tuple[Pair, ...]
    """All that were asked for."""
    to_run: tuple[Pair, ...]
    to_evaluate: tuple[Pair, ...]
    """Those that have a result already and lack only its evaluation."""

    @property
    def finished(self) -> int:
        return len(self.pairs) - len(self.to_run)


def something_to_run(config: RunConfig, pairs: Sequence[Pair]) -> bool:
    """Whether agents will be at work at all."""
    return config.force or any(not is_finished(config.paths.pair(pair, config.setting)) for pair in pairs)


def make_plan(config: RunConfig, pairs: Sequence[Pair]) -> Plan:
    if config.force:
        return Plan(tuple(pairs), tuple(pairs), ())
    to_run, to_evaluate = [], []
    for pair in pairs:
        paths = config.paths.pair(pair, config.setting)
        if not is_finished(paths) or not is_undamaged(paths):
            to_run.append(pair)
        elif config.auto_eval and not is_evaluated(
            paths, pair, config.setting, config.eval_network, config.canary
        ):
            to_evaluate.append(pair)
    return Plan(tuple(pairs), tuple(to_run), tuple(to_evaluate))


class Budget:
    """Spent from any thread."""

    def __init__(self, limit: float | None, spent: float = 0.0) -> None:
        self._limit = limit
        self._spent = spent
        self._not_started: list[Pair] = []
        self._lock = threading.Lock()

    def spend(self, usage: Usage) -> None:
        with self._lock:
            self._spent += usage.cost

    @property
    def is_spent(self) -> bool:
        with self._lock:
            return self._limit is not None and self._spent >= self._limit

    def lets_start(self, pair: Pair) -> bool:
        """Whether there is something left for another pair; one that there is not is remembered."""
        with self._lock:
            if self._limit is None or self._spent < self._limit:
                return True
            self._not_started.append(pair)
            return False

    def record(self) -> dict[str, float | int] | None:
        """As it stands in summary.json; None without a limit."""
        if self._limit is None:
            return None
        with self._lock:
            return {
                "max_cost": self._limit,
                "spent": self._spent,
                "pairs_not_started": len(self._not_started),
            }
