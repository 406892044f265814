"""What each part of cooperation is worth: the arms of an ablation held against each other.

For each pair of features the arms with a part are compared with those that lack only this part; where an arm was
repeated its mean counts. Differences are averaged over pairs, with intervals clustered by task. There is a test for
each part and measure, corrected by Holm over the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from statistics import fmean
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.report.fields import listed, mapping, read_object, text_or_none
from cooperbench.report.pairs import ENDED, VERDICTS, PairKey
from cooperbench.report.statistics import (
    CHANGE_OF_SHARE,
    Estimate,
    Observation,
    differences,
    holm,
    mean,
    means_by_pair,
    observe,
    p_value,
    power,
)
from cooperbench.text import names_for_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from cooperbench.report.loading import Run
    from cooperbench.report.pairs import PairData

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


def analyse_study(folder: Path, runs: Sequence[Run]) -> Ablation:
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
    _check_arms(arms, fields)
    effects = [effect for measure in MEASURES for effect in _effects(arms, tuple(fields), measure)]
    # By part, then by measure.
    effects.sort(key=lambda effect: [*fields].index(effect.part))
    return Ablation(
        folder.name, tuple(run.name for repeated in arms.values() for run in repeated), tuple(effects)
    )


def _check_arms(arms: Mapping[Off, Sequence[Run]], fields: Mapping[str, str]) -> None:
    first = arms[frozenset()][0]
    for off, run in ((off, run) for off, repeated in arms.items() for run in repeated):
        expected = {**first.config, **{fields[part]: False for part in off if part in fields}}
        keys = {*expected, *run.config} - _MAY_DIFFER
        different = sorted(key for key in keys if expected.get(key) != run.config.get(key))
        if different:
            what = f"more than {', '.join(sorted(off))}" if off else "its configuration"
            raise UserError(f"{run.name} differs from {first.name} in {what}: {names_for_error(different)}")


def _effects(arms: Mapping[Off, Sequence[Run]], parts: Sequence[str], measure: str) -> Iterator[Effect]:
    values = {off: _values(runs, measure) for off, runs in arms.items()}
    sides = {part: _with_and_without(part, values) for part in parts}
    changes = {part: differences(*both) for part, both in sides.items()}
    tested = {part: p for part, change in changes.items() if (p := p_value(change)) is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    unit = MEASURES[measure]
    for part, both in sides.items():
        with_part, without = (fmean(one.value for one in side) if side else None for side in both)
        p_holm = corrected.get(part)
        needed = power(changes[part], len(parts))
        yield Effect(
            part=part,
            measure=measure,
            unit=unit,
            with_part=with_part,
            without=without,
            difference=mean(changes[part], CHANGE_OF_SHARE if unit == "share" else None),
            p=tested.get(part),
            p_holm=p_holm,
            smallest_effect=needed.smallest_effect,
            pairs_needed=None if p_holm is not None and p_holm < FOUND else needed.pairs_needed,
        )


def _values(runs: Sequence[Run], measure: str) -> dict[PairKey, float]:
    """The mean of each pair over the repetitions that tell."""

    def value(pair: PairData) -> float | None:
        if measure in VERDICTS:
            return pair.verdict(measure)
        if measure == "conflict":
            return pair.merge_status == "conflict" if pair.verdicts else None
        if pair.state not in ENDED:
            return None
        return pair.cost if measure == "cost" else pair.duration_seconds

    return means_by_pair(observe((pair for run in runs for pair in run.pairs), value))


def _with_and_without(
    part: str, values: Mapping[Off, Mapping[PairKey, float]]
) -> tuple[list[Observation], list[Observation]]:
    """By pair, averaged over the arms that differ in nothing but the part, and that both know the pair."""
    twins = [
        (values[off], values[off | {part}]) for off in values if part not in off and off | {part} in values
    ]
    both: tuple[list[Observation], list[Observation]] = ([], [])
    for twin in twins:
        for key in twin[0].keys() & twin[1].keys():
            for side, known in zip(both, twin, strict=True):
                side.append(Observation(key, known[key]))
    with_part, without = (list(starmap(Observation, means_by_pair(side).items())) for side in both)
    return with_part, without
