"""The same pairs in two runs, or in two settings: what changed, by how much, and could it be chance?

Only pairs with a verdict on both sides are compared; the others are named with their state on each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.report.records import PairKey
from cooperbench.report.statistics import Estimate, Observation, mcnemar_exact, mean, rate, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.models import Setting
    from cooperbench.report import Method
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData


@dataclass(frozen=True)
class Side:
    """One setting of one run."""

    run: Run
    setting: Setting

    @property
    def label(self) -> str:
        return f"{self.run.name}:{self.setting}"

    @property
    def pairs(self) -> dict[PairKey, PairData]:
        return {pair.key: pair for pair in self.run.of(self.setting)}


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
    """Everything about two sides. A method of `wilson` is for the two rates; a difference has none: it is clustered."""
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
    over_tasks: Method = "clustered" if method == "wilson" else method
    changes = _differences(after, before)
    gained = tuple(key for key, change in changes if change > 0)
    lost = tuple(key for key, change in changes if change < 0)
    deficit = retention = None
    if first.setting != second.setting and "solo" in (first.setting, second.setting):
        solo, coop = (before, after) if first.setting == "solo" else (after, before)
        deficit = mean(_differences(solo, coop), (-1.0, 1.0), over_tasks)
        retention = ratio(coop, solo)
    return Comparison(
        first=first.label,
        second=second.label,
        verdict=verdict,
        n=len(changes),
        first_rate=rate(before, method),
        second_rate=rate(after, method),
        difference=mean(changes, (-1.0, 1.0), over_tasks),
        gained=gained,
        lost=lost,
        mcnemar_p=mcnemar_exact(len(gained), len(lost)),
        unpaired=tuple(unpaired),
        unsound=tuple(key for key, _ in changes if ours[key].unsound or theirs[key].unsound),
        coordination_deficit=deficit,
        retention=retention,
    )


def _differences(above: Sequence[Observation], below: Sequence[Observation]) -> list[Observation]:
    """For the same pairs in the same order."""
    return [Observation(one.key, one.value - other.value) for one, other in zip(above, below, strict=True)]


def sides_to_compare(chosen: Sequence[tuple[Run, Setting | None]]) -> list[tuple[Side, Side]]:
    """Which settings stand against which: as said, else one run's solo and coop, else what both runs have."""
    if (
        len(chosen) == 1
        and chosen[0][1] is None
        and "solo" in (there := chosen[0][0].settings)
        and len(there) > 1
    ):
        return [(Side(chosen[0][0], "solo"), Side(chosen[0][0], one)) for one in there if one != "solo"]
    if len(chosen) != 2:
        raise UserError(
            f"compare takes two runs, or one that has solo and another setting, not {len(chosen)}"
        )
    sides = [[Side(run, one) for one in run.settings if setting in (None, one)] for run, setting in chosen]
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
    for run, setting in [(one, setting) for one in runs for setting in one.settings if setting != "solo"]:
        alike = [
            other
            for other in runs
            if "solo" in other.settings
            and (other.configuration, other.dataset) == (run.configuration, run.dataset)
        ]
        chosen = [run] if "solo" in run.settings else alike
        matched += [(Side(one, "solo"), Side(run, setting)) for one in chosen]
        if not chosen:
            alone.append(Side(run, setting))
    return matched, alone


def check_same_dataset(runs: Sequence[Run], *, anyway: bool = False) -> None:
    """Numbers of different datasets do not belong into one table."""
    different = {run.dataset: run.name for run in reversed(runs)}
    if len(different) > 1 and not anyway:
        shown = "; ".join(
            f"{name} has {dataset or 'an unknown dataset'}" + (f" at revision {revision}" if revision else "")
            for (dataset, revision), name in reversed(different.items())
        )
        raise UserError(f"these runs are of different datasets ({shown}); add --anyway to go on all the same")
