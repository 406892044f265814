"""The analysis of a set of runs, for the terminal, for JSON and for the page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import comb
from typing import NamedTuple

import msgspec

from cooperbench._version import __version__
from cooperbench.models import Setting
from cooperbench.records import JsonObject
from cooperbench.records.usage import total_usage
from cooperbench.report import Level, Method
from cooperbench.report.compare import Comparison, compare_sides, match_solo_and_coop
from cooperbench.report.consistency import all_mismatches
from cooperbench.report.coupling import CouplingRow, coupling_rows
from cooperbench.report.curves import AgentCurve, Difficulty, agent_curve, analyse_difficulty
from cooperbench.report.loading import Run, Side, sides_of
from cooperbench.report.merges import MergeRow, merge_rows
from cooperbench.report.mismatch import Mismatch, affected_numbers
from cooperbench.report.pairs import (
    ENDED,
    EVALUATED,
    STATES,
    AgentData,
    PairData,
    PairKey,
    State,
    applicable_verdicts,
)
from cooperbench.report.public_rule import RuleComparison, compare_rules
from cooperbench.report.statistics import (
    Estimate,
    Observation,
    grouped,
    observe,
    observe_verdict,
    rate,
)
from cooperbench.report.workload import WorkloadCurve, workload_curves
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
"""Sums of `metrics` in result.json, and the titles of their columns."""


@dataclass(frozen=True)
class RateRow:
    """The pairs of one setting of one run, or of one repository or task in it."""

    run: str
    setting: Setting
    repo: str | None
    """None for all repositories."""
    task_id: int | None
    """None for all tasks."""
    pairs: int
    judged: int
    """Number of pairs with a verdict."""
    states: Mapping[State, int]
    rates: Mapping[str, Estimate]
    """Rates over the pairs with a verdict, by the verdicts that apply to the setting."""
    affected: tuple[str, ...]
    """The verdicts whose rates a mismatch affects, and `cost`."""
    unsound: int
    sound_rates: Mapping[str, Estimate]
    """Rates without unsound pairs; empty if there are none."""
    order_conflicts: int
    """Number of groups of three or more that conflict but would merge in another order."""
    successes: int
    """Number of successes, each of one patch and one feature."""
    unconfirmed: int
    """Number of them that no confirmation run supports."""
    suspicious: int
    """Number of pairs with a failed confirmation."""
    review_notes: int
    """Number of pairs with a line that a person may want to read."""
    attempted_again: int
    """Number of pairs with more than one attempt."""
    earlier_attempts: Mapping[str, int]
    """Number of earlier attempts by how they ended."""
    cost: float
    cost_per_pair: float | None
    """Cost divided by the number of pairs whose agents ended; None if there are none."""
    unpriced_calls: int
    """Number of calls to models without a known price. The cost does not include them."""
    steps: int
    tokens: int
    messages: int
    agent_seconds: float

    @property
    def name(self) -> str:
        """The name of the side: `run:coop`."""
        return f"{self.run}:{self.setting}"

    @property
    def is_shared(self) -> bool:
        """Whether all of these pairs had a shared workspace, in which agents have no patches."""
        return "individual" not in self.rates


@dataclass(frozen=True)
class TeamRow:
    """Use of the tools of setting team in one run."""

    run: str
    pairs: int
    integrated_by_lead: Estimate
    """Share of pairs in which the lead's patch alone has all features, of those with a lead and a
    verdict."""
    sums: Mapping[str, float]


@dataclass(frozen=True, order=True)
class FlakyPair(PairKey):
    """A pair that passed in some runs and failed in others."""

    passed: int
    of: int
    """Number of runs with a verdict."""


@dataclass(frozen=True)
class Repeats:
    """Runs that differ only in their names, in one setting."""

    runs: tuple[str, ...]
    setting: Setting
    pass_at: Mapping[int, Estimate]
    """By k: the probability that at least one of k tries passes, over the pairs with at least k
    verdicts."""
    flaky: tuple[FlakyPair, ...]


@dataclass(frozen=True)
class CrossPlayCell:
    """Overall success of two configurations that worked together."""

    agent1: str
    """Configuration of the agent with the lower feature."""
    agent2: str
    overall: Estimate


@dataclass(frozen=True)
class CrossPlay:
    """Overall success of coop pairs by the configurations of agent1 and agent2."""

    configurations: tuple[str, ...]
    cells: tuple[CrossPlayCell, ...]
    unknown: int
    """Number of evaluated pairs without two known configurations."""


@dataclass(frozen=True)
class Analysis:
    """The analysis of a set of runs."""

    interval: Method
    runs: tuple[Run, ...]
    rates: tuple[RateRow, ...]
    coordination_deficits: tuple[Comparison, ...]
    """Solo compared with several agents, for each configuration that has both."""
    coop_without_solo: tuple[str, ...]
    """Sides of several agents without a solo run of the same agent and model."""
    merges: tuple[MergeRow, ...]
    rules: tuple[RuleComparison, ...]
    """Our verdicts beside those by the public rule, for each side that has both."""
    coupling: tuple[CouplingRow, ...]
    """Empty without the dataset."""
    difficulty: Difficulty
    repeats: tuple[Repeats, ...]
    cross_play: CrossPlay
    agent_curves: tuple[AgentCurve, ...]
    workload_curves: tuple[WorkloadCurve, ...]
    """Results over the number of agents that had the same features."""
    team: tuple[TeamRow, ...]
    mismatches: tuple[Mismatch, ...]
    """What does not fit together in the runs or between them, and what cannot be checked."""

    @property
    def problems(self) -> list[str]:
        """One line for everything that could not be read."""
        problems: list[str] = []
        for run in self.runs:
            problems += [f"{run.name}: {line}" for line in run.problems]
        return problems

    def to_json(self) -> JsonObject:
        """Return the content of `--json`."""
        content: JsonObject = {"schema": SCHEMA, "version": __version__, "time": utc_now()}
        content |= asdict(replace(self, runs=()))
        content["runs"] = [_describe_run(run) for run in self.runs]
        return content


def _describe_run(run: Run) -> JsonObject:
    dataset, dataset_revision = run.dataset
    return {
        "name": run.name,
        "dataset": dataset,
        "dataset_revision": dataset_revision,
        "agent": (run.config.agent or None) if run.config else None,
        "model": (run.config.model_name or None) if run.config else None,
        "settings": run.settings,
        "problems": run.problems,
        "unsound_left_out": run.unsound_left_out,
    }


def analyse(
    runs: Sequence[Run], level: Level = "setting", method: Method = "clustered"
) -> Analysis:
    """Compute everything.

    The caller decides whether the runs belong together (`check_same_dataset`).
    """
    matches = match_solo_and_coop(runs)
    repeated_runs = _group_repetitions(runs)
    curves = [agent_curve(group, setting, method) for group, setting in repeated_runs]
    workload = workload_curves(runs, method)
    team_rows = [_team_row(run, method) for run in runs]
    return Analysis(
        runs=tuple(runs),
        interval=method,
        rates=tuple(rate_rows(runs, level, method)),
        coordination_deficits=tuple(
            compare_sides(solo, together, method=method) for solo, together in matches.matched
        ),
        coop_without_solo=tuple(side.label for side in matches.unmatched),
        merges=tuple(merge_rows(runs, method)),
        rules=tuple(rule for rule in map(compare_rules, sides_of(runs)) if rule.n),
        coupling=tuple(coupling_rows(runs, method)),
        difficulty=analyse_difficulty(runs),
        repeats=tuple(find_repeats(runs, method)),
        cross_play=cross_play(runs, method),
        agent_curves=tuple(curve for curve in curves if curve is not None),
        workload_curves=tuple(workload),
        team=tuple(row for row in team_rows if row is not None),
        mismatches=tuple(all_mismatches(runs)),
    )


class _Part(NamedTuple):
    """The repository and task that a row is about; None for all."""

    repo: str | None = None
    task_id: int | None = None


def rate_rows(
    runs: Sequence[Run], level: Level = "setting", method: Method = "clustered"
) -> list[RateRow]:
    """Return a row for each setting of each run, followed by its repositories or tasks."""
    rows = []
    mismatches = all_mismatches(runs)
    for side in sides_of(runs):
        pairs = list(side.pairs.values())
        groups: dict[_Part, list[PairData]] = {_Part(): pairs}
        if level != "setting":
            for pair in pairs:
                task_id = pair.key.task_id if level == "task" else None
                groups.setdefault(_Part(pair.key.repo, task_id), []).append(pair)
        for part, group in groups.items():
            affected = affected_numbers(mismatches, side.run.name, group)
            rows.append(replace(_rate_row(side, part, group, method), affected=affected))
    return rows


def _rate_row(side: Side, part: _Part, pairs: Sequence[PairData], method: Method) -> RateRow:
    states = Counter(pair.state for pair in pairs)
    evaluated = [pair for pair in pairs if pair.state in EVALUATED]
    sound = [pair for pair in pairs if not pair.unsound]
    agents: list[AgentData] = []
    earlier_attempts: Counter[str] = Counter()
    for pair in pairs:
        agents += pair.agents
        attempts = pair.result.earlier_attempts if pair.result else None
        earlier_attempts.update(attempt.status for attempt in attempts or ())
    ended = sum(states[state] for state in ENDED)
    cost = sum(pair.cost or 0.0 for pair in pairs)
    usage = total_usage(agent.record for agent in agents)
    has_unsound = len(sound) < len(pairs)
    return RateRow(
        run=side.run.name,
        setting=side.setting,
        repo=part.repo,
        task_id=part.task_id,
        pairs=len(pairs),
        judged=len(evaluated),
        states={state: states[state] for state in STATES},
        rates=_rates(side.setting, pairs, method),
        affected=(),
        unsound=len(pairs) - len(sound),
        sound_rates=_rates(side.setting, sound, method) if has_unsound else {},
        order_conflicts=len([pair for pair in pairs if _merges_in_another_order(pair)]),
        successes=sum(pair.successes for pair in pairs),
        unconfirmed=sum(pair.unconfirmed for pair in pairs),
        suspicious=len([pair for pair in pairs if pair.suspicious]),
        review_notes=len([pair for pair in pairs if pair.review_notes]),
        attempted_again=len([pair for pair in pairs if pair.attempts > 1]),
        earlier_attempts=dict(sorted(earlier_attempts.items())),
        cost=cost,
        cost_per_pair=cost / ended if ended else None,
        unpriced_calls=usage.unpriced_calls,
        steps=sum(agent.steps or 0 for agent in agents),
        tokens=usage.prompt_tokens + usage.completion_tokens,
        messages=sum(pair.messages or 0 for pair in pairs),
        agent_seconds=sum(pair.duration_seconds or 0.0 for pair in pairs),
    )


def _merges_in_another_order(pair: PairData) -> bool:
    return pair.merged is not None and bool(pair.merged.clean_order)


def _rates(setting: Setting, pairs: Sequence[PairData], method: Method) -> dict[str, Estimate]:
    evaluated = [pair for pair in pairs if pair.verdicts]
    all_shared = bool(evaluated) and all(pair.shares_workspace for pair in evaluated)
    return {
        verdict: rate(observe_verdict(pairs, verdict), method)
        for verdict in applicable_verdicts(setting, shared=all_shared)
    }


def _team_row(run: Run, method: Method) -> TeamRow | None:
    pairs = [pair for pair in run.of("team") if pair.state in ENDED]
    if not pairs:
        return None
    integrated = observe(pairs, lambda pair: pair.integrated_by_lead)
    sums = dict.fromkeys(TEAM_SUMS, 0.0)
    for pair in pairs:
        for name in TEAM_SUMS:
            sums[name] += _team_metric(pair, name)
    return TeamRow(run.name, len(pairs), rate(integrated, method), sums)


def _team_metric(pair: PairData, name: str) -> float:
    """Return one of the numbers that result.json has about the team's tools; 0 without it."""
    metrics = pair.result.metrics if pair.result else None
    values = msgspec.structs.asdict(metrics) if metrics else {}
    return float(values.get(name) or 0)


def pass_at_k(tries: int, passed: int, k: int) -> float:
    """Return the unbiased pass@k: the share of all choices of k tries that include a passed one."""
    return 1.0 - comb(tries - passed, k) / comb(tries, k)


def find_repeats(runs: Sequence[Run], method: Method = "clustered") -> list[Repeats]:
    """Return the groups of two or more runs of the same configuration, by setting."""
    return [
        _repeats(group, setting, method)
        for group, setting in _group_repetitions(runs)
        if len(group) > 1
    ]


def _group_repetitions(runs: Sequence[Run]) -> list[tuple[list[Run], Setting]]:
    """Return runs of one configuration together, by setting. One without config.json is alone."""
    groups: dict[tuple[str, Setting], list[Run]] = {}
    for run in runs:
        identity = dict(run.config.identity) if run.config else {}
        identity.pop("backend", None)
        key = json.dumps(identity, sort_keys=True) if identity else run.name
        for setting in run.settings:
            groups.setdefault((key, setting), []).append(run)
    return [(group, setting) for (_, setting), group in groups.items()]


class _Tries(NamedTuple):
    """The verdicts on one pair over repeated runs."""

    key: PairKey
    passed: int
    total: int


def _repeats(runs: Sequence[Run], setting: Setting, method: Method) -> Repeats:
    pairs: list[PairData] = []
    for run in runs:
        pairs += run.of(setting)
    outcomes = grouped(sorted(observe_verdict(pairs)))
    tries = [_Tries(key, int(sum(values)), len(values)) for key, values in outcomes.items()]
    largest = max((pair_tries.total for pair_tries in tries), default=0)
    flaky = [
        FlakyPair(*_key_fields(pair_tries.key), passed=pair_tries.passed, of=pair_tries.total)
        for pair_tries in tries
        if 0 < pair_tries.passed < pair_tries.total
    ]
    return Repeats(
        runs=tuple(run.name for run in runs),
        setting=setting,
        pass_at={k: _estimate_pass_at(tries, k, method) for k in range(1, largest + 1)},
        flaky=tuple(flaky),
    )


def _key_fields(key: PairKey) -> tuple[str, int, tuple[int, ...]]:
    return key.repo, key.task_id, key.features


def _estimate_pass_at(tries: Sequence[_Tries], k: int, method: Method) -> Estimate:
    observations = [
        Observation(pair_tries.key, pass_at_k(pair_tries.total, pair_tries.passed, k))
        for pair_tries in tries
        if pair_tries.total >= k
    ]
    return rate(observations, method)


def cross_play(runs: Sequence[Run], method: Method = "clustered") -> CrossPlay:
    """Return the success of coop pairs by the configurations of their two agents."""
    evaluated: list[PairData] = []
    for run in runs:
        evaluated += [pair for pair in run.of("coop") if pair.verdicts]
    pairs_by_agents: dict[tuple[str, str], list[PairData]] = {}
    unknown = 0
    for pair in evaluated:
        if len(pair.agents) != 2 or not all(agent.agent for agent in pair.agents):
            unknown += 1
            continue
        first, second = pair.agents
        agents = (first.configuration, second.configuration)
        pairs_by_agents.setdefault(agents, []).append(pair)
    cells = []
    configurations: set[str] = set()
    for agents, pairs in sorted(pairs_by_agents.items(), key=lambda item: item[0]):
        configurations.update(agents)
        cells.append(CrossPlayCell(*agents, overall=rate(observe_verdict(pairs), method)))
    return CrossPlay(tuple(sorted(configurations)), tuple(cells), unknown)
