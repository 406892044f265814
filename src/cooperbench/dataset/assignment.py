"""The assignment of features to the agents of a pair (`--agents`, `--split`).

K features are assigned to N agents, 1 ≤ N ≤ K: as evenly as possible in their order, as the user
says, or by the coupling of their golden patches. Each agent's features are in numeric order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

from cooperbench.dataset.coupling import CouplingReader
from cooperbench.errors import UserError
from cooperbench.models import Assignment, Pair
from cooperbench.text import plural, printable

EVEN, TOGETHER, APART = "even", "together", "apart"
SPLITS = {
    EVEN: "in their order",
    TOGETHER: "coupled features to the same agent",
    APART: "coupled features to different agents",
}
"""The ways to assign features that have a name."""
_WEIGHTS = {"none": 0, "file": 1, "symbol": 121, "text": 121**2, "meaning": 121**2}
"""Weight of two coupled features. 16 features are 120 pairs, so that no number of pairs of a looser
class outweighs one pair of a tighter class."""


def parse_split(text: str) -> Assignment | None:
    """Return the assignment that `1,2/3,4` describes; None for a name of `SPLITS`.

    Raises:
        UserError: The text is neither, or a feature is in it twice.
    """
    if text in SPLITS:
        return None
    assignment: list[tuple[int, ...]] = []
    for part in text.split("/"):
        numbers = [number.strip() for number in part.split(",")]
        if not all(number.isascii() and number.isdigit() for number in numbers):
            raise UserError(
                f"--split {printable(text)!r} is not {', '.join(SPLITS)} or a list of features "
                "per agent, e.g. 1,2/3,4"
            )
        assignment.append(tuple(sorted(int(number) for number in numbers)))
    features = split_features(tuple(assignment))
    repeated = sorted({number for number in features if features.count(number) > 1})
    if repeated:
        raise UserError(f"--split {text} names {_features_text(repeated)} more than once")
    return tuple(assignment)


def split_features(assignment: Assignment) -> list[int]:
    """Return all features of an assignment, in numeric order."""
    features: list[int] = []
    for feature_ids in assignment:
        features += feature_ids
    return sorted(features)


def assign_features(
    pair: Pair, agents: int | None, split: str, reader: CouplingReader
) -> Assignment | None:
    """Return the features of each agent of a pair; None if each agent has one.

    Args:
        pair: The features to assign.
        agents: Number of agents; None: as many as features, or as `split` names.
        split: A name of `SPLITS`, or the features of each agent.
        reader: The coupling of features.

    Raises:
        UserError: There are more agents than features, or the split is not one of these features.
    """
    explicit = parse_split(split)
    if explicit is not None:
        check_agent_count(explicit, agents)
        _check_explicit(pair, split, explicit)
        assignment = explicit
    else:
        count = len(pair.feature_ids) if agents is None else agents
        if count > len(pair.feature_ids):
            raise UserError(
                f"--agents {count} is more than the {len(pair.feature_ids)} features of "
                f"{pair.label}: an agent needs at least one"
            )
        assignment = _assign(pair, count, split, reader)
    if assignment == tuple((number,) for number in pair.feature_ids):
        return None
    return assignment


def check_agent_count(assignment: Assignment, agents: int | None) -> None:
    """Raise UserError if an explicit split is for another number of agents."""
    if agents not in (None, len(assignment)):
        raise UserError(
            f"--split names the features of {plural(len(assignment), 'agent')}, not of --agents "
            f"{agents}"
        )
    if len(assignment) == 1:
        raise UserError("--split names the features of a single agent: use --agents 1 instead")


def _check_explicit(pair: Pair, split: str, assignment: Assignment) -> None:
    named = set(split_features(assignment))
    omitted = sorted(set(pair.feature_ids) - named)
    if omitted:
        raise UserError(f"--split {split} omits {_features_text(omitted)} of {pair.label}")
    unknown = sorted(named - set(pair.feature_ids))
    if unknown:
        raise UserError(f"--split {split}: {pair.label} does not have {_features_text(unknown)}")


def _features_text(features: Sequence[int]) -> str:
    noun = "feature" if len(features) == 1 else "features"
    return f"{noun} {', '.join(str(number) for number in features)}"


def _assign(pair: Pair, count: int, split: str, reader: CouplingReader) -> Assignment:
    if split == EVEN:
        return assign_in_order(pair.feature_ids, count)
    weights = {}
    for two in combinations(pair.feature_ids, 2):
        coupling = reader.coupling_of(Pair(pair.task, two))
        if coupling is None:
            raise UserError(
                f"--split {split}: the coupling of {_features_text(two)} of {pair.task.label} is "
                "not known, since one of the golden patches is not a git diff"
            )
        weights[two] = _WEIGHTS[coupling]
    if split == APART:
        weights = {two: -weight for two, weight in weights.items()}
    return _HeaviestAssignment(weights, count).search(pair.feature_ids)


def assign_in_order(features: Sequence[int], count: int) -> Assignment:
    """Return consecutive features for each agent; the first agents may have one more."""
    smaller, larger_groups = divmod(len(features), count)
    assignment = []
    start = 0
    for index in range(count):
        end = start + smaller + (1 if index < larger_groups else 0)
        assignment.append(tuple(features[start:end]))
        start = end
    return tuple(assignment)


class _Partial(NamedTuple):
    """An assignment of some features, with the weight of the pairs inside of its groups."""

    weight: int
    groups: Assignment


class _HeaviestAssignment:
    """Search for the groups of even size with the largest weight inside; exact, with memory.

    The worst case, 16 features for 3 agents, is about a million combinations: some seconds.
    """

    def __init__(self, weights: dict[tuple[int, int], int], count: int) -> None:
        self._weights = weights
        self._count = count
        self._best = cache(self._find_best)
        self._weight_of = cache(self._sum_weights)

    def search(self, features: tuple[int, ...]) -> Assignment:
        """Return the groups, ordered by their first features; of equal ones the first found."""
        return self._best(features, self._count).groups

    def _find_best(self, features: tuple[int, ...], count: int) -> _Partial:
        if count == 1:
            return _Partial(self._weight_of(features), (features,))
        best: _Partial | None = None
        for group in self._groups_with_first(features, count):
            remaining = tuple(feature for feature in features if feature not in group)
            others = self._best(remaining, count - 1)
            weight = self._weight_of(group) + others.weight
            if best is None or weight > best.weight:
                best = _Partial(weight, (group, *others.groups))
        assert best is not None
        return best

    def _groups_with_first(
        self, features: tuple[int, ...], count: int
    ) -> Iterator[tuple[int, ...]]:
        """Yield the groups for the first feature that leave even groups for the others."""
        first, *others = features
        smaller, larger_groups = divmod(len(features), count)
        sizes = {smaller + (1 if larger_groups else 0), smaller}
        for size in sorted(sizes, reverse=True):
            for members in combinations(others, size - 1):
                yield (first, *members)

    def _sum_weights(self, group: tuple[int, ...]) -> int:
        return sum(self._weights[two] for two in combinations(group, 2))
