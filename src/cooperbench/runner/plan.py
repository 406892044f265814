"""What is left to do, read from what is on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.eval.record import is_evaluated
from cooperbench.storage import is_finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.models import Pair
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
        if not is_finished(paths):
            to_run.append(pair)
        elif config.auto_eval and not is_evaluated(paths, pair, config.setting, config.eval_network):
            to_evaluate.append(pair)
    return Plan(tuple(pairs), tuple(to_run), tuple(to_evaluate))
