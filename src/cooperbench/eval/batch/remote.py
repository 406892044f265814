"""Evaluations that are not carried out here, pair by pair, but handed over all at once.

A backend with `evaluate_remotely` gets them as one order; those of a backend with `batch_settings` go to Google Batch.
What is then written is what an `Evaluator` would have written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.models import EvalNetwork, Pair, Setting
    from cooperbench.sandbox.contract import EvalBackend, ResourceUse
    from cooperbench.storage import ExperimentPaths


@dataclass(frozen=True)
class Order:
    """All that is to be judged."""

    paths: ExperimentPaths
    concurrency: int
    """How many at once, at most."""
    test_timeout_seconds: int
    eval_network: EvalNetwork
    canary: bool
    work: Sequence[tuple[Pair, Setting]] = ()


class Listener(Protocol):
    """Told what happens. (A `Display` is one.)"""

    def note(self, text: str) -> None: ...

    def evaluated(self, pair: Pair, evaluation: dict[str, Any]) -> None: ...


class RemoteEvaluation(Protocol):
    def evaluate_remotely(self, order: Order, listener: Listener, stop: threading.Event) -> None:
        """Until each pair has an eval.json: a verdict, or an error that is nobody's failure.

        `Interrupted` or KeyboardInterrupt where it was stopped; nothing goes on elsewhere then.
        """
        ...


def remote_evaluation_of(backend: EvalBackend) -> RemoteEvaluation | None:
    """None for a backend whose evaluations run in sandboxes, one by one."""
    if callable(getattr(backend, "evaluate_remotely", None)):
        return cast(RemoteEvaluation, backend)
    if hasattr(backend, "batch_settings"):
        return _OnBatch(cast(BatchBackend, backend))
    return None


class BatchBackend(Protocol):
    """A backend whose evaluations go to Google Batch."""

    @property
    def batch_settings(self) -> GcpSettings: ...

    def add_use(self, used: ResourceUse) -> None:
        """Told of each job that has ended."""
        ...


@dataclass(frozen=True)
class _OnBatch:
    backend: BatchBackend

    def evaluate_remotely(self, order: Order, listener: Listener, stop: threading.Event) -> None:
        from cooperbench.eval.batch.evaluation import evaluate_on_batch

        evaluate_on_batch(self.backend.batch_settings, order, listener, stop, self.backend.add_use)
