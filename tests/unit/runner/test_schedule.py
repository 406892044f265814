"""The order in which the pairs of several plans are run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cooperbench.dataset.discovery import discover
from cooperbench.runner.plan import Plan
from cooperbench.runner.schedule import interleave
from tests.support.tiny import write_tiny
from tests.unit.runner.test_config import make_config

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.models import Pair


def plans_of(tmp_path: Path, *names: str) -> list[Plan]:
    """Return plans of the same three pairs, with the names of their runs."""
    pairs = discover(write_tiny(tmp_path / "data", feature_ids=(1, 2, 3))).pairs
    config = make_config(tmp_path)
    return [Plan(replace(config, run_name=name), pairs, to_run=tuple(pairs)) for name in names]


def order_of(plans: list[Plan]) -> list[tuple[str, tuple[int, ...]]]:
    return [(work.config.run_name, work.pair.feature_ids) for work in interleave(plans)]


def test_plans_take_turns(tmp_path: Path) -> None:
    first, second, third = (1, 2), (1, 3), (2, 3)
    assert order_of(plans_of(tmp_path, "a", "b")) == [
        ("a", first),
        ("b", first),
        ("b", second),
        ("a", second),
        ("a", third),
        ("b", third),
    ]


def test_finished_pairs_keep_their_turn(tmp_path: Path) -> None:
    one, other = plans_of(tmp_path, "a", "b")

    def is_second(pair: Pair) -> bool:
        return pair.feature_ids == (1, 3)

    left = replace(one, to_run=tuple(filter(is_second, one.pairs)))
    assert order_of([left, other]) == [
        ("b", (1, 2)),
        ("b", (1, 3)),
        ("a", (1, 3)),
        ("b", (2, 3)),
    ]


def test_rounds_follow_each_other(tmp_path: Path) -> None:
    one, other = plans_of(tmp_path, "a", "b")
    names = [name for name, _ in order_of([replace(one, round=2), other])]
    assert names == ["b", "b", "b", "a", "a", "a"]
