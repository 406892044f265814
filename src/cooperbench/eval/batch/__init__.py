"""Evaluations that are not carried out here, pair by pair, but handed over all at once.

A backend with `evaluate_remotely` gets them as one order; those of a backend with `batch_settings` go to Google Batch.
What is then written is what an `Evaluator` would have written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

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


def remote_evaluation_of(backend: EvalBackend) -> Callable[[Order, Listener, threading.Event], None] | None:
    """None for a backend whose evaluations run in sandboxes, one by one.

    What it returns ends when each pair has an eval.json: a verdict, or an error that is nobody's failure. Where it is
    stopped by the event it raises `Interrupted`, and nothing goes on elsewhere.
    """
    if own := getattr(backend, "evaluate_remotely", None):
        return cast("Callable[[Order, Listener, threading.Event], None]", own)
    if settings := getattr(backend, "batch_settings", None):
        from cooperbench.eval.batch.evaluation import evaluate_on_batch

        return partial(evaluate_on_batch, settings)
    return None
