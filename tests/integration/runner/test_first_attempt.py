"""A run whose first call left no result accepts another configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.base import OracleAgent
from cooperbench.errors import RunStopped, UserError
from tests.support.runner.helpers import run_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.agents.session import AgentSession

AGENT = "tests.integration.runner.test_first_attempt:Picky"


class Picky:
    """Stops the run if its model is unknown, as an adapter does after a 404."""

    def run(self, session: AgentSession) -> None:
        if session.model != "vendor/known":
            raise UserError(f"model {session.model!r} does not exist")
        OracleAgent().run(session)


def test_another_model_after_a_failed_first_call(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="'vendor/unknown' does not exist"):
        run_tiny(tmp_path, AGENT, model_name="vendor/unknown")
    left = run_tiny(tmp_path, AGENT, model_name="vendor/known", auto_eval=False)
    assert left.result["agents"]["agent1"]["model"] == "vendor/known"
    with pytest.raises(UserError, match=r"model_name: 'vendor/known' → 'vendor/unknown'"):
        run_tiny(tmp_path, AGENT, model_name="vendor/unknown", force=True)
