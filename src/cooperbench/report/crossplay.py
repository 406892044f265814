"""Who works with whom, and how well: a matrix over the configurations (model and framework) of the two agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.report.statistics.clusters import Observation
from cooperbench.report.statistics.intervals import Estimate, rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.report.choices import Method
    from cooperbench.report.loading import PairData, Run


@dataclass(frozen=True)
class CrossPlay:
    """Overall success of coop pairs, by who was agent1 (the lower feature) and who agent2."""

    configurations: tuple[str, ...]
    cells: Mapping[tuple[str, str], Estimate]
    """Only those that were played."""
    alone: Mapping[tuple[str, str], Estimate]
    """How often the first one's own patch passed alone, with the second one as its partner, on either seat."""
    unknown: int
    """Judged pairs of which the records do not say who the two were, or that had another number of agents."""

    def to_json(self) -> dict[str, Any]:
        def listed(cells: Mapping[tuple[str, str], Estimate]) -> list[dict[str, Any]]:
            return [
                {"agent1": one, "agent2": other, **estimate.to_json()}
                for (one, other), estimate in cells.items()
            ]

        alone = [
            {"agent": one, "partner": other, **estimate.to_json()}
            for (one, other), estimate in self.alone.items()
        ]
        return {
            "configurations": list(self.configurations),
            "overall": listed(self.cells),
            "alone": alone,
            "unknown": self.unknown,
        }


def cross_play(runs: Sequence[Run], method: Method = "clustered") -> CrossPlay:
    overall: dict[tuple[str, str], list[Observation]] = {}
    alone: dict[tuple[str, str], list[Observation]] = {}
    unknown = 0
    for pair in (pair for run in runs for pair in run.of("coop")):
        verdicts = pair.verdicts
        if verdicts is None:
            continue
        seats = _seats(pair)
        if seats is None:
            unknown += 1
            continue
        overall.setdefault(seats, []).append(Observation(pair.key, float(verdicts.overall)))
        for agent, (own, partner) in zip(pair.agents, (seats, seats[::-1]), strict=True):
            if agent.success is not None:
                alone.setdefault((own, partner), []).append(Observation(pair.key, float(agent.success)))
    names = tuple(sorted({name for seats in overall for name in seats}))
    return CrossPlay(
        names,
        {seats: rate(found, method) for seats, found in sorted(overall.items())},
        {seats: rate(found, method) for seats, found in sorted(alone.items())},
        unknown,
    )


def _seats(pair: PairData) -> tuple[str, str] | None:
    agents = pair.agents
    if len(agents) != 2 or any(agent.agent is None for agent in agents):
        return None
    return agents[0].configuration, agents[1].configuration
