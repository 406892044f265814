"""Patches that harm the harness or a teammate's tests without being code: they harm nobody."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.evaluate import evaluate_pair
from cooperbench.models import Pair
from cooperbench.records import to_object
from tests.support.attacks.two_features import FIRST, SECOND, judge_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.attacks.rectangle import Judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judge_in(tmp_path_factory.mktemp("saboteurs")) as judge:
        yield judge


@pytest.mark.xdist_group("saboteurs")
@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        (".gitattributes", "tests/test_2.py working-tree-encoding=UTF-16\n", "git_attributes"),
        ("pyproject.toml", "[" * 200_000, "test_config"),
    ],
)
def test_saboteur(judge: Judge, path: str, content: str, reason: str) -> None:
    """The teammate's success counts, alone and merged, and what was dropped is named."""
    patches = {"agent1": judge.patch({**FIRST, path: content}), "agent2": judge.patch(SECOND)}
    judge.references.get(judge.task.features[0])
    started = time.monotonic()
    evaluation = evaluate_pair(
        Pair(judge.task, (1, 2)), "coop", patches, judge.references, canary=False
    )
    assert time.monotonic() - started < 60
    record = to_object(evaluation.record)
    assert record["agent2"]["success"]
    assert record["merged"]["success"]
    assert record["agent1"]["dropped_files"] == [{"path": path, "reason": reason}]
    assert record["agent2"]["dropped_files"] == []
