"""The interface of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from cooperbench.runner.budget import Budget
from cooperbench.runner.display import Display
from cooperbench.runner.plan import Plan
from cooperbench.sandbox.contract import ResourceUse


class Executor(ABC):
    """A place where pairs run. `start`, `run` and `close` are called once each, from one thread."""

    def start(self, plans: Sequence[Plan]) -> list[str]:
        """Open what the plans need; return notes for the user.

        Raises:
            UserError: The plans cannot run here.
        """
        del plans
        return []

    @abstractmethod
    def run(self, plans: Sequence[Plan], display: Display, budget: Budget) -> None:
        """Run and evaluate what the plans have left. Results are on disk when this returns."""

    def resource_use(self) -> ResourceUse | None:
        """Return what the sandboxes of this call have used, if the backend measures it."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything. Called in any case, also after `start` or `run` has failed."""
