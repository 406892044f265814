"""The state in which an attempt at a pair begins.

By default nothing has happened yet, or the agents replay all of a recorded run. Other packages can
start pairs in another state (`RunConfig.start`), without the lifecycle of a pair knowing how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.gateway.recording import Exchanges, ListFiles
from cooperbench.runner.agent_code import AgentCode
from cooperbench.team.channel import Channel

if TYPE_CHECKING:
    from cooperbench.agents.session import AgentSession
    from cooperbench.models import Pair
    from cooperbench.runner.config import AgentSpec, RunConfig
    from cooperbench.storage import AgentPaths
    from cooperbench.team.team import Team


@dataclass(frozen=True)
class Start:
    """The state in which all attempts at the pairs of a run begin."""

    @property
    def label(self) -> str | None:
        """The name of this state in config.json; None for the default."""
        return None

    def begin(self, config: RunConfig, pair: Pair) -> PairStart:
        """Begin an attempt at a pair."""
        return PairStart(config, pair)


class PairStart:
    """The beginning of one attempt at a pair. Its methods are called in this order."""

    def __init__(self, config: RunConfig, pair: Pair) -> None:
        self.config = config
        self.pair = pair

    def make_channel(self, agent_id: str, agent_ids: Sequence[str]) -> Channel:
        """Return the rules for the messages of an agent."""
        # Without the name of an arm: losses are the same.
        label = f"{self.pair.task.label} {self.pair.name}"
        return Channel(self.config.channel_rules, agent_id, agent_ids, label)

    def join(self, team: Team) -> None:
        """Get the communication of the agents, before any of them begins."""

    def make_code(self, agent_id: str, spec: AgentSpec) -> AgentCode:  # noqa: ARG002  # see module
        """Return the code of an agent."""
        return AgentCode(spec.agent)

    def open_exchanges(
        self, agent_id: str, files: AgentPaths, list_files: ListFiles
    ) -> Exchanges | None:
        """Return the model exchanges to record or to replay; None without either."""
        recording = self.config.recording(self.pair, agent_id)
        if recording is not None:
            return Exchanges(None, recording)
        if self.config.record:
            return Exchanges(files.exchanges, list_files=list_files)
        return None

    def prepare(self, session: AgentSession) -> None:
        """Get the session of an agent before the agent begins."""

    def on_agent_end(self, agent_id: str, status: str, patch: bytes) -> None:
        """Get the outcome of an agent."""

    def check(self) -> None:
        """Raise an error if the agents did not begin in the state that was asked for."""

    def close(self) -> None:
        """End everything that still waits. Closing again does nothing."""


DEFAULT_START = Start()
