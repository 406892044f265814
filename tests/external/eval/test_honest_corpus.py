"""Correct implementations of the demo's features are accepted, whatever else they do.

COOPERBENCH_TEST_HONEST_REPEAT says how often each is evaluated, by default once. Each time the
confirmation suites are new, and an implementation has another style.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.registry import get_backend
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.sandbox.manager import SandboxManager
from tests.support.honest.corpus import Evaluator, demo_tasks, load_implementations
from tests.support.requirements import require_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPEAT = int(os.environ.get("COOPERBENCH_TEST_HONEST_REPEAT", "1"))
FIRST = int(os.environ.get("COOPERBENCH_TEST_HONEST_FIRST", "0"))
"""Number of the first repetition, so that a campaign can be continued."""
TASKS = demo_tasks()


@pytest.fixture(scope="module")
def tester() -> Iterator[PatchTester]:
    with SandboxManager(get_backend("local")) as sandboxes:
        sandboxes.prepare([*TASKS.values()], lambda *_: None)
        yield PatchTester(sandboxes, 120)


def test_each_feature_has_three_implementations() -> None:
    for task in TASKS.values():
        features = [implementation.feature for implementation in load_implementations(task)]
        for feature in task.features:
            assert features.count(feature) >= 3, feature


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("repetition", range(FIRST, FIRST + REPEAT))
@pytest.mark.parametrize("repo", sorted(TASKS))
def test_honest_work_is_accepted(
    tmp_path: Path, tester: PatchTester, repo: str, repetition: int
) -> None:
    if repo == "switchyard_task":
        require_program("node", package="nodejs")
    evaluator = Evaluator(tester, tmp_path)
    rejected = []
    for index, implementation in enumerate(load_implementations(TASKS[repo])):
        styles = implementation.styles
        style = styles[(5 * index + repetition) % len(styles)]
        verdict = evaluator.evaluate(implementation, style)
        if verdict.outcome != "confirmed":
            rejected.append(f"{implementation.label} in style {style}: {verdict}")
    assert rejected == []
