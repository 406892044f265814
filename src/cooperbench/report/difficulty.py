"""How results fall with difficulty: solo and coop over the same scale, and the area between them.

A pair's difficulty is 1 minus its mean solo success over models (a model's repeated runs are averaged first), rescaled
so that the easiest pair has 0 and the hardest 1. So the solo curve falls by construction; the coop curve beside it is
what tells something. Fractions are exact: a pair does not change its bucket by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from cooperbench.report.records import PairKey
from cooperbench.report.statistics import Estimate, wilson

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.report.loading import Run

BUCKETS = 10
_FEWEST_BUCKETS = 3
"""One solo run fills two: what it solved and what it did not. That is no curve."""
Outcomes = dict[str, dict[PairKey, list[bool]]]
"""Verdicts by configuration and pair; several where it was run several times."""


@dataclass(frozen=True)
class Bucket:
    """Pairs of about the same difficulty; the last bucket includes its upper end."""

    low: float
    high: float
    pairs: int
    solo: Estimate
    coop: Estimate


@dataclass(frozen=True)
class Curve:
    """One configuration's results by difficulty, or those of all together."""

    configuration: str
    solo_area: float | None
    """By the trapezoid rule between the centres of buckets that have both; None with fewer than two of them."""
    coop_area: float | None
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
    """Of a set of runs."""

    configurations: tuple[str, ...]
    """Whose solo results make the scale."""
    unscored: int
    """Pairs with a coop verdict and no solo one: they have no difficulty and are in no curve."""
    note: str = ""
    """Why there are no curves."""
    curves: tuple[Curve, ...] = ()
    """All together first; then each configuration, where there are several."""
    scores: tuple[ScoredPair, ...] = ()


def analyse_difficulty(runs: Sequence[Run]) -> Difficulty:
    """The analysis over all runs that are given: solo and coop, of as many configurations as there are."""
    solo, coop = _outcomes(runs, "solo"), _outcomes(runs, "coop")
    raw = _raw_difficulties(solo)
    unscored = len({key for pairs in coop.values() for key in pairs} - raw.keys())
    easiest, hardest = min(raw.values(), default=Fraction(0)), max(raw.values(), default=Fraction(0))
    if not raw or not coop or easiest == hardest:
        missing = "no solo verdicts" if not raw else "no coop verdicts" if not coop else ""
        return Difficulty(tuple(sorted(solo)), unscored, missing or "all pairs are equally difficult")
    scores = {key: (value - easiest) / (hardest - easiest) for key, value in sorted(raw.items())}
    places = {key: min(int(score * BUCKETS), BUCKETS - 1) for key, score in scores.items()}
    curves = [_curve("all", places, solo.values(), coop.values())]
    configurations = sorted({*solo, *coop})
    if len(configurations) > 1:
        curves += [_curve(one, places, [solo.get(one, {})], [coop.get(one, {})]) for one in configurations]
    return Difficulty(
        tuple(sorted(solo)),
        unscored,
        curves=tuple(curves),
        scores=tuple(
            ScoredPair(key.repo, key.task_id, key.features, float(score)) for key, score in scores.items()
        ),
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
    places: Mapping[PairKey, int],
    solo: Iterable[Mapping[PairKey, list[bool]]],
    coop: Iterable[Mapping[PairKey, list[bool]]],
) -> Curve:
    """`places`: the bucket of each pair."""
    solo_rates, coop_rates = _pooled(places, solo), _pooled(places, coop)
    counts = [*places.values()]
    buckets = tuple(
        Bucket(place / BUCKETS, (place + 1) / BUCKETS, counts.count(place), one, other)
        for place, (one, other) in enumerate(zip(solo_rates, coop_rates, strict=True))
    )
    filled = [(one, (one.low + one.high) / 2.0) for one in buckets if one.solo.n and one.coop.n]
    solo_area = area([(centre, one.solo.value or 0.0) for one, centre in filled])
    coop_area = area([(centre, one.coop.value or 0.0) for one, centre in filled])
    delta = retention = None
    if solo_area is not None and coop_area is not None:
        delta = solo_area - coop_area
        retention = coop_area / solo_area if solo_area else None
    return Curve(name, solo_area, coop_area, delta, retention, buckets)


def _pooled(
    places: Mapping[PairKey, int], outcomes: Iterable[Mapping[PairKey, list[bool]]]
) -> list[Estimate]:
    """Of each bucket."""
    found: list[list[bool]] = [[] for _ in range(BUCKETS)]
    for pairs in outcomes:
        for key, values in pairs.items():
            if key in places:
                found[places[key]] += values
    return [wilson(sum(values), len(values)) for values in found]


def area(points: Sequence[tuple[float, float]]) -> float | None:
    """Under straight lines between points, in the order given; None with fewer than two."""
    if len(points) < 2:
        return None
    return sum((right[0] - left[0]) * (left[1] + right[1]) / 2.0 for left, right in pairwise(points))
