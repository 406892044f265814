"""Everything that a report says about a set of runs, computed once for the terminal, for JSON and for the page.

Here are also the parts that need several runs or agents: repetitions of one configuration (how much is luck?), and who
works with whom how well.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.report.agent_curve import AgentCurve, agent_curve
from cooperbench.report.compare import Comparison, compare_sides, match_solo_and_coop
from cooperbench.report.difficulty import Difficulty, analyse_difficulty
from cooperbench.report.records import PairKey
from cooperbench.report.rows import RateRow, rate_rows
from cooperbench.report.statistics import Estimate, Observation, rate
from cooperbench.storage import utc_now

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.report import Level, Method
    from cooperbench.report.loading import Run

SCHEMA = "cooperbench.report/1"
_NOT_IDENTITY = {"schema", "run_name", "setting", "invocations", "backend"}
"""Of config.json, what may differ between repetitions of one experiment."""


@dataclass(frozen=True, order=True)
class FlakyPair(PairKey):
    """Passed in some runs and failed in others."""

    passed: int
    of: int


@dataclass(frozen=True)
class Repeats:
    """Runs that differ in nothing but their names, in one setting."""

    runs: tuple[str, ...]
    setting: Setting
    pass_at: Mapping[int, Estimate]
    """By k: the chance that at least one of k tries passes, over the pairs that have at least k verdicts."""
    flaky: tuple[FlakyPair, ...]


@dataclass(frozen=True)
class CrossPlayCell:
    agent1: str
    """Who worked on the lower feature."""
    agent2: str
    overall: Estimate


@dataclass(frozen=True)
class CrossPlay:
    """Overall success of coop pairs, by who was agent1 (the lower feature) and who agent2."""

    configurations: tuple[str, ...]
    cells: tuple[CrossPlayCell, ...]
    """Only those that were played."""
    unknown: int
    """Judged pairs of which the records do not say who the two were, or that had another number of agents."""


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
    curves: tuple[AgentCurve, ...]
    """By the number of agents, where there are nested groups of several sizes."""

    @property
    def problems(self) -> list[str]:
        return [f"{run.name}: {line}" for run in self.runs for line in run.problems]

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
                    "settings": run.settings,
                    "problems": run.problems,
                    "unsound_left_out": run.unsound_left_out,
                }
                for run in self.runs
            ],
            "rates": [asdict(row) for row in self.rates],
            "coordination_deficits": [asdict(comparison) for comparison in self.deficits],
            "coop_without_solo": self.without_solo,
            "difficulty": asdict(self.difficulty),
            "repeats": [asdict(repeats) for repeats in self.repeats],
            "cross_play": asdict(self.cross_play),
            "agent_curves": [asdict(curve) for curve in self.curves],
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
        curves=tuple(filter(None, (agent_curve(group, setting, method) for group, setting in _alike(runs)))),
    )


def pass_at_k(tries: int, passed: int, k: int) -> float:
    """Unbiased: of all ways to choose k of the tries, the share that has a passed one among them."""
    return 1.0 - comb(tries - passed, k) / comb(tries, k)


def find_repeats(runs: Sequence[Run], method: Method = "clustered") -> list[Repeats]:
    """Groups of two or more runs of the same configuration, by setting. A run without config.json is in none."""
    return [_repeats(group, setting, method) for group, setting in _alike(runs) if len(group) > 1]


def _alike(runs: Sequence[Run]) -> list[tuple[list[Run], Setting]]:
    """Runs of one configuration together, by setting; one without config.json is alone."""
    groups: dict[tuple[str, Setting], list[Run]] = {}
    for run in runs:
        identity = {key: value for key, value in run.config.items() if key not in _NOT_IDENTITY}
        known = json.dumps(identity, sort_keys=True) if identity else run.name
        for setting in run.settings:
            groups.setdefault((known, setting), []).append(run)
    return [(group, setting) for (_, setting), group in groups.items()]


def _repeats(runs: Sequence[Run], setting: Setting, method: Method) -> Repeats:
    outcomes: dict[PairKey, list[bool]] = {}
    for run in runs:
        for pair in run.of(setting):
            if pair.verdicts is not None:
                outcomes.setdefault(pair.key, []).append(pair.verdicts.overall)
    tries = [(key, sum(values), len(values)) for key, values in sorted(outcomes.items())]
    most = max((of for _, _, of in tries), default=0)
    pass_at = {
        k: rate([Observation(key, pass_at_k(of, passed, k)) for key, passed, of in tries if of >= k], method)
        for k in range(1, most + 1)
    }
    flaky = tuple(
        FlakyPair(key.repo, key.task_id, key.features, passed, of)
        for key, passed, of in tries
        if 0 < passed < of
    )
    return Repeats(tuple(run.name for run in runs), setting, pass_at, flaky)


def cross_play(runs: Sequence[Run], method: Method = "clustered") -> CrossPlay:
    found: dict[tuple[str, str], list[Observation]] = {}
    unknown = 0
    for pair in (pair for run in runs for pair in run.of("coop")):
        if pair.verdicts is None:
            continue
        if len(pair.agents) != 2 or any(agent.agent is None for agent in pair.agents):
            unknown += 1
            continue
        first, second = (agent.configuration for agent in pair.agents)
        found.setdefault((first, second), []).append(Observation(pair.key, float(pair.verdicts.overall)))
    names = tuple(sorted({name for seats in found for name in seats}))
    cells = tuple(CrossPlayCell(*seats, rate(known, method)) for seats, known in sorted(found.items()))
    return CrossPlay(names, cells, unknown)
