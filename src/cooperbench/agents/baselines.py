"""The two ends of every scale, without a model: an agent that does nothing, and one that knows the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.errors import AgentFailure

if TYPE_CHECKING:
    from cooperbench.agents.session import Session


class NopAgent:
    """It must score 0."""

    uses_model = False

    def run(self, session: Session) -> None:
        session.think("Nothing to do.")


class OracleAgent:
    """Alone a golden patch must pass; together it shows what merging costs."""

    uses_model = False

    def run(self, session: Session) -> None:
        """One feature: its golden patch. Several: the task's combined patch, since golden patches may conflict."""
        features = session.seat.features
        source = features[0].patch if len(features) == 1 else session.pair.task.combined_patch
        result = session.apply_patch(source.read_bytes(), source.name)
        if result.returncode != 0:
            raise AgentFailure(
                "gave_up", f"{source.name} does not apply: {result.stderr_read().strip()[:200]}"
            )
