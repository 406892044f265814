"""The same pairs under two conditions: in two runs, in two settings, or in the arms of an ablation.

In an ablation the arms with a part are compared, for each pair, with those that lack only this part; where an arm was
repeated its mean counts. There is a test for each part and measure, corrected by Holm over the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from statistics import fmean

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.models import Setting
from cooperbench.records.study import StudyRecord
from cooperbench.report import Method, statistics
from cooperbench.report.loading import Run, Side, sides_of
from cooperbench.report.pairs import ENDED, VERDICTS, PairData, PairKey
from cooperbench.report.statistics import Estimate, Observation
from cooperbench.text import names_for_error

FOUND = 0.05
"""A corrected p-value below this is an effect."""
MEASURES = {
    **dict.fromkeys(VERDICTS, "share"),
    "conflict": "share",
    "cost": "dollars",
    "time": "seconds",
}
"""What is compared, and its unit: verdicts, plain merges that conflict, and what a pair took."""
Off = frozenset[str]
"""The parts that an arm lacks."""


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
    coordination_deficit: Estimate | None = None
    """Solo minus coop (or team); None where not exactly one side is solo."""
    retention: Estimate | None = None

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
        old, new = (pair.verdicts.get(verdict) if pair else None for pair in pairs)
        if old is None or new is None:
            states = (pair.state if pair else "not part of it" for pair in pairs)
            unpaired.append(Unpaired(key.repo, key.task_id, key.features, *states))
        else:
            before.append(Observation(key, float(old)))
            after.append(Observation(key, float(new)))
    changes = statistics.differences(after, before)
    gained = tuple(key for key, change in changes if change > 0)
    lost = tuple(key for key, change in changes if change < 0)
    deficit = retention = None
    if (first.setting == "solo") != (second.setting == "solo"):
        solo, coop = (before, after) if first.setting == "solo" else (after, before)
        deficit = statistics.mean(
            statistics.differences(solo, coop), statistics.CHANGE_OF_SHARE, method
        )
        retention = statistics.ratio(coop, solo)
    return Comparison(
        first=first.label,
        second=second.label,
        verdict=verdict,
        n=len(changes),
        first_rate=statistics.rate(before, method),
        second_rate=statistics.rate(after, method),
        difference=statistics.mean(changes, statistics.CHANGE_OF_SHARE, method),
        gained=gained,
        lost=lost,
        mcnemar_p=statistics.mcnemar_exact(len(gained), len(lost)),
        unpaired=tuple(unpaired),
        unsound=tuple(key for key, _ in changes if ours[key].unsound or theirs[key].unsound),
        coordination_deficit=deficit,
        retention=retention,
    )


def sides_to_compare(chosen: Sequence[tuple[Run, Setting | None]]) -> list[tuple[Side, Side]]:
    """Which settings stand against which: as said, else one run's solo and coop, else what both runs have."""
    sides = [
        [side for side in sides_of([run]) if setting in (None, side.setting)]
        for run, setting in chosen
    ]
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
    shared = [
        (one, other) for one in sides[0] for other in sides[1] if one.setting == other.setting
    ]
    if not shared:
        lists = "; ".join(
            f"{run.name!r} has {', '.join(run.settings) or 'no pairs'}" for run, _ in chosen
        )
        raise UserError(
            f"these have no setting in common ({lists}); name one of each, e.g. RUN:coop"
        )
    return shared


def match_solo_and_coop(runs: Sequence[Run]) -> tuple[list[tuple[Side, Side]], list[Side]]:
    """Each side of several agents with the solo side of its own run, or else of every run of the same agent, model and
    dataset; then the sides that have none.
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


@dataclass(frozen=True)
class Effect:
    part: str
    measure: str
    unit: str
    with_part: float | None
    without: float | None
    difference: Estimate
    p: float | None
    p_holm: float | None
    smallest_effect: float | None
    """That so many pairs would have shown with a probability of `POWER`."""
    pairs_needed: int | None
    """To show an effect like the one seen; None where it is shown."""


@dataclass(frozen=True)
class Ablation:
    study: str
    arms: tuple[str, ...]
    effects: tuple[Effect, ...]


def analyse_studies(runs: Sequence[Run]) -> list[Ablation]:
    """The ablations whose arm with all parts on is among the runs. UserError where arms differ in more than parts."""
    folders = dict.fromkeys(run.root.resolve().parent for run in runs)
    return [found for folder in folders if (found := _analyse_study(folder, runs))]


def _analyse_study(folder: Path, runs: Sequence[Run]) -> Ablation | None:
    study = records.read(folder / "study.json", StudyRecord)
    if study is None:
        return None
    fields = study.parts
    by_folder = {run.root.resolve(): run for run in runs}
    arms: dict[Off, list[Run]] = {}
    for arm in study.arms:
        run = by_folder.get(folder / (arm.name or "."))
        if run is not None:
            arms.setdefault(frozenset(arm.off), []).append(run)
    if frozenset[str]() not in arms:
        return None
    _check_arms(arms, fields)
    effects = [effect for measure in MEASURES for effect in _effects(arms, tuple(fields), measure)]
    effects.sort(key=lambda effect: [*fields].index(effect.part))
    names = [run.name for repeated in arms.values() for run in repeated]
    return Ablation(folder.name, tuple(names), tuple(effects))


def _check_arms(arms: Mapping[Off, Sequence[Run]], fields: Mapping[str, str]) -> None:
    first = arms[frozenset()][0]
    for off, run in ((off, run) for off, repeated in arms.items() for run in repeated):
        expected = _comparable(first) | {fields[part]: False for part in off if part in fields}
        config = _comparable(run)
        keys = {*expected, *config}
        if different := sorted(key for key in keys if expected.get(key) != config.get(key)):
            what = f"more than {', '.join(sorted(off))}" if off else "its configuration"
            raise UserError(
                f"{run.name} differs from {first.name} in {what}: {names_for_error(different)}"
            )


def _comparable(run: Run) -> records.JsonObject:
    """Return everything in config.json that arms of a study have in common."""
    if run.config is None:
        return {}
    return run.config.identity | {"setting": run.config.setting}


def _effects(
    arms: Mapping[Off, Sequence[Run]], parts: Sequence[str], measure: str
) -> Iterator[Effect]:
    values = {off: _values(runs, measure) for off, runs in arms.items()}
    sides = {part: _with_and_without(part, values) for part in parts}
    changes = {part: statistics.differences(*both) for part, both in sides.items()}
    tested = {
        part: p for part, change in changes.items() if (p := statistics.p_value(change)) is not None
    }
    corrected = dict(zip(tested, statistics.holm(list(tested.values())), strict=True))
    unit = MEASURES[measure]
    kind = statistics.CHANGE_OF_SHARE if unit == "share" else None
    for part, both in sides.items():
        with_part, without = (fmean(one.value for one in side) if side else None for side in both)
        p_holm = corrected.get(part)
        smallest, needed = statistics.power(changes[part], len(parts))
        yield Effect(
            part=part,
            measure=measure,
            unit=unit,
            with_part=with_part,
            without=without,
            difference=statistics.mean(changes[part], kind),
            p=tested.get(part),
            p_holm=p_holm,
            smallest_effect=smallest,
            pairs_needed=None if p_holm is not None and p_holm < FOUND else needed,
        )


def _values(runs: Sequence[Run], measure: str) -> dict[PairKey, float]:
    """The mean of each pair over the repetitions that tell."""

    def value(pair: PairData) -> float | None:
        if measure in VERDICTS:
            return pair.verdicts.get(measure)
        if measure == "conflict":
            return pair.merge_status == "conflict" if pair.verdicts else None
        if pair.state not in ENDED:
            return None
        return pair.cost if measure == "cost" else pair.duration_seconds

    return statistics.means_by_pair(
        statistics.observe((pair for run in runs for pair in run.pairs), value)
    )


def _with_and_without(
    part: str, values: Mapping[Off, Mapping[PairKey, float]]
) -> tuple[list[Observation], list[Observation]]:
    """By pair, averaged over the arms that differ in nothing but the part, and that both know the pair."""
    twins = [
        (values[off], values[off | {part}])
        for off in values
        if part not in off and off | {part} in values
    ]
    shared = [(key, twin) for twin in twins for key in twin[0].keys() & twin[1].keys()]
    sides = (
        statistics.means_by_pair(Observation(key, twin[side][key]) for key, twin in shared)
        for side in (0, 1)
    )
    with_part, without = (list(starmap(Observation, means.items())) for means in sides)
    return with_part, without
