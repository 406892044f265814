"""Evaluations that go to Google Batch all at once; what is written is what `evaluate_and_write` would have written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cooperbench.models import EvalNetwork, Pair, Setting
from cooperbench.storage import ExperimentPaths


@dataclass(frozen=True)
class Order:
    """All that is to be judged."""

    paths: ExperimentPaths
    concurrency: int
    """How many at once, at most."""
    test_timeout_seconds: int
    eval_network: EvalNetwork
    canary: bool = True
    work: Sequence[tuple[Pair, Setting]] = ()


class Listener(Protocol):
    """Told what happens. (A `Display` is one.)"""

    def note(self, text: str) -> None: ...

    def evaluated(self, pair: Pair, evaluation: dict[str, Any]) -> None: ...
