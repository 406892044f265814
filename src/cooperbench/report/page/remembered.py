"""A pair whose large files are read once, for the time in which several parts of the page look at it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from cooperbench.report.records import Conversation, PairData, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


@dataclass(frozen=True)
class RememberedPair(PairData):
    """Keep it only as long as the pair is looked at: it holds whole trajectories."""

    kept: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    def trajectory(self, agent_id: str) -> Trajectory:
        return self._once(f"trajectory {agent_id}", lambda: PairData.trajectory(self, agent_id), Trajectory)

    def conversation(self) -> Conversation:
        return self._once("conversation", lambda: PairData.conversation(self), Conversation)

    def _once(self, name: str, read: Callable[[], T], kind: type[T]) -> T:
        if name not in self.kept:
            self.kept[name] = read()
        found = self.kept[name]
        assert isinstance(found, kind)
        return found


def remembered(pair: PairData) -> RememberedPair:
    return RememberedPair(*(getattr(pair, one.name) for one in fields(PairData)))
