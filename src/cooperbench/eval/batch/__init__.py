"""Evaluations that are not carried out here, pair by pair, but go to Google Batch all at once.

What is then written is what `evaluate_and_write` would have written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from cooperbench.models import EvalNetwork, Pair, Setting
from cooperbench.sandbox.contract import EvalBackend
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


def batch_evaluation_of(backend: EvalBackend) -> Callable[[Order, Listener, threading.Event], None] | None:
    """By the settings in `backend.batch_settings`; None for a backend whose evaluations run in its sandboxes.

    What it returns ends when each pair has an eval.json. Stopped by the event it raises `Interrupted`.
    """
    settings = getattr(backend, "batch_settings", None)
    if settings is None:
        return None
    from cooperbench.eval.batch.evaluation import evaluate_on_batch

    return partial(evaluate_on_batch, settings)
