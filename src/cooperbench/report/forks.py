"""The effect of an intervention: forks with it against control forks from the same fork point.

Forks of one pair share everything up to the fork point. Their repetitions are averaged, so that a
pair is one observation and the intervals of several pairs are clustered by pair. For a single pair,
the interval is over its repetitions, and says nothing about other pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, variance
from typing import NamedTuple

from cooperbench import records
from cooperbench.records.forks import CONTROL, ForkArm, ForksRecord
from cooperbench.records.plan import FISHER, MEAN_OVER_PAIRS, PlannedFork
from cooperbench.report import statistics
from cooperbench.report.contingency import fisher_exact
from cooperbench.report.formatting import Cell, Table, p_text
from cooperbench.report.loading import Run
from cooperbench.report.pairs import ENDED, VERDICTS, PairData, PairKey
from cooperbench.report.registration import Registration, read_registration, status_lines
from cooperbench.report.statistics import Estimate, Observation
from cooperbench.report.study_table import amount_text, change_text

MEASURES = {**dict.fromkeys(VERDICTS, "share"), "cost": "dollars", "time": "seconds"}
"""Measures of forks, and their units."""
_OVER_REPETITIONS = "over repetitions of one pair"
_TAIL = 0.975


@dataclass(frozen=True)
class ForkEffect:
    """The effect of one intervention on one measure."""

    arm: str
    intervention: str
    measure: str
    unit: str
    pairs: int
    control_forks: int
    forks: int
    """Forks with the intervention."""
    control: float | None
    """Mean over the pairs; so is the next."""
    with_intervention: float | None
    effect: Estimate
    """With the intervention minus control."""
    p: float | None
    """Two-sided: of the mean over pairs, or Fisher's exact test for one pair."""
    status: str
    """Whether the test was planned: `planned`, `amended` or `exploratory`."""


@dataclass(frozen=True)
class ForkAnalysis:
    """All effects of the forks in one folder."""

    name: str
    run: str
    fork_point: str
    effects: tuple[ForkEffect, ...]
    registration: Registration


@dataclass(frozen=True)
class ForkRuns:
    """The runs in a folder of forks."""

    record: ForksRecord
    folder: Path
    runs: tuple[tuple[ForkArm, Run], ...]


class _Sides(NamedTuple):
    """The values of the same pairs without and with the intervention, by pair."""

    control: dict[PairKey, list[float]]
    treated: dict[PairKey, list[float]]


def find_forks(runs: Sequence[Run]) -> list[ForkRuns]:
    """Return the folders of forks that the runs are in."""
    run_by_folder = {run.root.resolve(): run for run in runs}
    forks = []
    for folder in dict.fromkeys(root.parent for root in run_by_folder):
        record = records.read(folder / "forks.json", ForksRecord)
        if record is None:
            continue
        arms = []
        for arm in record.arms:
            run = run_by_folder.get(folder / (arm.name or "."))
            if run is not None:
                arms.append((arm, run))
        forks.append(ForkRuns(record, folder, tuple(arms)))
    return forks


def analyse_forks(runs: Sequence[Run]) -> list[ForkAnalysis]:
    """Return the effects of all interventions that have control forks among the runs."""
    return [_analyse(forks) for forks in find_forks(runs)]


def _analyse(forks: ForkRuns) -> ForkAnalysis:
    controls: list[Run] = []
    treated: dict[str, list[Run]] = {}
    texts: dict[str, str] = {}
    for arm, run in forks.runs:
        if arm.kind == CONTROL:
            controls.append(run)
            continue
        name = arm.name.partition("@")[0]
        treated.setdefault(name, []).append(run)
        texts[name] = arm.text
    record = forks.record
    registration = read_registration(
        forks.folder, PlannedFork(run=record.run, fork_point=record.fork_point)
    )
    effects = []
    for name, arm_runs in treated.items():
        for measure in MEASURES:
            sides = _common_values(_values(controls, measure), _values(arm_runs, measure))
            if sides.control:
                effects.append(_effect(name, texts[name], measure, sides, registration))
    return ForkAnalysis(record.name, record.run, record.fork_point, tuple(effects), registration)


def _values(runs: Sequence[Run], measure: str) -> dict[PairKey, list[float]]:
    """Return the values of each pair over its repetitions."""
    pairs: list[PairData] = []
    for run in runs:
        pairs += run.pairs
    observations = statistics.observe(pairs, lambda pair: _measure_pair(pair, measure))
    return statistics.grouped((key, value) for key, value in observations)


def _measure_pair(pair: PairData, measure: str) -> float | None:
    if measure in VERDICTS:
        return pair.verdicts.get(measure)
    if pair.state not in ENDED:
        return None
    return pair.cost if measure == "cost" else pair.duration_seconds


def _common_values(
    control: Mapping[PairKey, list[float]], treated: Mapping[PairKey, list[float]]
) -> _Sides:
    keys = sorted(control.keys() & treated.keys())
    return _Sides({key: control[key] for key in keys}, {key: treated[key] for key in keys})


def _effect(
    arm: str, text: str, measure: str, sides: _Sides, registration: Registration
) -> ForkEffect:
    unit = MEASURES[measure]
    test = FISHER if len(sides.control) == 1 else MEAN_OVER_PAIRS
    if test == FISHER:
        ((control_values,), (treated_values,)) = sides.control.values(), sides.treated.values()
        estimate = effect_of_one_pair(control_values, treated_values, is_share=unit == "share")
        p = None
        if unit == "share":
            p = fisher_exact(
                round(sum(control_values)),
                len(control_values),
                round(sum(treated_values)),
                len(treated_values),
            )
    else:
        changes = [
            Observation(_as_own_cluster(key), fmean(sides.treated[key]) - fmean(values))
            for key, values in sides.control.items()
        ]
        limits = statistics.CHANGE_OF_SHARE if unit == "share" else None
        estimate = statistics.mean(changes, limits)
        p = statistics.p_value(changes)
    return ForkEffect(
        arm=arm,
        intervention=text,
        measure=measure,
        unit=unit,
        pairs=len(sides.control),
        control_forks=sum(map(len, sides.control.values())),
        forks=sum(map(len, sides.treated.values())),
        control=fmean(map(fmean, sides.control.values())),
        with_intervention=fmean(map(fmean, sides.treated.values())),
        effect=estimate,
        p=p,
        status=registration.status(arm, measure, test, [CONTROL, arm]),
    )


def _as_own_cluster(key: PairKey) -> PairKey:
    """Return a key whose cluster is the pair instead of its task."""
    return replace(key, repo=key.label)


def effect_of_one_pair(
    control: Sequence[float], treated: Sequence[float], *, is_share: bool
) -> Estimate:
    """Estimate the difference of two means over independent repetitions of one pair.

    The interval of rates is Newcombe's (score intervals of both rates), that of other means
    Welch's.
    """
    difference = fmean(treated) - fmean(control)
    count = len(control) + len(treated)
    if is_share:
        low, high = _newcombe(control, treated)
        method = "newcombe"
    elif min(len(control), len(treated)) < 2:
        note = "one repetition: no interval"
        return Estimate(difference, None, None, count, 1, "none", note=note)
    else:
        low, high = _welch(control, treated)
        method = "welch"
    return Estimate(difference, low, high, count, 1, method, note=_OVER_REPETITIONS)


def _newcombe(control: Sequence[float], treated: Sequence[float]) -> tuple[float, float]:
    first, second = fmean(control), fmean(treated)
    first_low, first_high = statistics.wilson_bounds(first, len(control))
    second_low, second_high = statistics.wilson_bounds(second, len(treated))
    low = second - first - math.hypot(second - second_low, first_high - first)
    high = second - first + math.hypot(second_high - second, first - first_low)
    return low, high


def _welch(control: Sequence[float], treated: Sequence[float]) -> tuple[float, float]:
    difference = fmean(treated) - fmean(control)
    first, second = variance(control) / len(control), variance(treated) / len(treated)
    if not first + second:
        return difference, difference
    degrees = (first + second) ** 2 / (
        first**2 / (len(control) - 1) + second**2 / (len(treated) - 1)
    )
    # Whole degrees, rounded down: the interval is never too narrow.
    half = statistics.t_quantile(_TAIL, max(1, math.floor(degrees))) * math.sqrt(first + second)
    return difference - half, difference + half


def forks_table(analysis: ForkAnalysis) -> Table:
    """Return the effects of the interventions."""
    headings = (
        "intervention",
        "measure",
        "plan",
        "pairs",
        "forks",
        "controls",
        "control",
        "with it",
        "effect",
        "p",
    )
    rows = [_effect_row(effect) for effect in analysis.effects]
    notes = [
        *analysis.registration.lines(),
        *_incomplete_lines(analysis),
        *status_lines(effect.status for effect in analysis.effects),
        "effect: with the intervention minus control forks from the same fork point",
        "95 % intervals: clustered by pair; for one pair over its repetitions (Newcombe, Welch)",
        "p: of the mean over pairs; for one pair Fisher's exact test",
        "cost: of the part after the fork point; what was replayed cost nothing",
    ]
    interventions = {effect.arm: effect.intervention for effect in analysis.effects}
    notes += [f"{arm}: {text}" for arm, text in interventions.items()]
    title = f"Forks of {analysis.run} at {analysis.fork_point}: {analysis.name}"
    return Table(title, headings, rows, notes)


def _incomplete_lines(analysis: ForkAnalysis) -> Iterator[str]:
    """Yield a line for each planned test that has fewer forks than planned."""
    plan = analysis.registration.plan
    for effect in analysis.effects:
        if plan is not None and effect.status != "exploratory":
            forks = min(effect.control_forks, effect.forks)
            planned = len(plan.pairs) * plan.repeat
            if forks < planned:
                yield (
                    f"{effect.arm}, {effect.measure}: {forks:,} of {planned:,} planned forks "
                    "in each arm"
                )


def _effect_row(effect: ForkEffect) -> list[Cell]:
    return [
        effect.arm,
        effect.measure,
        effect.status,
        effect.pairs,
        effect.forks,
        effect.control_forks,
        amount_text(effect.control, effect.unit),
        amount_text(effect.with_intervention, effect.unit),
        change_text(effect.effect, effect.unit),
        None if effect.p is None else p_text(effect.p),
    ]
