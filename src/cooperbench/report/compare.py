"""The same pairs in two runs, or in two settings: what changed, by how much, and could it be chance?

Only pairs with a verdict on both sides are compared; the others are named with their state on each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.report.loading import Side, sides_of
from cooperbench.report.pairs import PairKey
from cooperbench.report.statistics import (
    CHANGE_OF_SHARE,
    Estimate,
    Observation,
    differences,
    mcnemar_exact,
    mean,
    rate,
    ratio,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.models import Setting
    from cooperbench.report import Method
    from cooperbench.report.loading import Run


@dataclass(frozen=True, order=True)
class Unpaired(PairKey):
    """A pair that cannot be compared, and its state on both sides."""

    first_state: str
    second_state: str


@dataclass(frozen=True)
class Comparison:
    """From the first side to the second, over the pairs that have a verdict on both."""

    first: str
    second: str
    verdict: str
    n: int
    first_rate: Estimate
    second_rate: Estimate
    difference: Estimate
    """Second minus first."""
    gained: tuple[PairKey, ...]
    """Failed on the first side, passed on the second."""
    lost: tuple[PairKey, ...]
    mcnemar_p: float
    """McNemar's exact test of `gained` against `lost`; it takes pairs for independent."""
    unpaired: tuple[Unpaired, ...]
    unsound: tuple[PairKey, ...]
    """Compared pairs with tests that pass without the feature."""
    coordination_deficit: Estimate | None = None
    """Solo minus coop (or team); None where not exactly one side is solo."""
    retention: Estimate | None = None
    """Coop over solo; None likewise."""

    @property
    def drop(self) -> float:
        return -(self.difference.value or 0.0)


def compare_sides(
    first: Side, second: Side, verdict: str = "overall", method: Method = "clustered"
) -> Comparison:
    ours, theirs = first.pairs, second.pairs
    before, after, unpaired = [], [], []
    for key in sorted({*ours, *theirs}):
        pairs = ours.get(key), theirs.get(key)
        old, new = (pair.verdict(verdict) if pair else None for pair in pairs)
        if old is None or new is None:
            states = (pair.state if pair else "not part of it" for pair in pairs)
            unpaired.append(Unpaired(key.repo, key.task_id, key.features, *states))
        else:
            before.append(Observation(key, float(old)))
            after.append(Observation(key, float(new)))
    changes = differences(after, before)
    gained = tuple(key for key, change in changes if change > 0)
    lost = tuple(key for key, change in changes if change < 0)
    deficit = retention = None
    if (first.setting == "solo") != (second.setting == "solo"):
        solo, coop = (before, after) if first.setting == "solo" else (after, before)
        deficit = mean(differences(solo, coop), CHANGE_OF_SHARE, method)
        retention = ratio(coop, solo)
    return Comparison(
        first=first.label,
        second=second.label,
        verdict=verdict,
        n=len(changes),
        first_rate=rate(before, method),
        second_rate=rate(after, method),
        difference=mean(changes, CHANGE_OF_SHARE, method),
        gained=gained,
        lost=lost,
        mcnemar_p=mcnemar_exact(len(gained), len(lost)),
        unpaired=tuple(unpaired),
        unsound=tuple(key for key, _ in changes if ours[key].unsound or theirs[key].unsound),
        coordination_deficit=deficit,
        retention=retention,
    )


def sides_to_compare(chosen: Sequence[tuple[Run, Setting | None]]) -> list[tuple[Side, Side]]:
    """Which settings stand against which: as said, else one run's solo and coop, else what both runs have."""
    sides = [[side for side in sides_of([run]) if setting in (None, side.setting)] for run, setting in chosen]
    if len(chosen) == 1 and chosen[0][1] is None:
        solo = [side for side in sides[0] if side.setting == "solo"]
        others = [side for side in sides[0] if side.setting != "solo"]
        if solo and others:
            return [(solo[0], other) for other in others]
    if len(chosen) != 2:
        raise UserError(
            f"compare takes two runs, or one that has solo and another setting, not {len(chosen)}"
        )
    if [len(one) for one in sides] == [1, 1]:
        return [(sides[0][0], sides[1][0])]
    shared = [(one, other) for one in sides[0] for other in sides[1] if one.setting == other.setting]
    if not shared:
        lists = "; ".join(f"{run.name!r} has {', '.join(run.settings) or 'no pairs'}" for run, _ in chosen)
        raise UserError(f"these have no setting in common ({lists}); name one of each, e.g. RUN:coop")
    return shared


def match_solo_and_coop(runs: Sequence[Run]) -> tuple[list[tuple[Side, Side]], list[Side]]:
    """Each side of several agents with the solo side of its own run, or else of every run of the same agent and model.

    Only on the same dataset. What another agent or model does alone says nothing about cooperation: such sides
    are the second part of the answer.
    """
    matched: list[tuple[Side, Side]] = []
    alone: list[Side] = []
    sides = sides_of(runs)
    solos = [side for side in sides if side.setting == "solo"]
    for coop in (side for side in sides if side.setting != "solo"):
        wanted = coop.run.configuration, coop.run.dataset
        chosen = [solo for solo in solos if solo.run is coop.run] or [
            solo for solo in solos if (solo.run.configuration, solo.run.dataset) == wanted
        ]
        matched += [(solo, coop) for solo in chosen]
        alone += [] if chosen else [coop]
    return matched, alone
