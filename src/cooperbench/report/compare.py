"""The same pairs in two runs, or in two settings: what changed, by how much, and could it be chance?

Only pairs with a verdict on both sides are compared; the others are named with their state on each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError
from cooperbench.models import SETTINGS
from cooperbench.report.states import VERDICTS
from cooperbench.report.statistics.distributions import mcnemar_exact
from cooperbench.report.statistics.intervals import Estimate, Observation, mean, rate, ratio

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cooperbench.models import Setting
    from cooperbench.report import Method
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData, PairKey


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


@dataclass(frozen=True)
class Unpaired:
    """A pair that cannot be compared, and its state on both sides."""

    key: PairKey
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
    p_value: float
    """McNemar's exact test of `gained` against `lost`; it takes pairs for independent."""
    unpaired: tuple[Unpaired, ...]
    deficit: Estimate | None = None
    """Solo minus coop; None where both sides are the same setting."""
    retention: Estimate | None = None
    """Coop over solo; None likewise."""
    unsound: tuple[PairKey, ...] = ()
    """Compared pairs with tests that pass without the feature."""
    sound: Comparison | None = None
    """The same without those; None where there are none."""

    @property
    def drop(self) -> float:
        return -(self.difference.value or 0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "verdict": self.verdict,
            **self.estimates_json(),
            "gained": [key.to_json() for key in self.gained],
            "lost": [key.to_json() for key in self.lost],
            "mcnemar_p": self.p_value,
            "unpaired": [
                {**one.key.to_json(), "first_state": one.first_state, "second_state": one.second_state}
                for one in self.unpaired
            ],
            "unsound": {"pairs": [key.to_json() for key in self.unsound], **self.sound.estimates_json()}
            if self.sound
            else None,
        }

    def estimates_json(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "first_rate": self.first_rate.to_json(),
            "second_rate": self.second_rate.to_json(),
            "difference": self.difference.to_json(),
            "coordination_deficit": self.deficit.to_json() if self.deficit else None,
            "retention": self.retention.to_json() if self.retention else None,
        }


def compare_sides(
    first: Side,
    second: Side,
    verdict: str = "overall",
    method: Method = "clustered",
    without: Collection[PairKey] = (),
) -> Comparison:
    """Everything about two sides. A method of `wilson` is for the two rates; a difference has none: it is clustered."""
    if verdict not in VERDICTS:
        raise UserError(f"no verdict {verdict!r}; there are: {', '.join(VERDICTS)}")
    ours, theirs = first.pairs, second.pairs
    before, after, unpaired = [], [], []
    for key in sorted({*ours, *theirs} - {*without}):
        pairs = ours.get(key), theirs.get(key)
        old, new = (pair.verdict(verdict) if pair else None for pair in pairs)
        if old is None or new is None:
            unpaired.append(Unpaired(key, _state(pairs[0]), _state(pairs[1])))
        else:
            before.append(Observation(key, float(old)))
            after.append(Observation(key, float(new)))
    changes = [Observation(old.key, new.value - old.value) for old, new in zip(before, after, strict=True)]
    over_tasks: Method = "clustered" if method == "wilson" else method
    gained = tuple(key for key, change in changes if change > 0)
    lost = tuple(key for key, change in changes if change < 0)
    deficit = retention = None
    if first.setting != second.setting:
        solo, coop = (before, after) if first.setting == "solo" else (after, before)
        deficit = mean(
            [Observation(one.key, one.value - other.value) for one, other in zip(solo, coop, strict=True)],
            (-1.0, 1.0),
            over_tasks,
        )
        retention = ratio(coop, solo)
    unsound = tuple(key for key, _ in changes if ours[key].unsound or theirs[key].unsound)
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
        p_value=mcnemar_exact(len(gained), len(lost)),
        unpaired=tuple(unpaired),
        deficit=deficit,
        retention=retention,
        unsound=unsound,
        sound=compare_sides(first, second, verdict, method, unsound) if unsound else None,
    )


def _state(pair: PairData | None) -> str:
    return "not part of it" if pair is None else pair.state


def sides_to_compare(chosen: Sequence[tuple[Run, Setting | None]]) -> list[tuple[Side, Side]]:
    """Which settings stand against which: as said, else one run's solo and coop, else what both runs have."""
    if len(chosen) == 1:
        run, setting = chosen[0]
        if setting is not None or set(run.settings) != set(SETTINGS):
            raise UserError(
                f"run {run.name!r} has {' and '.join(run.settings) or 'nothing'} to compare with itself; "
                "name a second run, or one that has both solo and coop"
            )
        return [(Side(run, "solo"), Side(run, "coop"))]
    if len(chosen) != 2:
        raise UserError(f"compare takes one run or two, not {len(chosen)}")
    (first, first_setting), (second, second_setting) = chosen
    for run, setting in chosen:
        if setting is not None and setting not in run.settings:
            raise UserError(
                f"run {run.name!r} has no {setting} pairs; it has {', '.join(run.settings) or 'none'}"
            )
    ours = (first_setting,) if first_setting else first.settings
    theirs = (second_setting,) if second_setting else second.settings
    if len(ours) == len(theirs) == 1:
        return [(Side(first, ours[0]), Side(second, theirs[0]))]
    shared = [setting for setting in ours if setting in theirs]
    if not shared:
        raise UserError(
            f"runs {first.name!r} and {second.name!r} have no setting in common; name one, e.g. RUN:coop"
        )
    return [(Side(first, setting), Side(second, setting)) for setting in shared]


def match_solo_and_coop(runs: Sequence[Run]) -> tuple[list[tuple[Side, Side]], list[Side]]:
    """Each coop side with the solo side of its own run, or else with that of every run of the same agent and model.

    Only on the same dataset. What another agent or model does alone says nothing about cooperation: such coop sides
    are the second part of the answer.
    """
    matched: list[tuple[Side, Side]] = []
    alone: list[Side] = []
    solo_runs = [run for run in runs if "solo" in run.settings]
    for run in (run for run in runs if "coop" in run.settings):
        alike = [
            other
            for other in solo_runs
            if (other.configuration, other.dataset) == (run.configuration, run.dataset)
        ]
        chosen = [run] if "solo" in run.settings else alike
        matched += [(Side(one, "solo"), Side(run, "coop")) for one in chosen]
        if not chosen:
            alone.append(Side(run, "coop"))
    return matched, alone


def check_same_dataset(runs: Sequence[Run], *, anyway: bool = False) -> None:
    """Numbers of different datasets do not belong into one table."""
    different = {run.dataset: run.name for run in reversed(runs)}
    if len(different) > 1 and not anyway:
        listed = "; ".join(
            f"{name} has {dataset or 'an unknown dataset'}" + (f" at revision {revision}" if revision else "")
            for (dataset, revision), name in reversed(different.items())
        )
        raise UserError(
            f"these runs are of different datasets ({listed}); add --anyway to go on all the same"
        )
