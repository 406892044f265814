"""Comparisons of the same pairs in two runs or in two settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cooperbench.errors import UserError
from cooperbench.models import Setting
from cooperbench.report import Method, statistics
from cooperbench.report.consistency import all_mismatches
from cooperbench.report.loading import Run, Side, sides_of
from cooperbench.report.mismatch import affected_numbers
from cooperbench.report.pairs import PairData, PairKey
from cooperbench.report.public_rule import RuleComparison, compare_rules
from cooperbench.report.statistics import Estimate, Observation


@dataclass(frozen=True, order=True)
class Unpaired(PairKey):
    """A pair that cannot be compared, and its state on both sides."""

    first_state: str
    second_state: str


@dataclass(frozen=True)
class Comparison:
    """Two sides, over the pairs that have a verdict on both."""

    first: str
    second: str
    verdict: str
    n: int
    first_rate: Estimate
    second_rate: Estimate
    difference: Estimate
    """Second minus first."""
    gained: tuple[PairKey, ...]
    """Pairs that failed on the first side and passed on the second."""
    lost: tuple[PairKey, ...]
    """Pairs that passed on the first side and failed on the second."""
    mcnemar_p: float
    """McNemar's exact test of `gained` and `lost`; it assumes that pairs are independent."""
    unpaired: tuple[Unpaired, ...]
    unsound: tuple[PairKey, ...]
    unconfirmed: tuple[PairKey, ...]
    """Pairs with a success, on either side, that no confirmation run supports."""
    affected: tuple[str, ...]
    """The sides whose rate a mismatch affects."""
    rules: tuple[RuleComparison, ...]
    """For each side: our verdicts beside those by the public rule, over the compared pairs."""
    coordination_deficit: Estimate | None = None
    """Solo minus coop or team; None unless exactly one side is solo."""
    retention: Estimate | None = None
    """Coop or team divided by solo; None unless exactly one side is solo."""

    @property
    def drop(self) -> float:
        """The loss from the first side to the second."""
        return -(self.difference.value or 0.0)


class _MatchedVerdicts(NamedTuple):
    """The verdicts of the pairs that both sides have evaluated, in the same order."""

    first: list[Observation]
    second: list[Observation]
    unpaired: list[Unpaired]


def compare_sides(
    first: Side, second: Side, verdict: str = "overall", method: Method = "clustered"
) -> Comparison:
    """Compare the success of the same pairs on two sides."""
    matched = _match_verdicts(first, second, verdict)
    changes = statistics.differences(matched.second, matched.first)
    gained = tuple(key for key, change in changes if change > 0)
    lost = tuple(key for key, change in changes if change < 0)
    deficit = retention = None
    if first.setting == "solo" and second.setting != "solo":
        deficit, retention = _coordination_cost(matched.first, matched.second, method)
    elif second.setting == "solo" and first.setting != "solo":
        deficit, retention = _coordination_cost(matched.second, matched.first, method)
    return Comparison(
        first=first.label,
        second=second.label,
        verdict=verdict,
        n=len(changes),
        first_rate=statistics.rate(matched.first, method),
        second_rate=statistics.rate(matched.second, method),
        difference=statistics.mean(changes, statistics.CHANGE_OF_SHARE, method),
        gained=gained,
        lost=lost,
        mcnemar_p=statistics.mcnemar_exact(len(gained), len(lost)),
        unpaired=tuple(matched.unpaired),
        unsound=tuple(_unsound_keys(first, second, [key for key, _ in changes])),
        unconfirmed=tuple(_unconfirmed_keys(first, second, [key for key, _ in changes])),
        affected=_affected_sides(first, second, verdict),
        rules=tuple(compare_rules(side, [key for key, _ in changes]) for side in (first, second)),
        coordination_deficit=deficit,
        retention=retention,
    )


def _affected_sides(first: Side, second: Side, verdict: str) -> tuple[str, ...]:
    """Return the labels of the sides whose rate a mismatch affects."""
    runs = [first.run] if first.run is second.run else [first.run, second.run]
    mismatches = all_mismatches(runs)
    return tuple(
        side.label
        for side in (first, second)
        if verdict in affected_numbers(mismatches, side.run.name, side.pairs.values())
    )


def _match_verdicts(first: Side, second: Side, verdict: str) -> _MatchedVerdicts:
    matched = _MatchedVerdicts([], [], [])
    first_pairs, second_pairs = first.pairs, second.pairs
    for key in sorted({*first_pairs, *second_pairs}):
        first_pair, second_pair = first_pairs.get(key), second_pairs.get(key)
        first_verdict = first_pair.verdict(verdict) if first_pair else None
        second_verdict = second_pair.verdict(verdict) if second_pair else None
        if first_verdict is not None and second_verdict is not None:
            matched.first.append(Observation(key, float(first_verdict)))
            matched.second.append(Observation(key, float(second_verdict)))
            continue
        unpaired = Unpaired(
            repo=key.repo,
            task_id=key.task_id,
            features=key.features,
            first_state=_state_of(first_pair),
            second_state=_state_of(second_pair),
        )
        matched.unpaired.append(unpaired)
    return matched


def _state_of(pair: PairData | None) -> str:
    return pair.state if pair else "not part of it"


def _unconfirmed_keys(first: Side, second: Side, keys: Sequence[PairKey]) -> list[PairKey]:
    first_pairs, second_pairs = first.pairs, second.pairs
    return [key for key in keys if first_pairs[key].unconfirmed or second_pairs[key].unconfirmed]


def _unsound_keys(first: Side, second: Side, keys: Sequence[PairKey]) -> list[PairKey]:
    first_pairs, second_pairs = first.pairs, second.pairs
    return [key for key in keys if first_pairs[key].unsound or second_pairs[key].unsound]


def _coordination_cost(
    solo: Sequence[Observation], together: Sequence[Observation], method: Method
) -> tuple[Estimate, Estimate]:
    """Return the coordination deficit and the retention."""
    losses = statistics.differences(solo, together)
    deficit = statistics.mean(losses, statistics.CHANGE_OF_SHARE, method)
    return deficit, statistics.ratio(together, solo)


def sides_to_compare(chosen: Sequence[tuple[Run, Setting | None]]) -> list[tuple[Side, Side]]:
    """Return the sides to compare.

    These are the settings that the user named; else solo and the other settings of one run; else
    the settings that two runs have in common.

    Raises:
        UserError: There is nothing to compare.
    """
    sides_by_run = [_sides_of_run(run, setting) for run, setting in chosen]
    if len(chosen) == 1 and chosen[0][1] is None:
        within_run = _solo_and_others(sides_by_run[0])
        if within_run:
            return within_run
    if len(chosen) != 2:
        raise UserError(_not_two_runs(chosen))
    shared = _shared_settings(*sides_by_run)
    if not shared:
        settings = [
            f"{run.name!r} has {', '.join(run.settings) or 'no pairs'}" for run, _ in chosen
        ]
        raise UserError(
            f"these have no setting in common ({'; '.join(settings)}); "
            "name one of each, e.g. RUN:coop"
        )
    return shared


def _sides_of_run(run: Run, setting: Setting | None) -> list[Side]:
    """Return the side with a setting, or all sides of a run."""
    return [side for side in sides_of([run]) if setting in (None, side.setting)]


def _shared_settings(
    first_sides: Sequence[Side], second_sides: Sequence[Side]
) -> list[tuple[Side, Side]]:
    """Return the sides with the same setting; the only sides if both have one."""
    if len(first_sides) == 1 and len(second_sides) == 1:
        return [(first_sides[0], second_sides[0])]
    second_by_setting = {side.setting: side for side in second_sides}
    return [
        (side, second_by_setting[side.setting])
        for side in first_sides
        if side.setting in second_by_setting
    ]


def _not_two_runs(chosen: Sequence[tuple[Run, Setting | None]]) -> str:
    if len(chosen) == 1:
        run, setting = chosen[0]
        settings = setting or ", ".join(run.settings) or "no"
        return f"{run.name!r} has only {settings} results to compare; name a second run"
    return f"compare takes two runs, or one that has solo and another setting, not {len(chosen)}"


def _solo_and_others(sides: Sequence[Side]) -> list[tuple[Side, Side]]:
    """Return the solo side of a run with each of its other sides."""
    solo = [side for side in sides if side.setting == "solo"]
    others = [side for side in sides if side.setting != "solo"]
    return [(solo[0], other) for other in others] if solo else []


class SoloMatches(NamedTuple):
    """Sides of several agents with their solo sides."""

    matched: list[tuple[Side, Side]]
    """Solo side and side of several agents."""
    unmatched: list[Side]
    """Sides of several agents without a solo side."""


def match_solo_and_coop(runs: Sequence[Run]) -> SoloMatches:
    """Match each side of several agents with solo sides.

    These are the solo side of its own run, or else those of all runs with the same agent, model and
    dataset.
    """
    matches = SoloMatches([], [])
    sides = sides_of(runs)
    solos = [side for side in sides if side.setting == "solo"]
    for side in sides:
        if side.setting == "solo":
            continue
        comparable = _comparable_solos(side, solos)
        matches.matched.extend((solo, side) for solo in comparable)
        if not comparable:
            matches.unmatched.append(side)
    return matches


def _comparable_solos(side: Side, solos: Sequence[Side]) -> list[Side]:
    own = [solo for solo in solos if solo.run is side.run]
    return own or [solo for solo in solos if _is_comparable(solo.run, side.run)]


def _is_comparable(run: Run, other: Run) -> bool:
    return run.configuration == other.configuration and run.dataset == other.dataset
