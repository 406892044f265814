"""Everything that a report says about a set of runs, computed once for the terminal, for JSON and for the page.

Here are also the parts that need several runs or agents: repetitions of one configuration (how much is luck?), and who
works with whom how well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.report.compare import Comparison, compare_sides, match_solo_and_coop
from cooperbench.report.difficulty import Difficulty, analyse_difficulty
from cooperbench.report.rows import RateRow, rate_rows
from cooperbench.report.statistics.intervals import Estimate, Observation, rate
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.report import Level, Method
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData, PairKey

SCHEMA = "cooperbench.report/1"
_NOT_IDENTITY = {"schema", "run_name", "setting", "invocations", "backend"}
"""Of config.json, what may differ between repetitions of one experiment."""


@dataclass(frozen=True)
class Repeats:
    """Runs that differ in nothing but their names, in one setting."""

    runs: tuple[str, ...]
    setting: Setting
    tries: Mapping[PairKey, tuple[int, int]]
    """Passed, and of how many verdicts."""
    pass_at: Mapping[int, Estimate]
    """By k: the chance that at least one of k tries passes, over the pairs that have at least k verdicts."""
    flaky: tuple[PairKey, ...]
    """Passed in some runs and failed in others."""

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": list(self.runs),
            "setting": self.setting,
            "pass_at": {str(k): estimate.to_json() for k, estimate in self.pass_at.items()},
            "flaky": [
                {**key.to_json(), "passed": self.tries[key][0], "of": self.tries[key][1]}
                for key in self.flaky
            ],
        }


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
        def listed(names: Sequence[str], cells: Mapping[tuple[str, str], Estimate]) -> list[dict[str, Any]]:
            return [
                {**dict(zip(names, seats, strict=True)), **estimate.to_json()}
                for seats, estimate in cells.items()
            ]

        return {
            "configurations": list(self.configurations),
            "overall": listed(("agent1", "agent2"), self.cells),
            "alone": listed(("agent", "partner"), self.alone),
            "unknown": self.unknown,
        }


@dataclass(frozen=True)
class Analysis:
    """Of runs of one dataset."""

    runs: tuple[Run, ...]
    method: Method
    rates: tuple[RateRow, ...]
    deficits: tuple[Comparison, ...]
    """Solo against coop of each configuration that has both."""
    without_solo: tuple[str, ...]
    """Coop sides that no solo run of the same agent and model is given for."""
    difficulty: Difficulty
    repeats: tuple[Repeats, ...]
    cross_play: CrossPlay

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{run.name}: {line}" for run in self.runs for line in run.problems)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "version": __version__,
            "time": utc_now(),
            "interval": self.method,
            "runs": [
                {
                    "name": run.name,
                    "dataset": run.dataset[0],
                    "dataset_revision": run.dataset[1],
                    "agent": run.agent,
                    "model": run.model,
                    "settings": list(run.settings),
                    "problems": list(run.problems),
                    "unsound_left_out": run.unsound_left_out,
                }
                for run in self.runs
            ],
            "rates": [row.to_json() for row in self.rates],
            "coordination_deficits": [comparison.to_json() for comparison in self.deficits],
            "coop_without_solo": list(self.without_solo),
            "difficulty": self.difficulty.to_json(),
            "repeats": [repeats.to_json() for repeats in self.repeats],
            "cross_play": self.cross_play.to_json(),
        }


def analyse(runs: Sequence[Run], level: Level = "setting", method: Method = "clustered") -> Analysis:
    """All of it. Whether the runs belong together is for the caller to check (`check_same_dataset`)."""
    matched, alone = match_solo_and_coop(runs)
    return Analysis(
        runs=tuple(runs),
        method=method,
        rates=tuple(rate_rows(runs, level, method)),
        deficits=tuple(compare_sides(solo, coop, method=method) for solo, coop in matched),
        without_solo=tuple(side.label for side in alone),
        difficulty=analyse_difficulty(runs),
        repeats=tuple(find_repeats(runs, method)),
        cross_play=cross_play(runs, method),
    )


def pass_at_k(tries: int, passed: int, k: int) -> float:
    """Unbiased: of all ways to choose k of the tries, the share that has a passed one among them."""
    if not 0 <= passed <= tries or not 1 <= k <= tries:
        raise ValueError(f"no pass@{k} from {passed} of {tries} tries")
    return 1.0 - comb(tries - passed, k) / comb(tries, k)


def find_repeats(runs: Sequence[Run], method: Method = "clustered") -> list[Repeats]:
    """Groups of two or more runs of the same configuration, by setting. A run without config.json is in none."""
    groups: dict[tuple[str, Setting], list[Run]] = {}
    for run in runs:
        identity = {key: value for key, value in run.config.items() if key not in _NOT_IDENTITY}
        for setting in run.settings if identity else ():
            group = groups.setdefault((json.dumps(identity, sort_keys=True), setting), [])
            if all(run.root.resolve() != other.root.resolve() for other in group):
                group.append(run)
    return [_repeats(group, setting, method) for (_, setting), group in groups.items() if len(group) > 1]


def _repeats(runs: Sequence[Run], setting: Setting, method: Method) -> Repeats:
    outcomes: dict[PairKey, list[bool]] = {}
    for run in runs:
        for pair in run.of(setting):
            if pair.verdicts is not None:
                outcomes.setdefault(pair.key, []).append(pair.verdicts.overall)
    tries = {key: (sum(values), len(values)) for key, values in sorted(outcomes.items())}
    most = max((of for _, of in tries.values()), default=0)
    pass_at = {
        k: rate(
            [Observation(key, pass_at_k(of, passed, k)) for key, (passed, of) in tries.items() if of >= k],
            method,
        )
        for k in range(1, most + 1)
    }
    flaky = tuple(key for key, (passed, of) in tries.items() if 0 < passed < of)
    return Repeats(tuple(run.name for run in runs), setting, tries, pass_at, flaky)


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
