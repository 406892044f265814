"""Which agent gets which features: evenly, as the user says, or by golden patches."""

from __future__ import annotations

import random
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from cooperbench.dataset.assignment import (
    _HeaviestAssignment,
    assign_features,
    parse_split,
    split_features,
)
from cooperbench.dataset.coupling import CouplingReader
from cooperbench.dataset.discovery import load_tasks
from cooperbench.errors import UserError
from cooperbench.models import Assignment, Pair, agent_slots
from tests.support.dataset.factory import feature_files, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

PATCH = """\
diff --git a/{path} b/{path}
--- a/{path}
+++ b/{path}
@@ -{line},3 +{line},4 @@ {heading}
     first = 1
+    second = {value}
     third = 3
     fourth = 4
"""
PATCHES = {
    # 1 and 4 change the same line, 2 and 3 the same function.
    1: PATCH.format(path="money.py", line=10, heading="class Money:", value=2),
    2: PATCH.format(path="wallet.py", line=10, heading="def pay(amount):", value=2),
    3: PATCH.format(path="wallet.py", line=40, heading="def pay(amount):", value=3),
    4: PATCH.format(path="money.py", line=10, heading="class Money:", value=4),
    5: "not a diff\n",
}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Four features in two coupled pairs."""

    def features(repo: str, task_id: int, feature_id: int) -> dict[str, str]:
        return feature_files(repo, task_id, feature_id) | {"feature.patch": PATCHES[feature_id]}

    layout = {"coin_task": {1: [*PATCHES]}}
    dataset = write_dataset(tmp_path / "data", layout, feature_content=features)
    return Pair(load_tasks(dataset)[0], (1, 2, 3, 4))


def assign(pair: Pair, agents: int | None, split: str = "even") -> Assignment | None:
    return assign_features(pair, agents, split, CouplingReader())


@pytest.mark.parametrize(
    ("agents", "split", "expected"),
    [
        (2, "even", ((1, 2), (3, 4))),
        (3, "even", ((1, 2), (3,), (4,))),
        (2, "together", ((1, 4), (2, 3))),
        (3, "together", ((1, 4), (2,), (3,))),
        (2, "apart", ((1, 2), (3, 4))),
        (None, "4,1/3/2", ((1, 4), (3,), (2,))),
        (2, "2/1,3,4", ((2,), (1, 3, 4))),
        (1, "even", ((1, 2, 3, 4),)),
    ],
)
def test_features_are_divided(
    pair: Pair, agents: int | None, split: str, expected: Assignment
) -> None:
    assert assign(pair, agents, split) == expected


@pytest.mark.parametrize("split", ["even", "together", "apart"])
def test_as_many_agents_as_features_is_the_default(pair: Pair, split: str) -> None:
    assert assign(pair, 4, split) is None
    assert assign(pair, None, "1/2/3/4") is None


def test_slots_follow_the_assignment(pair: Pair) -> None:
    assigned = Pair(pair.task, pair.feature_ids, assignment=((1, 4), (2, 3)))
    assert assigned == pair
    slots = agent_slots(assigned, "coop")
    assert [(slot.agent_id, slot.feature_ids) for slot in slots] == [
        ("agent1", (1, 4)),
        ("agent2", (2, 3)),
    ]
    assert [slot.feature_ids for slot in agent_slots(assigned, "solo")] == [(1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("agents", "split", "message"),
    [
        (5, "even", r"--agents 5 is more than the 4 features of coin_task/task1 f1_f2_f3_f4: .*"),
        (None, "1,2/3", r"--split 1,2/3 omits feature 4 of coin_task/task1 f1_f2_f3_f4"),
        (None, "1/2", r"--split 1/2 omits features 3, 4 of .*"),
        (None, "1,2/2,3,4", r"--split 1,2/2,3,4 names feature 2 more than once"),
        (None, "1,2/3,4,7", r"--split 1,2/3,4,7: .* does not have feature 7"),
        (3, "1,2/3,4", r"--split names the features of 2 agents, not of --agents 3"),
        (None, "1,2,3,4", r"--split names the features of a single agent: use --agents 1 instead"),
        (None, "1,2/", r"--split '1,2/' is not even, together, apart or a list of features .*"),
        (None, "both", r"--split 'both' is not even, together, apart or .*"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    pair: Pair, agents: int | None, split: str, message: str
) -> None:
    with pytest.raises(UserError, match=f"^{message}$") as caught:
        assign(pair, agents, split)
    assert "\n" not in str(caught.value)


def test_unknown_coupling_is_refused(pair: Pair) -> None:
    with pytest.raises(UserError, match=r"^--split apart: the coupling of features 1, 5 of .*"):
        assign(Pair(pair.task, (1, 5)), 1, "apart")


def test_a_list_is_read_in_any_order() -> None:
    assert parse_split("3, 1/2") == ((1, 3), (2,))
    assert parse_split("together") is None
    assert split_features(((2, 5), (1,))) == [1, 2, 5]


def all_assignments(features: tuple[int, ...], sizes: list[int]) -> list[Assignment]:
    """Return every assignment with groups of these sizes, in any order of the groups."""
    if not sizes:
        return [()]
    found: list[Assignment] = []
    for size in sorted(set(sizes)):
        rest = sizes.copy()
        rest.remove(size)
        for group in combinations(features, size):
            if group[0] == features[0]:
                left = tuple(feature for feature in features if feature not in group)
                found += [(group, *others) for others in all_assignments(left, rest)]
    return found


@pytest.mark.parametrize(("features", "agents"), [(5, 2), (6, 3), (7, 3), (8, 4), (8, 3)])
def test_no_division_has_more_inside(features: int, agents: int) -> None:
    generator = random.Random(features * 10 + agents)
    numbers = tuple(range(1, features + 1))
    weights = {two: generator.choice([-3, 0, 0, 1, 5]) for two in combinations(numbers, 2)}

    def weight_of(assignment: Assignment) -> int:
        return sum(weights[two] for group in assignment for two in combinations(group, 2))

    small, larger = divmod(features, agents)
    sizes = [small + 1] * larger + [small] * (agents - larger)
    best = max(weight_of(candidate) for candidate in all_assignments(numbers, sizes))
    chosen = _HeaviestAssignment(weights, agents).search(numbers)
    assert sorted(len(group) for group in chosen) == sorted(sizes)
    assert weight_of(chosen) == best
