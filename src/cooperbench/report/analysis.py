"""Everything that a report says about a set of runs, computed once for the terminal, for JSON and for the page.

A `RateRow` has the pairs of a run, repository or task together: verdicts with intervals, all else counted beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import comb
from typing import Any

import msgspec

from cooperbench._version import __version__
from cooperbench.models import Setting
from cooperbench.report import Level, Method
from cooperbench.report.compare import Comparison, compare_sides, match_solo_and_coop
from cooperbench.report.curves import AgentCurve, Difficulty, agent_curve, analyse_difficulty
from cooperbench.report.loading import Run, Side, sides_of
from cooperbench.report.pairs import (
    ENDED,
    EVALUATED,
    STATES,
    PairData,
    PairKey,
    State,
    applicable_verdicts,
)
from cooperbench.report.statistics import (
    Estimate,
    Observation,
    grouped,
    observe,
    observe_verdict,
    rate,
)
from cooperbench.storage import utc_now

SCHEMA = "cooperbench.report/1"
TEAM_SUMS = {
    "tasks_total": "tasks",
    "tasks_done": "done",
    "unowned_at_end": "unowned",
    "claims_lost": "claims lost",
    "requests_total": "requests",
    "requests_answered": "answered",
    "request_waiting_seconds": "waited, s",
    "changes_to_files_of_others_tasks": "others' files",
}
"""Of `metrics` in result.json, and what a column of them is called."""


@dataclass(frozen=True)
class RateRow:
    """The pairs of one setting of one run, or those of one repository or task among them."""

    run: str
    setting: Setting
    repo: str | None
    """None: all repositories; likewise for the task."""
    task_id: int | None
    pairs: int
    judged: int
    states: Mapping[State, int]
    rates: Mapping[str, Estimate]
    """Over the judged pairs, by verdict, those that apply: one agent's patch merges with nothing."""
    unsound: int
    sound_rates: Mapping[str, Estimate]
    """The rates without those; empty where there are none."""
    order_conflicts: int
    """Judged pairs of three and more that conflict and would merge in another order."""
    suspicious: int
    cost: float
    unpriced_calls: int
    """Of models whose price nobody knows: the cost is without them."""
    steps: int
    tokens: int
    messages: int
    agent_seconds: float

    @property
    def name(self) -> str:
        return f"{self.run}:{self.setting}"


@dataclass(frozen=True)
class TeamRow:
    """What setting team adds, beside the verdicts."""

    run: str
    pairs: int
    integrated_by_lead: Estimate
    """The lead's patch alone has all features; only where there is a lead, and a verdict."""
    sums: Mapping[str, float]


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
    """Overall success of coop pairs, by who was agent1 and who agent2."""

    configurations: tuple[str, ...]
    cells: tuple[CrossPlayCell, ...]
    unknown: int
    """Judged pairs of which the records do not say who the two were, or that had another number of agents."""


@dataclass(frozen=True)
class Analysis:
    interval: Method
    runs: tuple[Run, ...]
    rates: tuple[RateRow, ...]
    coordination_deficits: tuple[Comparison, ...]
    """Solo against coop of each configuration that has both."""
    coop_without_solo: tuple[str, ...]
    """Coop sides that no solo run of the same agent and model is given for."""
    difficulty: Difficulty
    repeats: tuple[Repeats, ...]
    cross_play: CrossPlay
    agent_curves: tuple[AgentCurve, ...]
    team: tuple[TeamRow, ...]

    @property
    def problems(self) -> list[str]:
        return [f"{run.name}: {line}" for run in self.runs for line in run.problems]

    def to_json(self) -> dict[str, Any]:
        runs = [
            {
                "name": run.name,
                "dataset": run.dataset[0],
                "dataset_revision": run.dataset[1],
                "agent": (run.config.agent or None) if run.config else None,
                "model": (run.config.model_name or None) if run.config else None,
                "settings": run.settings,
                "problems": run.problems,
                "unsound_left_out": run.unsound_left_out,
            }
            for run in self.runs
        ]
        about = {"schema": SCHEMA, "version": __version__, "time": utc_now()}
        return about | asdict(replace(self, runs=())) | {"runs": runs}


def analyse(
    runs: Sequence[Run], level: Level = "setting", method: Method = "clustered"
) -> Analysis:
    """All of it. Whether the runs belong together is for the caller to check (`check_same_dataset`)."""
    matched, alone = match_solo_and_coop(runs)
    return Analysis(
        runs=tuple(runs),
        interval=method,
        rates=tuple(rate_rows(runs, level, method)),
        coordination_deficits=tuple(
            compare_sides(solo, coop, method=method) for solo, coop in matched
        ),
        coop_without_solo=tuple(side.label for side in alone),
        difficulty=analyse_difficulty(runs),
        repeats=tuple(find_repeats(runs, method)),
        cross_play=cross_play(runs, method),
        agent_curves=tuple(
            filter(None, (agent_curve(group, setting, method) for group, setting in _alike(runs)))
        ),
        team=tuple(filter(None, (_team_row(run, method) for run in runs))),
    )


def rate_rows(
    runs: Sequence[Run], level: Level = "setting", method: Method = "clustered"
) -> list[RateRow]:
    """A row for each setting of each run, followed by those of its repositories, or tasks, if asked for."""
    rows = []
    for side in sides_of(runs):
        pairs = list(side.pairs.values())
        groups: dict[tuple[str | None, int | None], list[PairData]] = {(None, None): pairs}
        for pair in pairs if level != "setting" else ():
            place = (pair.key.repo, pair.key.task_id if level == "task" else None)
            groups.setdefault(place, []).append(pair)
        rows += [_rate_row(side, place, group, method) for place, group in groups.items()]
    return rows


def _rate_row(
    side: Side, place: tuple[str | None, int | None], pairs: Sequence[PairData], method: Method
) -> RateRow:
    def rates(chosen: Sequence[PairData]) -> dict[str, Estimate]:
        names = applicable_verdicts(side.setting)
        return {name: rate(observe_verdict(chosen, name), method) for name in names}

    states = [pair.state for pair in pairs]
    sound = [pair for pair in pairs if not pair.unsound]
    agents = [agent for pair in pairs for agent in pair.agents]
    return RateRow(
        run=side.run.name,
        setting=side.setting,
        repo=place[0],
        task_id=place[1],
        pairs=len(pairs),
        judged=sum(state in EVALUATED for state in states),
        states={state: states.count(state) for state in STATES},
        rates=rates(pairs),
        unsound=len(pairs) - len(sound),
        sound_rates=rates(sound) if len(sound) < len(pairs) else {},
        order_conflicts=sum(bool(pair.merged and pair.merged.clean_order) for pair in pairs),
        suspicious=sum(bool(pair.suspicious) for pair in pairs),
        cost=sum(pair.cost for pair in pairs),
        unpriced_calls=sum(agent.record.unpriced_calls for agent in agents),
        steps=sum(agent.steps for agent in agents),
        tokens=sum(agent.prompt_tokens + agent.completion_tokens for agent in agents),
        messages=sum(pair.messages for pair in pairs),
        agent_seconds=sum(pair.duration_seconds for pair in pairs),
    )


def _team_row(run: Run, method: Method) -> TeamRow | None:
    pairs = [pair for pair in run.of("team") if pair.state in ENDED]
    by_lead = rate(observe(pairs, lambda pair: pair.integrated_by_lead), method)
    sums = {name: sum(_team_metric(pair, name) for pair in pairs) for name in TEAM_SUMS}
    return TeamRow(run.name, len(pairs), by_lead, sums) if pairs else None


def _team_metric(pair: PairData, name: str) -> float:
    """Return one of the numbers that result.json has about the team's tools; 0 without it."""
    metrics = pair.result.metrics if pair.result else None
    values = msgspec.structs.asdict(metrics) if metrics else {}
    return float(values.get(name) or 0)


def pass_at_k(tries: int, passed: int, k: int) -> float:
    """Unbiased: of all ways to choose k of the tries, the share that has a passed one among them."""
    return 1.0 - comb(tries - passed, k) / comb(tries, k)


def find_repeats(runs: Sequence[Run], method: Method = "clustered") -> list[Repeats]:
    """Groups of two or more runs of the same configuration, by setting."""
    return [_repeats(group, setting, method) for group, setting in _alike(runs) if len(group) > 1]


def _alike(runs: Sequence[Run]) -> list[tuple[list[Run], Setting]]:
    """Runs of one configuration together, by setting; one without config.json is alone."""
    groups: dict[tuple[str, Setting], list[Run]] = {}
    for run in runs:
        identity = dict(run.config.identity) if run.config else {}
        identity.pop("backend", None)
        known = json.dumps(identity, sort_keys=True) if identity else run.name
        for setting in run.settings:
            groups.setdefault((known, setting), []).append(run)
    return [(group, setting) for (_, setting), group in groups.items()]


def _repeats(runs: Sequence[Run], setting: Setting, method: Method) -> Repeats:
    outcomes = grouped(sorted(observe_verdict(pair for run in runs for pair in run.of(setting))))
    tries = [(key, int(sum(values)), len(values)) for key, values in outcomes.items()]
    most = max((of for _, _, of in tries), default=0)
    pass_at = {
        k: rate(
            [Observation(key, pass_at_k(of, passed, k)) for key, passed, of in tries if of >= k],
            method,
        )
        for k in range(1, most + 1)
    }
    flaky = tuple(
        FlakyPair(key.repo, key.task_id, key.features, passed, of)
        for key, passed, of in tries
        if 0 < passed < of
    )
    return Repeats(tuple(run.name for run in runs), setting, pass_at, flaky)


def cross_play(runs: Sequence[Run], method: Method = "clustered") -> CrossPlay:
    judged = [pair for run in runs for pair in run.of("coop") if pair.verdicts]
    known = [
        pair
        for pair in judged
        if len(pair.agents) == 2 and all(agent.agent for agent in pair.agents)
    ]
    found = grouped((tuple(agent.configuration for agent in pair.agents), pair) for pair in known)
    cells = [
        CrossPlayCell(first, second, rate(observe_verdict(pairs), method))
        for (first, second), pairs in sorted(found.items())
    ]
    names = sorted({name for slots in found for name in slots})
    return CrossPlay(tuple(names), tuple(cells), len(judged) - len(known))
