"""How results fall with difficulty: solo and coop over the same scale, and the area between them.

A pair's difficulty is 1 minus its mean solo success over models (a model's repeated runs are averaged first), rescaled
so that the easiest pair has 0 and the hardest 1. So the solo curve falls by construction; the coop curve beside it is
what tells something. Fractions are exact: a pair does not change its bucket by rounding.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from cooperbench.report.statistics.intervals import Estimate, wilson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairKey

BUCKETS = 10
_FEWEST_BUCKETS = 3
"""One solo run fills two: what it solved and what it did not. That is no curve."""
ALL = "all"


@dataclass(frozen=True)
class Bucket:
    """Pairs of about the same difficulty; the last bucket includes its upper end."""

    low: float
    high: float
    pairs: int
    solo: Estimate
    coop: Estimate

    @property
    def centre(self) -> float:
        return (self.low + self.high) / 2.0


@dataclass(frozen=True)
class Curve:
    """One configuration's results by difficulty, or those of all together."""

    configuration: str
    buckets: tuple[Bucket, ...]
    solo_area: float | None
    """By the trapezoid rule between the centres of buckets that have both; None with fewer than two of them."""
    coop_area: float | None

    @property
    def is_telling(self) -> bool:
        """Whether there are pairs of more than two difficulties."""
        return sum(bucket.pairs > 0 for bucket in self.buckets) >= _FEWEST_BUCKETS

    @property
    def lost_area(self) -> float | None:
        """ΔAUC: what cooperation costs over the whole scale."""
        return None if self.solo_area is None or self.coop_area is None else self.solo_area - self.coop_area

    @property
    def retention(self) -> float | None:
        return self.coop_area / self.solo_area if self.solo_area and self.coop_area is not None else None

    def to_json(self) -> dict[str, Any]:
        return {
            "configuration": self.configuration,
            "solo_area": self.solo_area,
            "coop_area": self.coop_area,
            "delta_area": self.lost_area,
            "retention": self.retention,
            "buckets": [asdict(bucket) for bucket in self.buckets],
        }


@dataclass(frozen=True)
class Difficulty:
    """Of a set of runs."""

    configurations: tuple[str, ...]
    """Whose solo results make the scale."""
    scores: Mapping[PairKey, float]
    curves: tuple[Curve, ...]
    """All together first; then each configuration, where there are several. Empty: `note` says why."""
    unscored: int
    """Pairs with a coop verdict and no solo one: they have no difficulty and are in no curve."""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "configurations": list(self.configurations),
            "pairs": len(self.scores),
            "unscored": self.unscored,
            "note": self.note,
            "curves": [curve.to_json() for curve in self.curves],
            "scores": [{**key.to_json(), "difficulty": score} for key, score in self.scores.items()],
        }


Outcomes = dict[str, dict["PairKey", list[bool]]]
"""Verdicts by configuration and pair; several where it was run several times."""


def analyse_difficulty(runs: Sequence[Run]) -> Difficulty:
    """The analysis over all runs that are given: solo and coop, of as many configurations as there are."""
    solo, coop = _outcomes(runs, "solo"), _outcomes(runs, "coop")
    raw = _raw_difficulties(solo)
    unscored = len({key for pairs in coop.values() for key in pairs} - raw.keys())
    if not raw or not coop:
        missing = "coop" if raw else "solo"
        return Difficulty(tuple(solo), {}, (), unscored, f"no {missing} verdicts")
    easiest, hardest = min(raw.values()), max(raw.values())
    if easiest == hardest:
        return Difficulty(tuple(solo), {}, (), unscored, "all pairs are equally difficult")
    scores = {key: (value - easiest) / (hardest - easiest) for key, value in sorted(raw.items())}
    configurations = sorted({*solo, *coop})
    curves = [_curve(ALL, scores, list(solo.values()), list(coop.values()))]
    if len(configurations) > 1:
        curves += [
            _curve(name, scores, [solo.get(name, {})], [coop.get(name, {})]) for name in configurations
        ]
    return Difficulty(
        tuple(sorted(solo)), {key: float(score) for key, score in scores.items()}, tuple(curves), unscored
    )


def _outcomes(runs: Sequence[Run], setting: Setting) -> Outcomes:
    outcomes: Outcomes = {}
    for run in runs:
        for pair in run.of(setting):
            if pair.verdicts is not None:
                pairs = outcomes.setdefault(run.configuration, {})
                pairs.setdefault(pair.key, []).append(pair.verdicts.overall)
    return outcomes


def _raw_difficulties(solo: Outcomes) -> dict[PairKey, Fraction]:
    rates: dict[PairKey, list[Fraction]] = {}
    for pairs in solo.values():
        for key, outcomes in pairs.items():
            rates.setdefault(key, []).append(Fraction(sum(outcomes), len(outcomes)))
    return {key: 1 - sum(values, Fraction(0)) / len(values) for key, values in rates.items()}


def _curve(
    name: str,
    scores: Mapping[PairKey, Fraction],
    solo: Sequence[Mapping[PairKey, list[bool]]],
    coop: Sequence[Mapping[PairKey, list[bool]]],
) -> Curve:
    places = {key: min(int(score * BUCKETS), BUCKETS - 1) for key, score in scores.items()}
    buckets = tuple(
        Bucket(
            low=place / BUCKETS,
            high=(place + 1) / BUCKETS,
            pairs=sum(where == place for where in places.values()),
            solo=_pooled(place, places, solo),
            coop=_pooled(place, places, coop),
        )
        for place in range(BUCKETS)
    )
    filled = [bucket for bucket in buckets if bucket.solo.n and bucket.coop.n]
    return Curve(
        name,
        buckets,
        area([(bucket.centre, bucket.solo.value or 0.0) for bucket in filled]),
        area([(bucket.centre, bucket.coop.value or 0.0) for bucket in filled]),
    )


def _pooled(
    place: int, places: Mapping[PairKey, int], outcomes: Sequence[Mapping[PairKey, list[bool]]]
) -> Estimate:
    found = [
        passed
        for pairs in outcomes
        for key, values in pairs.items()
        if places.get(key) == place
        for passed in values
    ]
    return wilson(sum(found), len(found))


def area(points: Sequence[tuple[float, float]]) -> float | None:
    """Under straight lines between points, in the order given; None with fewer than two."""
    if len(points) < 2:
        return None
    return sum((right[0] - left[0]) * (left[1] + right[1]) / 2.0 for left, right in pairwise(points))
