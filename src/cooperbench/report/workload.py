"""Results over the number of agents at constant workload: the same features, N agents.

A curve has groups of K features that several numbers of agents worked on, in runs that otherwise
have one configuration. One agent is setting solo. All points rest on the same groups. Groups of two
features have no curve: solo and two agents are compared by the coordination deficit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from cooperbench.dataset.assignment import EVEN
from cooperbench.models import Setting
from cooperbench.records import JsonObject
from cooperbench.report import Method, statistics
from cooperbench.report.loading import Run
from cooperbench.report.pairs import PairData, PairKey
from cooperbench.report.statistics import Estimate, Observation

MEASURES = {
    "overall": "overall",
    "merge": "merge",
    "wall_seconds": "wall time",
    "tokens": "tokens",
    "cost": "cost",
}
"""What the curves show, and the titles."""
RATES = ("overall", "merge")
_MIN_FEATURES = 3
_DIVISION = ("agent_count", "split")
_NOT_COMPARED = (*_DIVISION, "backend")
SOLO_CONDITIONS = (
    *("agent", "model_name", "agent_config_sha256", "prompts_sha256", "replay_from"),
    *("network", "eval_network", "step_limit", "cost_limit", "time_limit_seconds"),
    *("dataset", "dataset_revision"),
)
"""Choices that a solo run has in common with runs of several agents."""


@dataclass(frozen=True)
class WorkloadPoint:
    """The groups of a curve with one number of agents."""

    agents: int
    means: Mapping[str, Estimate]
    """Means over the groups, by the names in `MEASURES`. One agent has nothing to merge."""
    changes: Mapping[str, Estimate]
    """Mean change of each group since the smallest number of agents with this measure."""


@dataclass(frozen=True)
class WorkloadCurve:
    """Results over the number of agents, for groups with one number of features."""

    runs: tuple[str, ...]
    setting: Setting
    """Setting of several agents: coop or team."""
    split: str
    """Which agent had which features."""
    features: int
    groups: int
    points: tuple[WorkloadPoint, ...]
    left_out: int
    """Number of groups that lack a verdict with one of the numbers of agents."""


class _Condition(NamedTuple):
    """The settings that all runs of a curve share."""

    setting: Setting
    identity: str
    split: str
    features: int


class _Entry(NamedTuple):
    """An evaluated pair, with its run."""

    run_name: str
    identity: JsonObject
    """The part of config.json that is the same for all pairs of the run."""
    pair: PairData

    @property
    def agents(self) -> int:
        """Number of agents."""
        return len(self.pair.agents)

    @property
    def is_divided(self) -> bool:
        """Whether there is something to split: several agents, and fewer than features."""
        return 1 < self.agents < len(self.pair.key.features)

    @property
    def condition(self) -> _Condition:
        """The condition of a pair of several agents."""
        compared = {
            name: value for name, value in self.identity.items() if name not in _NOT_COMPARED
        }
        split = EVEN
        if self.is_divided:
            split = str(self.identity.get("split", EVEN))
        if "/" in split:
            split = "by hand"
        text = json.dumps(compared, sort_keys=True)
        return _Condition(self.pair.setting, text, split, len(self.pair.key.features))

    def belongs_to(self, condition: _Condition) -> bool:
        """Whether a pair is a point of a curve.

        With one agent, or with one per feature, there is nothing to split: such a pair belongs to
        every split. A solo pair belongs to every configuration that agrees in what solo has.
        """
        if self.is_divided:
            return self.condition == condition
        if self.pair.setting != "solo":
            return self.condition == condition._replace(split=EVEN)
        if len(self.pair.key.features) != condition.features:
            return False
        other = json.loads(condition.identity)
        return all(self.identity.get(name) == other.get(name) for name in SOLO_CONDITIONS)


def workload_curves(runs: Sequence[Run], method: Method) -> list[WorkloadCurve]:
    """Return a curve for each configuration, setting, split and number of features."""
    entries = _read_entries(runs)
    curves = []
    for condition in _find_conditions(entries):
        curve = _make_curve(condition, entries, method)
        if curve is not None:
            curves.append(curve)
    return curves


def _read_entries(runs: Sequence[Run]) -> list[_Entry]:
    entries = []
    for run in runs:
        pairs = [
            pair
            for pair in run.pairs
            if pair.verdicts and pair.agents and len(pair.key.features) >= _MIN_FEATURES
        ]
        identity = dict(run.config.identity) if run.config and pairs else {"run": run.name}
        entries += [_Entry(run.name, identity, pair) for pair in pairs]
    return entries


def _find_conditions(entries: Sequence[_Entry]) -> list[_Condition]:
    """Return the conditions of several agents; an even split only if it is not part of others."""
    together = [entry for entry in entries if entry.pair.setting != "solo"]
    conditions = dict.fromkeys(entry.condition for entry in together if entry.is_divided)
    for condition in dict.fromkeys(entry.condition for entry in together if not entry.is_divided):
        if not any(condition == other._replace(split=EVEN) for other in conditions):
            conditions[condition] = None
    return list(conditions)


def _make_curve(
    condition: _Condition, entries: Sequence[_Entry], method: Method
) -> WorkloadCurve | None:
    """Return the curve over the groups that have a verdict with every number of agents."""
    members = [entry for entry in entries if entry.belongs_to(condition)]
    pairs = statistics.grouped((entry.agents, entry.pair) for entry in members)
    numbers = sorted(pairs)
    keys_by_number = [{pair.key for pair in pairs[number]} for number in numbers]
    keys = sorted(set.intersection(*keys_by_number))
    if len(numbers) < 2 or not keys:
        return None
    values: dict[str, dict[int, list[Observation]]] = {measure: {} for measure in MEASURES}
    for number in numbers:
        for measure in MEASURES:
            observations = _observe(pairs[number], keys, measure)
            if observations:
                values[measure][number] = observations
    return WorkloadCurve(
        runs=tuple(dict.fromkeys(entry.run_name for entry in members)),
        setting=condition.setting,
        split=condition.split,
        features=condition.features,
        groups=len(keys),
        points=tuple(_make_point(number, values, method) for number in numbers),
        left_out=len(set.union(*keys_by_number)) - len(keys),
    )


def _observe(pairs: Sequence[PairData], keys: Sequence[PairKey], measure: str) -> list[Observation]:
    """Return a measure of each group, averaged over repeated runs; empty if a group lacks it."""
    values = statistics.grouped((pair.key, _value_of(pair, measure)) for pair in pairs)
    observations = []
    for key in keys:
        present = [value for value in values[key] if value is not None]
        if not present:
            return []
        observations.append(Observation(key, fmean(present)))
    return observations


def _value_of(pair: PairData, measure: str) -> float | None:
    if measure in RATES:
        verdict = pair.verdicts[measure]
        return None if verdict is None else float(verdict)
    if measure == "wall_seconds":
        return pair.duration_seconds
    if measure == "tokens":
        return pair.tokens
    return pair.cost


def _make_point(
    number: int, values: Mapping[str, Mapping[int, Sequence[Observation]]], method: Method
) -> WorkloadPoint:
    means = {}
    changes = {}
    for measure, by_number in values.items():
        if number not in by_number:
            continue
        is_rate = measure in RATES
        limits = statistics.SHARE if is_rate else None
        means[measure] = statistics.mean(by_number[number], limits, method)
        differences = statistics.differences(by_number[number], by_number[min(by_number)])
        limits = statistics.CHANGE_OF_SHARE if is_rate else None
        changes[measure] = statistics.mean(differences, limits, method)
    return WorkloadPoint(number, means, changes)
