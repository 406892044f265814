"""What each part of cooperation is worth: the arms of an ablation held against each other.

For each pair of features the arms with a part are compared with those that lack only this part; where an arm was
repeated its mean counts. Differences are averaged over pairs, with intervals clustered by task. There is a test for
each part and measure, corrected by Holm over the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.report.formatting import NOTHING, Table, decimal_text, p_text, percent_text, points_text
from cooperbench.report.records import PairKey, listed, mapping, read_object, text_or_none
from cooperbench.report.states import ENDED, VERDICTS
from cooperbench.report.statistics import (
    POWER,
    Estimate,
    Observation,
    holm,
    mean,
    p_value,
    power,
)
from cooperbench.text import names_for_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData

FOUND = 0.05
"""A corrected p-value below this is an effect."""
MEASURES = {
    **dict.fromkeys(VERDICTS, "share"),
    "conflict": "share",
    "cost": "dollars",
    "time": "seconds",
}
"""What is compared, and its unit: verdicts, plain merges that conflict, and what a pair took."""
_MAY_DIFFER = {"run_name", "invocations"}
Off = frozenset[str]
"""The parts that an arm lacks."""


@dataclass(frozen=True)
class Study:
    """An ablation as it is on disk."""

    name: str
    parts: tuple[str, ...]
    arms: Mapping[Off, Sequence[Run]]
    """Several runs where it was repeated."""


@dataclass(frozen=True)
class Effect:
    """Of one part on one measure."""

    part: str
    measure: str
    unit: str
    with_part: float | None
    """Mean over the pairs that are compared; so is the next."""
    without: float | None
    difference: Estimate
    """With the part minus without."""
    p: float | None
    p_holm: float | None
    """Corrected over the parts."""
    smallest_effect: float | None
    """That so many pairs would have shown with a probability of `POWER`."""
    pairs_needed: int | None
    """To show an effect like the one seen; None where it is shown."""


@dataclass(frozen=True)
class Ablation:
    study: str
    arms: tuple[str, ...]
    effects: tuple[Effect, ...]
    """By part, then by measure."""


def load_study(folder: Path, runs: Sequence[Run]) -> Study:
    """`runs`: those of its arms are among them. UserError where arms differ in more than their parts."""
    record, _ = read_object(folder / "study.json")
    fields = {part: str(field) for part, field in mapping(record, "parts").items()}
    by_folder = {run.root.resolve(): run for run in runs}
    arms: dict[Off, list[Run]] = {}
    for arm in listed(record, "arms", dict):
        run = by_folder.get(folder.resolve() / (text_or_none(arm, "name") or "."))
        if run is not None:
            arms.setdefault(frozenset(listed(arm, "off", str)), []).append(run)
    if frozenset[str]() not in arms:
        raise UserError(f"{folder} has no arm with all parts on")
    first = arms[frozenset()][0]
    for off, repeated in arms.items():
        expected = {**first.config, **{fields[part]: False for part in off if part in fields}}
        for run in repeated:
            different = sorted(
                key
                for key in {*expected, *run.config} - _MAY_DIFFER
                if expected.get(key) != run.config.get(key)
            )
            if different:
                what = f"more than {', '.join(sorted(off))}" if off else "its configuration"
                raise UserError(
                    f"{run.name} differs from {first.name} in {what}: {names_for_error(different)}"
                )
    return Study(folder.name, tuple(fields), arms)


def analyse_study(study: Study) -> Ablation:
    effects: dict[tuple[str, str], Effect] = {}
    for measure in MEASURES:
        values = {off: _values(runs, measure) for off, runs in study.arms.items()}
        compared = {part: _compared(part, values) for part in study.parts}
        tested = {
            part: p for part, (changes, _, _) in compared.items() if (p := p_value(changes)) is not None
        }
        corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
        for part, (changes, present, absent) in compared.items():
            p_holm = corrected.get(part)
            needed = power(changes, len(study.parts))
            is_found = p_holm is not None and p_holm < FOUND
            effects[part, measure] = Effect(
                part,
                measure,
                MEASURES[measure],
                fmean(present) if present else None,
                fmean(absent) if absent else None,
                mean(changes, (-1.0, 1.0) if MEASURES[measure] == "share" else None),
                tested.get(part),
                p_holm,
                needed.smallest_effect,
                None if is_found else needed.pairs_needed,
            )
    names = tuple(run.name for runs in study.arms.values() for run in runs)
    return Ablation(
        study.name, names, tuple(effects[part, name] for part in study.parts for name in MEASURES)
    )


def _values(runs: Sequence[Run], measure: str) -> dict[PairKey, float]:
    """The mean of each pair over the repetitions that tell."""
    found: dict[PairKey, list[float]] = {}
    for pair in (pair for run in runs for pair in run.pairs):
        value = _value(pair, measure)
        if value is not None:
            found.setdefault(pair.key, []).append(value)
    return {key: fmean(values) for key, values in sorted(found.items())}


def _value(pair: PairData, measure: str) -> float | None:
    if measure in VERDICTS:
        verdict = pair.verdict(measure)
        return None if verdict is None else float(verdict)
    if measure == "conflict":
        return None if pair.verdicts is None else float(pair.merge_status == "conflict")
    if pair.state not in ENDED:
        return None
    return pair.cost if measure == "cost" else pair.duration_seconds


def _compared(
    part: str, values: Mapping[Off, Mapping[PairKey, float]]
) -> tuple[list[Observation], list[float], list[float]]:
    """Differences by pair, averaged over the arms that differ in nothing but the part; and both sides of them."""
    twins = [
        (values[off], values[off | {part}]) for off in values if part not in off and off | {part} in values
    ]
    keys = sorted({key for present, absent in twins for key in present.keys() & absent.keys()})
    changes, with_part, without = [], [], []
    for key in keys:
        both = [(present[key], absent[key]) for present, absent in twins if key in present and key in absent]
        with_part.append(fmean(one for one, _ in both))
        without.append(fmean(other for _, other in both))
        changes.append(Observation(key, with_part[-1] - without[-1]))
    return changes, with_part, without


def ablation_tables(ablation: Ablation) -> Iterator[Table]:
    rows = [
        [
            one.part,
            one.measure,
            str(one.difference.n),
            str(one.difference.clusters),
            _amount(one.with_part, one.unit),
            _amount(one.without, one.unit),
            _difference(one),
            NOTHING if one.p is None else p_text(one.p),
            NOTHING if one.p_holm is None else p_text(one.p_holm),
            _amount(one.smallest_effect, one.unit),
            NOTHING if one.pairs_needed is None else str(one.pairs_needed),
        ]
        for one in ablation.effects
    ]
    headings = (
        *("part", "measure", "n", "tasks", "with", "without", "difference"),
        *("p", "Holm", "would show", "pairs needed"),
    )
    share = f"{round(100 * POWER)} %"
    notes = [
        "Difference: with the part minus without, over the pairs that both have; 95 % intervals clustered by task",
        "Holm: p corrected over the parts of this table, for each measure",
        f"would show: the smallest effect that so many pairs show with a probability of {share}",
        f"pairs needed: to show an effect like the one seen with {share}, where it was not shown",
        *(f"{name}: {meaning}" for name, meaning in VERDICTS.items()),
        "conflict: the patches conflict in plain git; cost and time: of a pair",
    ]
    yield Table(f"What each part is worth: {ablation.study}", headings, rows, notes)


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return NOTHING
    if unit == "share":
        return percent_text(value)
    return f"${decimal_text(value, 3)}" if unit == "dollars" else f"{decimal_text(value, 1)} s"


def _difference(effect: Effect) -> str:
    one = effect.difference
    if effect.unit == "share" or one.value is None:
        return points_text(one)
    digits = 3 if effect.unit == "dollars" else 1
    interval = ""
    if one.low is not None and one.high is not None:
        interval = f" [{decimal_text(one.low, digits)}, {decimal_text(one.high, digits)}]"
    return f"{_amount(one.value, effect.unit)}{interval}"
