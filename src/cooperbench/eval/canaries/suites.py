"""Confirmation suites of a feature, made from its hidden tests."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cooperbench.eval.trees import TreeStore
    from cooperbench.models import Feature

SuiteKind = Literal["copies", "in_place", "added"]
"""How tests that must fail were made: copies of tests, changed tests, or a new test."""
MAX_GROWTH = 60.0
"""Instances per hidden test, at most, if time does not matter."""


@dataclass(frozen=True)
class Suite:
    """Hidden tests of which some must fail for every correct implementation."""

    tests: bytes
    """The patch that adds them."""
    kind: SuiteKind
    originals: tuple[str, ...]
    """Names of tests that must pass. Ids in a framework's output contain them."""
    decoys: tuple[str, ...]
    """Names of tests that must fail."""
    tests_total: int
    """Number of hidden tests that can be read in the files that the patch adds or changes."""
    tests_with_decoys: int
    """Number of hidden tests of which there is a version that must fail, in this suite."""


def new_suites(
    feature: Feature,
    store: TreeStore,
    random: Random,
    *,
    max_growth: float = MAX_GROWTH,
    own_types: Collection[str] = (),
) -> Iterator[tuple[Suite, Suite]]:
    """Yield pairs of suites, the best kind first; the first that works with the golden patch is it.

    Args:
        feature: The feature with the hidden tests.
        store: Trees on top of the task's base commit.
        random: The source of all choices.
        max_growth: How many instances there may be per hidden test. Callers derive it from the
            duration of the golden run. Each test keeps at least one version that must fail.
        own_types: Names of tests (as in `Suite.originals`) that compare objects of the library
            itself with literals. Their operands are compared as they are, not as plain copies.
    """
    from cooperbench.eval.canary import new_canaries

    for canary in new_canaries(feature, store):
        suite = Suite(
            canary.tests.encode("latin-1"),
            "in_place" if canary.changed else "added",
            originals=(),
            decoys=canary.changed,
            tests_total=len(canary.changed),
            tests_with_decoys=len(canary.changed),
        )
        yield suite, suite
