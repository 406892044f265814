"""Studies: the effect of each factor on the same pairs, from the arms of a sweep or an ablation.

For each factor, arms are compared that differ only in its level. The repetitions of an arm are
averaged for each pair, and so are combinations of the other factors. All levels rest on the same
pairs. docs/statistics.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.records.plan import HETEROGENEITY, TREND
from cooperbench.records.study import StudyArm, StudyFactor, StudyRecord
from cooperbench.report import statistics
from cooperbench.report.contingency import (
    MantelHaenszel,
    Stratum,
    cochran_armitage,
    mantel_haenszel,
)
from cooperbench.report.loading import Run
from cooperbench.report.pairs import ENDED, VERDICTS, PairData, PairKey
from cooperbench.report.registration import Registration, read_registration
from cooperbench.report.statistics import Estimate, Observation
from cooperbench.report.workload import SOLO_CONDITIONS
from cooperbench.text import names_for_error

MAX_P_VALUE = 0.05
"""A corrected p-value below this is an effect."""
MEASURES = {
    **dict.fromkeys(VERDICTS, "share"),
    "conflict": "share",
    "cost": "dollars",
    "time": "seconds",
}
"""Measures of a study and their units: verdicts, merges with conflicts, cost and time."""
Cell = frozenset[tuple[str, str]]
"""The levels of an arm: pairs of factor and level."""
Arms = Mapping[Cell, Sequence[Run]]
"""The runs of a study by their levels, with their repetitions."""


@dataclass(frozen=True)
class LevelPoint:
    """The pairs at one level of a factor."""

    level: str
    means: Mapping[str, Estimate]
    """Means over the pairs, by measure. A single agent has nothing to merge."""
    changes: Mapping[str, Estimate]
    """Mean change of the same pairs since the first level with this measure."""


@dataclass(frozen=True)
class Stratified:
    """Tests that count every result as independent, for comparison."""

    cochran_armitage_p: float | None
    by_task: MantelHaenszel | None
    by_pair: MantelHaenszel | None


@dataclass(frozen=True)
class Effect:
    """The effect of one factor on one measure."""

    factor: str
    measure: str
    unit: str
    test: str
    """`trend` over ordered levels, or `heterogeneity` of others."""
    first_level: str
    last_level: str
    first: float | None
    """Mean at the first level."""
    last: float | None
    difference: Estimate
    """Last level minus first."""
    slope: Estimate | None
    """Change per step, by a straight line through the levels; None for two levels, or if they have
    no order."""
    p: float | None
    p_holm: float | None
    """p-value corrected over all factors."""
    smallest_effect: float | None
    """The smallest difference that these pairs show with a probability of `POWER`; with more than
    two levels, along the straight line. None for levels without an order."""
    pairs_needed: int | None
    """Number of pairs needed to show an effect like the observed one; None if it is shown."""
    stratified: Stratified | None
    """None for measures that are not verdicts, and for levels without an order."""
    status: str
    """Whether the test was planned: `planned`, `amended` or `exploratory`."""


@dataclass(frozen=True)
class FactorCurve:
    """All measures over the levels of a factor."""

    factor: str
    is_ordered: bool
    points: tuple[LevelPoint, ...]


@dataclass(frozen=True)
class Study:
    """The effects of the factors of a study."""

    study: str
    arms: tuple[str, ...]
    factors: tuple[FactorCurve, ...]
    effects: tuple[Effect, ...]
    registration: Registration


def analyse_studies(runs: Sequence[Run]) -> list[Study]:
    """Return the studies of which several arms are among the runs.

    Raises:
        UserError: Arms differ in more than their levels.
    """
    studies = []
    for folder in dict.fromkeys(run.root.resolve().parent for run in runs):
        study = _analyse_study(folder, runs)
        if study is not None:
            studies.append(study)
    return studies


def _analyse_study(folder: Path, runs: Sequence[Run]) -> Study | None:
    record = records.read(folder / "study.json", StudyRecord)
    if record is None:
        return None
    arms, members = _arms_among(record, folder, runs)
    grids = [_make_grid(factor, arms) for factor in record.factors]
    grids = [grid for grid in grids if len(grid.levels) > 1]
    if not grids:
        return None
    _check_arms(record, members)
    registration = read_registration(folder)
    effects: list[Effect] = []
    for grid in grids:
        grid_effects = [
            _effect(grid, measure, registration, tests=len(grids)) for measure in MEASURES
        ]
        effects += [effect for effect in grid_effects if effect is not None]
    return Study(
        study=folder.name,
        arms=tuple(run.name for _, run in members),
        factors=tuple(_curve(grid) for grid in grids),
        effects=tuple(_correct(effects)),
        registration=registration,
    )


def _arms_among(
    record: StudyRecord, folder: Path, runs: Sequence[Run]
) -> tuple[Arms, list[tuple[StudyArm, Run]]]:
    """Return the runs that are arms of a study, by their levels and with their records."""
    run_by_folder = {run.root.resolve(): run for run in runs}
    arms: dict[Cell, list[Run]] = {}
    members = []
    for arm in record.arms:
        run = run_by_folder.get(folder / (arm.name or "."))
        if run is not None:
            arms.setdefault(frozenset(arm.levels.items()), []).append(run)
            members.append((arm, run))
    return arms, members


def _check_arms(record: StudyRecord, members: Sequence[tuple[StudyArm, Run]]) -> None:
    """Raise UserError if an arm differs from another one in more than its levels."""
    varying: set[str] = set()
    for factor in record.factors:
        varying.update(factor.options)
    runs = [run for _, run in members]
    # A single agent has fewer choices: any other arm is compared with all of its own.
    first_run = next((run for run in runs if "solo" not in run.settings), runs[0])
    reference = _recorded_choices(first_run)
    for arm, run in members:
        choices = _recorded_choices(run)
        expected = reference | {
            option: value for option, value in arm.options.items() if option in varying
        }
        keys: Iterable[str] = {*expected, *choices}
        if "solo" in (choices.get("setting"), reference.get("setting")):
            # A single agent has no channel and no teammates.
            keys = {*SOLO_CONDITIONS, *varying}
        if "agent_count" in varying:
            keys = set(keys) - {"split"}
        different = sorted(key for key in keys if expected.get(key) != choices.get(key))
        if different:
            raise UserError(
                f"{run.name} differs from {first_run.name} in more than its levels: "
                f"{names_for_error(different)}"
            )


def _recorded_choices(run: Run) -> records.JsonObject:
    """Return everything in config.json that arms of a study have in common, or vary."""
    if run.config is None:
        return {}
    return run.config.identity | {"setting": run.config.setting}


@dataclass(frozen=True)
class _Grid:
    """The arms that differ only in the level of one factor."""

    factor: StudyFactor
    levels: tuple[str, ...]
    rows: tuple[Mapping[str, Sequence[Run]], ...]
    """For each combination of the other factors, the runs of every level."""


class _Cells(NamedTuple):
    """A measure at all levels that have it, for the same pairs."""

    levels: tuple[str, ...]
    values: dict[PairKey, list[float]]
    """The mean of each pair at each level."""

    def at(self, index: int) -> list[Observation]:
        """Return the values at one level."""
        return [Observation(key, values[index]) for key, values in self.values.items()]

    def contrast(self, weights: Sequence[float]) -> list[Observation]:
        """Return the weighted sum of each pair over the levels."""
        observations = []
        for key, values in self.values.items():
            products = [weight * value for weight, value in zip(weights, values, strict=True)]
            observations.append(Observation(key, sum(products)))
        return observations

    def change(self, first: int, last: int) -> list[Observation]:
        """Return the difference of each pair between two levels."""
        return [
            Observation(key, values[last] - values[first]) for key, values in self.values.items()
        ]


def _make_grid(factor: StudyFactor, arms: Arms) -> _Grid:
    """Return the combinations of other factors that have the largest number of levels."""
    rows: dict[Cell, dict[str, Sequence[Run]]] = {}
    for cell, runs in arms.items():
        levels = dict(cell)
        level = levels.pop(factor.name, None)
        if level is not None:
            rows.setdefault(frozenset(levels.items()), {})[level] = runs
    most = max((set(row) for row in rows.values()), key=len, default=set())
    return _Grid(
        factor=factor,
        levels=tuple(level for level in factor.levels if level in most),
        rows=tuple(row for row in rows.values() if set(row) >= most),
    )


def _read_cells(grid: _Grid, measure: str) -> _Cells:
    """Return the values of the pairs that have one at every level with this measure.

    A pair counts in a combination of the other factors only if all levels have a value for it.
    """
    has_measure: dict[str, bool] = dict.fromkeys(grid.levels, False)
    rows = []
    for row in grid.rows:
        means = {level: _arm_values(row[level], measure) for level in grid.levels}
        for level, values in means.items():
            has_measure[level] = has_measure[level] or bool(values)
        rows.append(means)
    levels = tuple(level for level in grid.levels if has_measure[level])
    by_pair: dict[PairKey, list[list[float]]] = {}
    for means in rows:
        for key in _keys_of_all([means[level] for level in levels]):
            by_pair.setdefault(key, []).append([means[level][key] for level in levels])
    averaged = {}
    for key, rows_of_pair in sorted(by_pair.items()):
        averaged[key] = [fmean(column) for column in zip(*rows_of_pair, strict=True)]
    return _Cells(levels, averaged)


def _keys_of_all(values: Sequence[Mapping[PairKey, float]]) -> list[PairKey]:
    """Return the pairs that have a value at every level."""
    if not values:
        return []
    return sorted(set.intersection(*(set(by_key) for by_key in values)))


def _arm_values(runs: Sequence[Run], measure: str) -> dict[PairKey, float]:
    """Return the mean of each pair over the repetitions of an arm."""
    pairs: list[PairData] = []
    for run in runs:
        pairs += run.pairs
    return statistics.means_by_pair(
        statistics.observe(pairs, lambda pair: _measure_pair(pair, measure))
    )


def _measure_pair(pair: PairData, measure: str) -> float | None:
    if measure in VERDICTS:
        return pair.verdicts.get(measure)
    if measure == "conflict":
        has_merge = bool(pair.verdicts) and len(pair.patch_names) > 1
        return pair.merge_status == "conflict" if has_merge else None
    if pair.state not in ENDED:
        return None
    return pair.cost if measure == "cost" else pair.duration_seconds


def _effect(grid: _Grid, measure: str, registration: Registration, *, tests: int) -> Effect | None:
    """Return the effect of a factor on a measure; None if only one level has it."""
    cells = _read_cells(grid, measure)
    if len(cells.levels) < 2:
        return None
    is_ordered = grid.factor.is_ordered
    unit = MEASURES[measure]
    limits = statistics.CHANGE_OF_SHARE if unit == "share" else None
    last = len(cells.levels) - 1
    weights = _trend_weights(len(cells.levels))
    trend = cells.contrast(weights)
    smallest_effect = pairs_needed = None
    if is_ordered or last == 1:
        smallest_effect, pairs_needed = statistics.power(trend, tests)
    test = TREND if is_ordered else HETEROGENEITY
    return Effect(
        factor=grid.factor.name,
        measure=measure,
        unit=unit,
        test=test,
        first_level=cells.levels[0],
        last_level=cells.levels[-1],
        first=_mean_or_none(cells.at(0)),
        last=_mean_or_none(cells.at(last)),
        difference=statistics.mean(cells.change(0, last), limits),
        slope=_slope(cells, unit) if is_ordered and last > 1 else None,
        p=statistics.p_value(trend) if is_ordered else _heterogeneity_p(cells),
        p_holm=None,
        smallest_effect=smallest_effect,
        pairs_needed=pairs_needed,
        stratified=_stratified(grid, cells, measure),
        status=registration.status(grid.factor.name, measure, test, grid.levels),
    )


def _trend_weights(levels: int) -> list[float]:
    """Return the weight of each level in the change from the first to the last level.

    The change is that of a straight line by least squares over equally spaced levels. With two
    levels it is the difference.
    """
    center = (levels - 1) / 2
    spread = sum((index - center) ** 2 for index in range(levels))
    return [(index - center) * (levels - 1) / spread for index in range(levels)]


def _slope(cells: _Cells, unit: str) -> Estimate:
    """Return the change per step, along a straight line through the levels."""
    steps = len(cells.levels) - 1
    weights = [weight / steps for weight in _trend_weights(len(cells.levels))]
    steepest = sum(weight for weight in weights if weight > 0)
    limits = (-steepest, steepest) if unit == "share" else None
    return statistics.mean(cells.contrast(weights), limits)


def _heterogeneity_p(cells: _Cells) -> float | None:
    """Return the smallest p-value of all comparisons of two levels, times their number."""
    p_values = []
    for first, last in combinations(range(len(cells.levels)), 2):
        p = statistics.p_value(cells.change(first, last))
        if p is not None:
            p_values.append(p)
    return min(1.0, min(p_values) * len(p_values)) if p_values else None


def _mean_or_none(observations: Sequence[Observation]) -> float | None:
    return fmean(value for _, value in observations) if observations else None


def _stratified(grid: _Grid, cells: _Cells, measure: str) -> Stratified | None:
    """Return the tests of independent results; None where they do not apply."""
    is_ordered = grid.factor.is_ordered or len(cells.levels) == 2
    if measure not in VERDICTS or not is_ordered:
        return None
    by_pair: list[Stratum] = []
    by_task: dict[tuple[str, int, int], list[Stratum]] = {}
    for number, row in enumerate(grid.rows):
        verdicts = [_verdicts_by_pair(row[level], measure) for level in cells.levels]
        for key in cells.values:
            results = [by_key.get(key, []) for by_key in verdicts]
            if not all(results):
                continue
            stratum = Stratum(
                successes=[float(sum(passed)) for passed in results],
                totals=[float(len(passed)) for passed in results],
            )
            by_pair.append(stratum)
            by_task.setdefault((*statistics.cluster_of(key), number), []).append(stratum)
    everything = _pool(by_pair)
    trend = cochran_armitage(everything.successes, everything.totals)
    return Stratified(
        cochran_armitage_p=trend[1] if trend else None,
        by_task=mantel_haenszel(_pool(strata) for strata in by_task.values()),
        by_pair=mantel_haenszel(by_pair),
    )


def _verdicts_by_pair(runs: Sequence[Run], verdict: str) -> dict[PairKey, list[float]]:
    """Return the verdicts of each pair in all repetitions of an arm, as zeros and ones."""
    pairs: list[PairData] = []
    for run in runs:
        pairs += run.pairs
    return statistics.grouped(statistics.observe_verdict(pairs, verdict))


def _pool(strata: Sequence[Stratum]) -> Stratum:
    """Return the sums over strata."""
    successes = zip(*(stratum.successes for stratum in strata), strict=True)
    totals = zip(*(stratum.totals for stratum in strata), strict=True)
    return Stratum([sum(level) for level in successes], [sum(level) for level in totals])


def _correct(effects: Sequence[Effect]) -> list[Effect]:
    """Return the effects with p-values corrected over all factors, for each measure."""
    corrected: dict[tuple[str, str], float] = {}
    for measure in MEASURES:
        tested = [
            effect for effect in effects if effect.measure == measure and effect.p is not None
        ]
        adjusted = statistics.holm([effect.p for effect in tested if effect.p is not None])
        for effect, p in zip(tested, adjusted, strict=True):
            corrected[effect.factor, measure] = p
    return [_with_correction(effect, corrected) for effect in effects]


def _with_correction(effect: Effect, corrected: Mapping[tuple[str, str], float]) -> Effect:
    p_holm = corrected.get((effect.factor, effect.measure))
    is_shown = p_holm is not None and p_holm < MAX_P_VALUE
    return replace(effect, p_holm=p_holm, pairs_needed=None if is_shown else effect.pairs_needed)


def _curve(grid: _Grid) -> FactorCurve:
    """Return the means of all measures over the levels of a factor."""
    means: dict[str, dict[str, Estimate]] = {level: {} for level in grid.levels}
    changes: dict[str, dict[str, Estimate]] = {level: {} for level in grid.levels}
    for measure, unit in MEASURES.items():
        cells = _read_cells(grid, measure)
        is_share = unit == "share"
        for index, level in enumerate(cells.levels):
            limits = statistics.SHARE if is_share else None
            means[level][measure] = statistics.mean(cells.at(index), limits)
            limits = statistics.CHANGE_OF_SHARE if is_share else None
            changes[level][measure] = statistics.mean(cells.change(0, index), limits)
    return FactorCurve(
        factor=grid.factor.name,
        is_ordered=grid.factor.is_ordered,
        points=tuple(LevelPoint(level, means[level], changes[level]) for level in grid.levels),
    )
