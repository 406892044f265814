"""Our verdicts beside those by the rule of the public release, and why they differ.

The public rule enters none of our rates. It is here so that published figures can be reproduced
from the same patches, and the difference explained pair by pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cooperbench.report.loading import Side
from cooperbench.report.pairs import PairData, PairKey


@dataclass(frozen=True)
class RuleDifference:
    """A pair whose verdict depends on the rule."""

    pair: PairKey
    overall: bool
    """Our overall verdict."""
    public: bool
    reason: str
    """Why they differ, on one line."""


@dataclass(frozen=True)
class RuleComparison:
    """The verdicts on one side by our rule and by the public one, over the same pairs."""

    side: str
    n: int
    """Number of pairs with both verdicts."""
    overall: int
    """Number of pairs that pass by our rule."""
    public: int
    """Number of pairs that pass by the public rule."""
    differences: tuple[RuleDifference, ...]
    without: int
    """Number of pairs with a verdict of ours only: an older version evaluated them."""


def compare_rules(side: Side, keys: Sequence[PairKey] | None = None) -> RuleComparison:
    """Compare our overall verdicts with those by the public rule, over these pairs or all."""
    pairs = side.pairs
    differences = []
    overall = public = n = without = 0
    compared_keys = list(pairs) if keys is None else keys
    for key in compared_keys:
        pair = pairs[key]
        ours, theirs = pair.verdicts.get("overall"), pair.public_success
        if ours is None:
            continue
        if theirs is None:
            without += 1
            continue
        n += 1
        overall += int(ours)
        public += int(theirs)
        if ours != theirs:
            differences.append(RuleDifference(key, ours, theirs, explain_rules(pair)))
    return RuleComparison(side.label, n, overall, public, tuple(differences), without)


def explain_rules(pair: PairData) -> str:
    """Return why a pair's verdict by the public rule is not our overall verdict, on one line."""
    evaluation = pair.evaluation
    if evaluation is None or evaluation.merged_public is None or pair.merged is None:
        return "a verdict is missing"
    first_alone = evaluation.merged_public.strategy == "first_agent"
    if pair.verdicts["overall"]:
        return "conflict: the union merge passes, the first agent's patch alone does not"
    if pair.suspicious:
        return "the tests pass, but a confirmation run does not agree"
    if pair.merged.success:
        return "the tests pass after the merge, but a patch does not pass its own tests alone"
    if first_alone:
        return "conflict: the first agent's patch has all features, the union merge fails"
    return "the merge passes by the public rule only"
