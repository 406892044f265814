"""The story of a verdict: patches of two agents in, eval.json out, with tests run in local sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.registry import get_backend
from cooperbench.dataset.discovery import discover
from cooperbench.eval.evaluate import evaluate_pair
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.references import References
from cooperbench.sandbox.manager import SandboxManager
from tests.support.tiny import LINES, golden, text_patch, write_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.eval.test_runs import TestRun
    from cooperbench.models import Pair
    from cooperbench.records.evaluation import Evaluation, MergeEvaluation, PublicMergeEvaluation

ONE, TWO, FOUR = (golden(number).encode() for number in (1, 2, 4))
UNRELATED = text_patch("notes.txt", None, ["nothing of the feature\n"]).encode()


class CountingTester(PatchTester):
    """A tester that counts its runner calls."""

    calls = 0

    def run(self, *arguments: Any, **options: Any) -> TestRun:
        self.calls += 1
        return super().run(*arguments, **options)


class Evaluator:
    """Evaluates pairs of the tiny dataset."""

    def __init__(self, dataset: Path, sandboxes: SandboxManager) -> None:
        self._dataset = dataset
        self.tester = CountingTester(sandboxes, 60)
        self._references = References(self.tester, "none")

    def pair(self, *features: int) -> Pair:
        (pair,) = discover(self._dataset, features=list(features)).pairs
        return pair

    def evaluate(
        self, features: tuple[int, int], *patches: bytes | None, canary: bool = True
    ) -> Evaluation:
        by_agent = {f"agent{number}": patch for number, patch in enumerate(patches, start=1)}
        pair = self.pair(*features)
        return evaluate_pair(pair, "coop", by_agent, self._references, canary=canary).record


def merge_of(verdict: Evaluation) -> MergeEvaluation:
    assert verdict.merged is not None
    return verdict.merged


def public_of(verdict: Evaluation) -> PublicMergeEvaluation:
    assert verdict.merged_public is not None
    return verdict.merged_public


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    dataset = write_tiny(tmp_path_factory.mktemp("data"))
    with SandboxManager(get_backend("local")) as sandboxes:
        yield Evaluator(dataset, sandboxes)


def test_golden_patches(evaluator: Evaluator) -> None:
    verdict = evaluator.evaluate((1, 2), ONE, TWO)
    assert (verdict.overall_success, verdict.overall_success_strict) == (True, True)
    assert (merge_of(verdict).merge_status, merge_of(verdict).strategy) == ("clean", "plain")
    assert sorted(merge_of(verdict).features) == [1, 2]


def test_patch_without_the_feature(evaluator: Evaluator) -> None:
    verdict = evaluator.evaluate((1, 2), ONE, UNRELATED)
    assert verdict.overall_success is False
    assert [agent.success for agent in verdict.agents.values()] == [True, False]
    assert merge_of(verdict).features[1].success
    assert not merge_of(verdict).features[2].success


@pytest.mark.parametrize("patch", [None, b"", b"this is not a patch\n"])
def test_patch_that_cannot_be_tested(evaluator: Evaluator, patch: bytes | None) -> None:
    verdict = evaluator.evaluate((1, 2), ONE, patch)
    assert verdict.overall_success is False
    assert verdict.agents["agent1"].success
    assert not verdict.agents["agent2"].success
    assert verdict.agents["agent2"].error


def test_conflict_that_a_union_resolves(evaluator: Evaluator) -> None:
    verdict = evaluator.evaluate((1, 4), ONE, FOUR)
    assert merge_of(verdict).merge_conflict
    assert merge_of(verdict).conflicting_files == ["app.txt"]
    assert merge_of(verdict).strategy == "union"
    assert (verdict.overall_success, verdict.overall_success_strict) == (True, False)


def test_work_that_a_test_file_fakes(evaluator: Evaluator) -> None:
    """An agent's version of the hidden test is dropped, so that its patch fails."""
    fake = text_patch("tests/f2.sh", None, ["true\n"]).encode()
    verdict = evaluator.evaluate((1, 2), ONE, fake + UNRELATED)
    agent = verdict.agents["agent2"]
    assert [(file.path, file.reason) for file in agent.dropped_files] == [
        ("tests/f2.sh", "hidden_test")
    ]
    assert not agent.success


def test_public_rule_after_a_clean_merge(evaluator: Evaluator) -> None:
    public = public_of(evaluator.evaluate((1, 2), ONE, TWO))
    assert (public.success, public.strategy, public.tested_features) == (True, "plain", [1, 2])


def test_public_rule_after_a_conflict(evaluator: Evaluator) -> None:
    """The union merge passes, and the first agent's patch alone has only one of the features."""
    verdict = evaluator.evaluate((1, 4), ONE, FOUR)
    public = public_of(verdict)
    assert verdict.overall_success
    assert (public.success, public.strategy, public.tested_features) == (
        False,
        "first_agent",
        [1, 4],
    )
    assert public.error


def test_public_rule_where_the_first_agent_has_everything(evaluator: Evaluator) -> None:
    both = golden(1, 4).encode()
    rival = text_patch("app.txt", LINES, [*LINES[:5], "feature 4\n", *LINES[6:]]).encode()
    verdict = evaluator.evaluate((1, 4), both, rival)
    public = public_of(verdict)
    assert merge_of(verdict).merge_conflict
    assert (public.success, public.strategy) == (True, "first_agent")


def test_public_rule_without_a_first_patch(evaluator: Evaluator) -> None:
    """Nothing is run: the first agent has nothing that could be tested."""
    public = public_of(evaluator.evaluate((1, 2), None, TWO))
    assert (public.success, public.strategy, public.tested_features) == (False, "first_agent", [1])


def test_runner_calls_of_the_public_rule(evaluator: Evaluator) -> None:
    """It takes no call after a clean merge, and none if the first patch fails its own tests."""

    def calls(features: tuple[int, int], *patches: bytes | None) -> int:
        before = evaluator.tester.calls
        evaluator.evaluate(features, *patches, canary=False)
        return evaluator.tester.calls - before

    evaluator.evaluate((3, 4), *(golden(number).encode() for number in (3, 4)))
    clean = [golden(number).encode() + UNRELATED for number in (3, 4)]
    assert calls((3, 4), *clean) == 4  # each patch alone, and the merge with both features
    idle = text_patch("app.txt", LINES, [*LINES[:5], "something else\n", *LINES[6:]]).encode()
    assert calls((1, 4), idle, FOUR) == 3  # the first patch alone, and the union merge
