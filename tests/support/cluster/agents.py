"""Agents for tests of jobs: they leave a file when they begin, and go on when they are let."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.agents.base import OracleAgent
from cooperbench.errors import InfraError
from cooperbench.models import Usage

if TYPE_CHECKING:
    from cooperbench.agents.session import AgentSession

FOLDER = "COOPERBENCH_TEST_FOLDER"
GATED = "tests.support.cluster.agents:Gated"
FAILING = "tests.support.cluster.agents:Failing"
SPENDER = "tests.support.cluster.agents:Spender"
COST = 0.25


class Gated:
    """Waits for a file `open` and applies the golden patch then."""

    uses_model = False

    def run(self, session: AgentSession) -> None:
        folder = Path(os.environ[FOLDER])
        (folder / f"{session.pair.name}.{session.slot.agent_id}.{os.getpid()}").touch()
        while not (folder / "open").exists():
            session.execute("sleep 0.1")
        OracleAgent().run(session)


class Failing:
    """Fails in the first process that it is in, as on a node whose disk is full."""

    uses_model = False

    def run(self, session: AgentSession) -> None:
        folder = Path(os.environ[FOLDER])
        (folder / f"{session.pair.name}.{session.slot.agent_id}.{os.getpid()}").touch()
        if len({path.name.rpartition(".")[2] for path in folder.iterdir()}) == 1:
            raise session.remember(InfraError("the disk of this node is full"))
        OracleAgent().run(session)


class Spender:
    uses_model = False

    def run(self, session: AgentSession) -> None:
        session.reply("I spend", Usage(cost=COST, calls=1))
        OracleAgent().run(session)
