"""An agent that is a program and asks its model in streams through the gateway, without a framework to install."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.agents.worker import FrameworkAgent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = Path(__file__).with_name("worker_program.py")


class StreamingAgent(FrameworkAgent):
    model_section = ("model", "model_kwargs")

    @classmethod
    def version(cls) -> str:
        return "1"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-B", str(PROGRAM)]

    def environment(self) -> Mapping[str, str]:
        return {"NO_PROXY": "*", "no_proxy": "*"}
