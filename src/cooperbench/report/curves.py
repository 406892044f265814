"""Results over a scale: solo against coop and team by the difficulty of pairs, and success by the number of agents.

A pair's difficulty is 1 minus its mean solo success over models (a model's repeated runs are averaged first), rescaled
so that the easiest pair has 0 and the hardest 1. Of the number of agents only nested groups of the same features count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from cooperbench.dataset.discovery import DEMO, resolve_dataset_dir
from cooperbench.errors import UserError
from cooperbench.eval.conflicts import known_conflicts
from cooperbench.models import SETTINGS, Setting
from cooperbench.report import Method, statistics
from cooperbench.report.loading import Run
from cooperbench.report.pairs import PairKey, applicable_verdicts
from cooperbench.report.statistics import Estimate, Observation

BUCKETS = 10
_FEWEST_BUCKETS = 3
"""One solo run fills two: what it solved and what it did not. That is no curve."""


@dataclass(frozen=True)
class Bucket:
    """Pairs of about the same difficulty; the last bucket includes its upper end."""

    low: float
    high: float
    pairs: int
    solo: Estimate
    together: Estimate

    @property
    def centre(self) -> float:
        return (self.low + self.high) / 2.0


@dataclass(frozen=True)
class Curve:
    """Solo against another setting by difficulty, of one configuration or of all."""

    configuration: str
    setting: Setting
    """The other one: coop or team."""
    solo_area: float | None
    """By the trapezoid rule between the centres of buckets that have both; None with fewer than two of them."""
    together_area: float | None
    delta_area: float | None
    """ΔAUC: what cooperation costs over the whole scale."""
    retention: float | None
    buckets: tuple[Bucket, ...]

    @property
    def is_telling(self) -> bool:
        """Whether there are pairs of more than two difficulties."""
        return sum(bucket.pairs > 0 for bucket in self.buckets) >= _FEWEST_BUCKETS


@dataclass(frozen=True, order=True)
class ScoredPair(PairKey):
    difficulty: float


@dataclass(frozen=True)
class Difficulty:
    configurations: tuple[str, ...]
    """Whose solo results make the scale."""
    unscored: int
    """Pairs with a verdict of several agents and no solo one: they have no difficulty and are in no curve."""
    curves: tuple[Curve, ...] = ()
    """For each setting all together first; then each configuration, where there are several."""
    scores: tuple[ScoredPair, ...] = ()


def analyse_difficulty(runs: Sequence[Run]) -> Difficulty:
    """Without curves where there is nothing to compare, or all pairs are equally difficult."""
    solo = _outcomes(runs, "solo")
    together = {setting: _outcomes(runs, setting) for setting in SETTINGS if setting != "solo"}
    solved = [
        Observation(*one)
        for known in solo.values()
        for one in statistics.means_by_pair(known).items()
    ]
    raw = {key: 1.0 - share for key, share in statistics.means_by_pair(solved).items()}
    judged = {one.key for known in together.values() for group in known.values() for one in group}
    names, unscored = tuple(sorted(solo)), len(judged - raw.keys())
    easiest, hardest = min(raw.values(), default=0.0), max(raw.values(), default=0.0)
    if not judged or easiest == hardest:
        return Difficulty(names, unscored)
    scores = {key: (value - easiest) / (hardest - easiest) for key, value in raw.items()}
    # Rounded, as 1 - 0.9 is a little less than a tenth.
    places = {
        key: min(int(round(BUCKETS * score, 9)), BUCKETS - 1) for key, score in scores.items()
    }
    curves = []
    for setting, known in together.items():
        configurations = sorted({*solo, *known})
        groups = {
            "all": configurations,
            **{one: [one] for one in configurations if len(configurations) > 1},
        }
        for name, group in groups.items() if known else ():
            sides = [
                [one for each in group for one in side.get(each, ())] for side in (solo, known)
            ]
            curves.append(_curve(name, setting, places, *sides))
    scored = [
        ScoredPair(key.repo, key.task_id, key.features, score) for key, score in scores.items()
    ]
    return Difficulty(names, unscored, tuple(curves), tuple(scored))


def _outcomes(runs: Sequence[Run], setting: Setting) -> dict[str, list[Observation]]:
    """By configuration; a pair several times where it was run several times."""
    known = ((run.configuration, statistics.observe_verdict(run.of(setting))) for run in runs)
    return statistics.grouped((name, one) for name, outcomes in known for one in outcomes)


def _curve(
    name: str,
    setting: Setting,
    places: Mapping[PairKey, int],
    solo: Sequence[Observation],
    together: Sequence[Observation],
) -> Curve:
    """`places`: the bucket of each pair."""
    counts = [*places.values()]
    buckets = []
    for place in range(BUCKETS):
        sides = [[one for one in side if places.get(one.key) == place] for side in (solo, together)]
        rates = (statistics.rate(side, "wilson") for side in sides)
        buckets.append(Bucket(place / BUCKETS, (place + 1) / BUCKETS, counts.count(place), *rates))
    filled = [one for one in buckets if one.solo.n and one.together.n]
    solo_area = area([(one.centre, one.solo.value or 0.0) for one in filled])
    together_area = area([(one.centre, one.together.value or 0.0) for one in filled])
    delta = retention = None
    if solo_area is not None and together_area is not None:
        delta = solo_area - together_area
        retention = together_area / solo_area if solo_area else None
    return Curve(name, setting, solo_area, together_area, delta, retention, tuple(buckets))


def area(points: Sequence[tuple[float, float]]) -> float | None:
    """Under straight lines between points, in the order given; None with fewer than two."""
    if len(points) < 2:
        return None
    return sum(
        (right[0] - left[0]) * (left[1] + right[1]) / 2.0 for left, right in pairwise(points)
    )


@dataclass(frozen=True)
class CurvePoint:
    agents: int
    groups: int
    rates: Mapping[str, Estimate]
    """Overall, and merge where there is something to merge; n: largest groups."""
    change: Estimate
    """Of overall since the fewest agents."""
    golden: Estimate | None
    """The share whose golden patches merge plainly; None where that is not known of all of them."""


@dataclass(frozen=True)
class AgentCurve:
    """Of runs of one configuration in one setting; of solo by the number of features."""

    runs: tuple[str, ...]
    setting: Setting
    points: tuple[CurvePoint, ...]
    left_out: int
    """Judged groups that are not nested with groups of all other sizes."""


def agent_curve(runs: Sequence[Run], setting: Setting, method: Method) -> AgentCurve | None:
    """None where all groups have one size, or none are nested. `runs` differ in nothing but their names.

    Each of the largest groups has a value at every size: the mean over the groups of that size that lie in it.
    """
    names = [name for name in ("overall", "merge") if name in applicable_verdicts(setting)]
    judged = [pair for run in runs for pair in run.of(setting)]
    verdicts = {
        name: statistics.means_by_pair(statistics.observe_verdict(judged, name)) for name in names
    }
    overall = verdicts["overall"]
    sizes = sorted({len(key.features) for key in overall})
    nested = _nested(list(overall), sizes)
    if len(sizes) < 2 or not nested:
        return None

    def at(size: int, values: Mapping[PairKey, float]) -> list[Observation]:
        return [
            Observation(key, fmean(values[one] for one in inner[size]))
            for key, inner in nested.items()
        ]

    golden = {key: 1.0 - conflict for key, conflict in _golden(runs).items()}
    points = []
    used: set[PairKey] = set()
    for size in sizes:
        groups = {key for inner in nested.values() for key in inner[size]}
        used |= groups
        changes = statistics.differences(at(size, overall), at(sizes[0], overall))
        points.append(
            CurvePoint(
                size,
                len(groups),
                {
                    name: statistics.rate(at(size, values), method)
                    for name, values in verdicts.items()
                },
                statistics.mean(changes, statistics.CHANGE_OF_SHARE, method),
                statistics.rate(at(size, golden), method) if groups <= golden.keys() else None,
            )
        )
    return AgentCurve(
        tuple(run.name for run in runs), setting, tuple(points), len(overall) - len(used)
    )


def _nested(
    keys: Sequence[PairKey], sizes: Sequence[int]
) -> dict[PairKey, dict[int, list[PairKey]]]:
    """The largest groups that hold groups of every size, and these by their size."""
    by_task = statistics.grouped((statistics.cluster_of(key), key) for key in keys)
    nested = {}
    for key in (key for key in keys if len(key.features) == sizes[-1]):
        inside = [
            one for one in by_task[statistics.cluster_of(key)] if {*one.features} <= {*key.features}
        ]
        by_size = {size: [one for one in inside if len(one.features) == size] for size in sizes}
        if all(by_size.values()):
            nested[key] = by_size
    return nested


def _golden(runs: Sequence[Run]) -> dict[PairKey, bool]:
    """From the report of the dataset in its usual place, if that is the dataset of these runs."""
    names = {run.dataset[0] for run in runs}
    try:
        folder = resolve_dataset_dir(DEMO if names == {DEMO} else None)
    except UserError:
        return {}
    known = known_conflicts(folder) if names == {folder.name} else {}
    return {PairKey(*place): conflict for place, conflict in known.items()}
