"""Results over a scale: success by the difficulty of pairs, and by the number of agents.

The difficulty of a pair is 1 minus its mean solo success over models (the repeated runs of a model
are averaged first), rescaled so that the easiest pair has 0 and the hardest 1. Curves over the
number of agents only use nested groups of the same features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

from cooperbench.eval.conflicts import known_conflicts
from cooperbench.models import SETTINGS, Setting
from cooperbench.report import Method, statistics
from cooperbench.report.dataset_files import find_dataset
from cooperbench.report.loading import Run
from cooperbench.report.pairs import PairData, PairKey, applicable_verdicts
from cooperbench.report.statistics import Estimate, Observation

BUCKETS = 10
MIN_FILLED_BUCKETS = 3
"""A single solo run fills two buckets, solved and not solved, which is not a curve."""
_ALL = "all"
"""Configuration of the curve over all configurations."""

Unit = Literal["agents", "features"]
Outcomes = Mapping[str, Sequence[Observation]]
"""Verdicts by configuration. A pair that was run several times has several."""


@dataclass(frozen=True)
class Bucket:
    """Pairs of about the same difficulty; the last bucket includes its upper end."""

    low: float
    high: float
    pairs: int
    solo: Estimate
    together: Estimate

    @property
    def center(self) -> float:
        """The difficulty in the middle of the bucket."""
        return (self.low + self.high) / 2.0


@dataclass(frozen=True)
class Curve:
    """Solo and another setting by difficulty, for one configuration or for all."""

    configuration: str
    setting: Setting
    """The other setting: coop or team."""
    solo_area: float | None
    """Area between the centers of buckets that have both settings, by the trapezoid rule; None with
    fewer than two such buckets."""
    together_area: float | None
    delta_area: float | None
    """ΔAUC: the cost of cooperation over the whole scale."""
    retention: float | None
    buckets: tuple[Bucket, ...]

    @property
    def has_enough_difficulties(self) -> bool:
        """Whether there are pairs of more than two difficulties."""
        filled = [bucket for bucket in self.buckets if bucket.pairs]
        return len(filled) >= MIN_FILLED_BUCKETS


@dataclass(frozen=True, order=True)
class ScoredPair(PairKey):
    """A pair and its difficulty."""

    difficulty: float


@dataclass(frozen=True)
class Difficulty:
    """The difficulty of pairs, and success by difficulty."""

    configurations: tuple[str, ...]
    """Configurations whose solo results make the scale."""
    unscored: int
    """Number of pairs with a verdict of several agents but none of solo. They are in no curve."""
    curves: tuple[Curve, ...] = ()
    """For each setting all configurations together; then each of them, if there are several."""
    scores: tuple[ScoredPair, ...] = ()


def analyse_difficulty(runs: Sequence[Run]) -> Difficulty:
    """Return success by difficulty.

    There are no curves if nothing can be compared, or if all pairs are equally difficult.
    """
    solo = _outcomes_by_configuration(runs, "solo")
    together: dict[Setting, Outcomes] = {}
    for setting in SETTINGS:
        if setting != "solo":
            together[setting] = _outcomes_by_configuration(runs, setting)
    failure_rates = _solo_failure_rates(solo)
    evaluated: set[PairKey] = set()
    for outcomes in together.values():
        evaluated |= _keys(outcomes)
    configurations = tuple(sorted(solo))
    unscored = len(evaluated - failure_rates.keys())
    scores = _rescale(failure_rates)
    if not evaluated or not scores:
        return Difficulty(configurations, unscored)
    bucket_by_pair = {key: _bucket_index(score) for key, score in scores.items()}
    curves: list[Curve] = []
    for setting, outcomes in together.items():
        if outcomes:
            curves += _curves_of_setting(setting, bucket_by_pair, solo, outcomes)
    scored_pairs = [
        ScoredPair(key.repo, key.task_id, key.features, score) for key, score in scores.items()
    ]
    return Difficulty(configurations, unscored, tuple(curves), tuple(scored_pairs))


def _outcomes_by_configuration(
    runs: Sequence[Run], setting: Setting
) -> dict[str, list[Observation]]:
    outcomes: dict[str, list[Observation]] = {}
    for run in runs:
        observations = statistics.observe_verdict(run.of(setting))
        if observations:
            outcomes.setdefault(run.configuration, []).extend(observations)
    return outcomes


def _keys(outcomes: Outcomes) -> set[PairKey]:
    keys: set[PairKey] = set()
    for observations in outcomes.values():
        keys.update(observation.key for observation in observations)
    return keys


def _solo_failure_rates(solo: Outcomes) -> dict[PairKey, float]:
    """Return 1 minus the solo success of each pair; every configuration counts once."""
    success_by_configuration: list[Observation] = []
    for observations in solo.values():
        for key, success in statistics.means_by_pair(observations).items():
            success_by_configuration.append(Observation(key, success))
    means = statistics.means_by_pair(success_by_configuration)
    return {key: 1.0 - success for key, success in means.items()}


def _rescale(failure_rates: Mapping[PairKey, float]) -> dict[PairKey, float]:
    """Return difficulties from 0 to 1; empty if all pairs are equally difficult."""
    easiest = min(failure_rates.values(), default=0.0)
    hardest = max(failure_rates.values(), default=0.0)
    if easiest == hardest:
        return {}
    return {key: (rate - easiest) / (hardest - easiest) for key, rate in failure_rates.items()}


def _bucket_index(score: float) -> int:
    # Rounded first, because 1 - 0.9 is a little less than a tenth.
    return min(int(round(BUCKETS * score, 9)), BUCKETS - 1)


def _curves_of_setting(
    setting: Setting, bucket_by_pair: Mapping[PairKey, int], solo: Outcomes, together: Outcomes
) -> list[Curve]:
    configurations = sorted({*solo, *together})
    groups = {_ALL: configurations}
    if len(configurations) > 1:
        groups.update({name: [name] for name in configurations})
    return [
        _curve(name, setting, bucket_by_pair, _select(solo, group), _select(together, group))
        for name, group in groups.items()
    ]


def _select(outcomes: Outcomes, configurations: Sequence[str]) -> list[Observation]:
    observations: list[Observation] = []
    for name in configurations:
        observations += outcomes.get(name, ())
    return observations


def _curve(
    name: str,
    setting: Setting,
    bucket_by_pair: Mapping[PairKey, int],
    solo: Sequence[Observation],
    together: Sequence[Observation],
) -> Curve:
    pair_buckets = list(bucket_by_pair.values())
    buckets = []
    for index in range(BUCKETS):
        bucket = Bucket(
            low=index / BUCKETS,
            high=(index + 1) / BUCKETS,
            pairs=pair_buckets.count(index),
            solo=_bucket_rate(solo, bucket_by_pair, index),
            together=_bucket_rate(together, bucket_by_pair, index),
        )
        buckets.append(bucket)
    solo_points = []
    together_points = []
    for bucket in buckets:
        if bucket.solo.value is not None and bucket.together.value is not None:
            solo_points.append((bucket.center, bucket.solo.value))
            together_points.append((bucket.center, bucket.together.value))
    solo_area, together_area = area(solo_points), area(together_points)
    delta_area = retention = None
    if solo_area is not None and together_area is not None:
        delta_area = solo_area - together_area
        retention = together_area / solo_area if solo_area else None
    return Curve(
        configuration=name,
        setting=setting,
        solo_area=solo_area,
        together_area=together_area,
        delta_area=delta_area,
        retention=retention,
        buckets=tuple(buckets),
    )


def _bucket_rate(
    observations: Sequence[Observation], bucket_by_pair: Mapping[PairKey, int], index: int
) -> Estimate:
    inside = [
        observation for observation in observations if bucket_by_pair.get(observation.key) == index
    ]
    return statistics.rate(inside, "wilson")


def area(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the area under the lines between points, in order; None for fewer than two."""
    if len(points) < 2:
        return None
    total = 0.0
    for (left_x, left_y), (right_x, right_y) in pairwise(points):
        total += (right_x - left_x) * (left_y + right_y) / 2.0
    return total


@dataclass(frozen=True)
class CurvePoint:
    """Groups with one number of agents."""

    agents: int
    groups: int
    rates: Mapping[str, Estimate]
    """Overall, and merge where there is something to merge; n is the number of largest groups."""
    change: Estimate
    """Change of overall since the smallest number of agents."""
    golden: Estimate | None
    """Share of groups whose golden patches merge without a conflict; None if it is not known for
    all groups."""


@dataclass(frozen=True)
class AgentCurve:
    """Success by the number of agents, for runs of one configuration in one setting.

    Where the number of agents is given, as in solo, the scale is the number of features.
    """

    runs: tuple[str, ...]
    setting: Setting
    points: tuple[CurvePoint, ...]
    left_out: int
    """Number of evaluated groups that are not nested with groups of all other sizes."""
    unit: Unit
    """What `agents` of the points counts."""


GroupsBySize = dict[int, list[PairKey]]
NestedGroups = dict[PairKey, GroupsBySize]
"""The largest groups, each with the groups inside of it by size."""


def agent_curve(runs: Sequence[Run], setting: Setting, method: Method) -> AgentCurve | None:
    """Return success by the number of agents.

    Each of the largest groups has a value at every size: the mean over the groups of that size
    inside of it.

    Args:
        runs: Runs that differ only in their names.
        setting: The setting.
        method: How to compute intervals.

    Returns:
        None if all groups have one size, or if none are nested.
    """
    means_by_verdict = _means_by_verdict(runs, setting)
    overall = means_by_verdict["overall"]
    sizes = sorted({len(key.features) for key in overall})
    nested = _find_nested(list(overall), sizes)
    if len(sizes) < 2 or not nested:
        return None
    golden = _golden_merges(runs)
    points = []
    used: set[PairKey] = set()
    for size in sizes:
        groups = _groups_of_size(nested, size)
        used |= groups
        changes = statistics.differences(
            _means_at_size(nested, size, overall), _means_at_size(nested, sizes[0], overall)
        )
        point = CurvePoint(
            agents=size,
            groups=len(groups),
            rates={
                verdict: statistics.rate(_means_at_size(nested, size, means), method)
                for verdict, means in means_by_verdict.items()
            },
            change=statistics.mean(changes, statistics.CHANGE_OF_SHARE, method),
            golden=(
                statistics.rate(_means_at_size(nested, size, golden), method)
                if groups <= golden.keys()
                else None
            ),
        )
        points.append(point)
    names = tuple(run.name for run in runs)
    unit = _unit_of(runs[0], setting)
    return AgentCurve(names, setting, tuple(points), len(overall) - len(used), unit)


def _unit_of(run: Run, setting: Setting) -> Unit:
    """Return what the sizes of groups count.

    Runs of one configuration have the same number of agents, if one is given.
    """
    is_given = any(pair.agent_count is not None for pair in run.of(setting))
    if setting == "solo" or is_given:
        return "features"
    return "agents"


def _means_by_verdict(runs: Sequence[Run], setting: Setting) -> dict[str, dict[PairKey, float]]:
    """Return success and merges of each group, averaged over repeated runs."""
    pairs: list[PairData] = []
    for run in runs:
        pairs += run.of(setting)
    means: dict[str, dict[PairKey, float]] = {}
    for verdict in ("overall", "merge"):
        if verdict in applicable_verdicts(setting):
            observations = statistics.observe_verdict(pairs, verdict)
            means[verdict] = statistics.means_by_pair(observations)
    return means


def _means_at_size(
    nested: NestedGroups, size: int, values: Mapping[PairKey, float]
) -> list[Observation]:
    """Return for each of the largest groups the mean over the groups of a size inside of it."""
    observations = []
    for key, groups in nested.items():
        inner_values = [values[group] for group in groups[size]]
        observations.append(Observation(key, fmean(inner_values)))
    return observations


def _groups_of_size(nested: NestedGroups, size: int) -> set[PairKey]:
    groups: set[PairKey] = set()
    for inner in nested.values():
        groups.update(inner[size])
    return groups


def _find_nested(keys: Sequence[PairKey], sizes: Sequence[int]) -> NestedGroups:
    """Return the largest groups that contain groups of every size."""
    keys_by_task = statistics.grouped((statistics.cluster_of(key), key) for key in keys)
    nested = {}
    for key in keys:
        if len(key.features) != sizes[-1]:
            continue
        groups: GroupsBySize = {size: [] for size in sizes}
        for other in keys_by_task[statistics.cluster_of(key)]:
            if set(other.features) <= set(key.features):
                groups[len(other.features)].append(other)
        if all(groups.values()):
            nested[key] = groups
    return nested


def _golden_merges(runs: Sequence[Run]) -> dict[PairKey, float]:
    """Return 1 for groups whose golden patches merge, 0 for others, if the dataset says so."""
    folder = find_dataset(runs)
    if folder is None:
        return {}
    merges = {}
    for (repo, task_id, features), is_conflict in known_conflicts(folder).items():
        merges[PairKey(repo, task_id, features)] = 0.0 if is_conflict else 1.0
    return merges
