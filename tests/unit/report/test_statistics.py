"""What an interval promises, and what is said where there is none."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.report import METHODS, Method
from cooperbench.report.pairs import PairKey
from cooperbench.report.statistics import Observation, cluster_of, clusters_of, mean, rate, ratio

DIFFERENCE = (-1.0, 1.0)


def of_tasks(*tasks: list[float]) -> list[Observation]:
    return [
        Observation(PairKey("r", task, (1, place + 2)), value)
        for task, values in enumerate(tasks)
        for place, value in enumerate(values)
    ]


def test_a_cluster_is_a_task_of_a_repository() -> None:
    assert cluster_of(PairKey("a", 1, (1, 2))) == cluster_of(PairKey("a", 1, (3, 4)))
    assert cluster_of(PairKey("a", 1, (1, 2))) != cluster_of(PairKey("b", 1, (1, 2)))
    assert clusters_of(of_tasks([1, 0, 1], [0])) == [(3, 2.0), (1, 0.0)]


def test_one_task_has_no_interval_and_says_so() -> None:
    for method in ("clustered", "bootstrap"):
        found = rate(of_tasks([1, 0, 1]), method)
        assert found.value == pytest.approx(2 / 3)
        assert (found.low, found.high, found.clusters) == (None, None, 1)
        assert "one task" in found.note
    independent = rate(of_tasks([1, 0, 1]), "wilson")
    assert independent.low is not None


def test_nothing_is_no_rate() -> None:
    for method in METHODS:
        found = rate([], method)
        assert (found.value, found.low, found.n) == (None, None, 0)
        assert found.note


def test_where_all_pairs_agree_tasks_count_as_trials() -> None:
    for method in ("clustered", "bootstrap"):
        found = rate(of_tasks([1] * 50, [1] * 50, [1] * 50), method)
        assert found.value == 1.0
        assert found.high == 1.0
        assert found.low == pytest.approx(0.4385, abs=1e-3)
        assert found.method == "wilson over tasks"
        assert "all pairs agree" in found.note
    nobody = mean(of_tasks([0, 0], [0, 0], [0]), DIFFERENCE)
    assert (nobody.low, nobody.high) == pytest.approx((-0.5615, 0.5615), abs=1e-3)
    unlimited = mean(of_tasks([3.5], [3.5]))
    assert (unlimited.value, unlimited.low) == (3.5, None)


def test_tasks_that_agree_by_luck_do_not_narrow_the_interval() -> None:
    lucky = rate(of_tasks([1, 0] * 10, [0, 1] * 10, [1, 0] * 10))
    assert lucky.design_effect == pytest.approx(0.0)
    assert lucky.low is not None
    assert lucky.high is not None
    independent = rate(of_tasks([1, 0] * 10, [0, 1] * 10, [1, 0] * 10), "wilson")
    assert independent.high is not None
    assert lucky.high - 0.5 > independent.high - 0.5


def test_retention_is_a_ratio_of_sums() -> None:
    coop = of_tasks([1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0])
    solo = of_tasks([1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0])
    found = ratio(coop, solo)
    assert found.value == pytest.approx(0.5)
    # Each task with solo success keeps one half; drawn alone, the third one divides by 0.
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))
    assert "divided by 0" in found.note
    assert ratio(coop, of_tasks([0] * 4, [0] * 4, [0] * 4)).value is None


def test_pairs_that_hang_together_need_clusters_to_be_covered() -> None:
    """In 300 small worlds where a task's pairs share their fate, 95 % intervals hold the truth so often."""
    source = random.Random(7)
    # The bootstrap is left out for its time.
    covered: dict[Method, int] = {"clustered": 0, "wilson": 0}
    worlds = 300
    for _ in range(worlds):
        tasks = []
        for _ in range(12):
            chance = source.choice([0.15, 0.5, 0.85])
            tasks.append([float(source.random() < chance) for _ in range(15)])
        for method in covered:
            found = rate(of_tasks(*tasks), method)
            assert found.low is not None
            assert found.high is not None
            covered[method] += found.low <= 0.5 <= found.high
    assert covered["clustered"] / worlds > 0.91
    assert covered["wilson"] / worlds < 0.75


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1, max_size=8),
    st.sampled_from(METHODS),
    st.randoms(use_true_random=False),
)
def test_rate_stays_within_its_bounds(
    tasks: list[list[float]], method: Method, source: random.Random
) -> None:
    observations = of_tasks(*tasks)
    found = rate(observations, method)
    shuffled = list(observations)
    source.shuffle(shuffled)
    assert rate(shuffled, method) == found
    assert found.value is not None
    if found.low is not None and found.high is not None:
        assert 0.0 <= found.low <= found.value + 1e-12
        assert found.value - 1e-12 <= found.high <= 1.0
