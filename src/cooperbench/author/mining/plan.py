"""Chooses base commits: parents of candidates on which many later candidates fit.

A candidate fits if its files can be merged there; whether it holds, test runs have to show. Those
near the base in the history come first, because they are the most likely to hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from cooperbench.author.mining.history import Candidate
from cooperbench.author.mining.transplant import Conflict, Content, Transplanter

MAX_DISTANCE = 40
"""Candidates after a base that are considered for it."""
MIN_FEATURES = 2


@dataclass(frozen=True)
class Placement:
    """A candidate on a base commit: the files that it changes there."""

    candidate: Candidate
    feature_files: dict[str, Content | None]
    test_files: dict[str, Content | None]

    @property
    def commit_id(self) -> str:
        """The candidate's commit."""
        return self.candidate.commit.commit_id


@dataclass(frozen=True)
class BasePlan:
    """A base commit and the candidates that fit there, the nearest first."""

    base: str
    placements: list[Placement]


class Planner:
    """Knows which candidates fit on which base commits."""

    def __init__(self, git_dir: Path, candidates: Sequence[Candidate]) -> None:
        self.transplanter = Transplanter(git_dir)
        # The oldest first.
        self._candidates = sorted(candidates, key=lambda candidate: -candidate.commit.position)
        self._fitting: dict[str, list[Candidate]] = {}

    def find_fitting(self, pool: Executor) -> Iterator[int]:
        """Find out for each base which candidates fit; yield the number of bases done."""
        numbers = range(len(self._candidates))
        for number, fitting in enumerate(pool.map(self._fitting_after, numbers)):
            self._fitting[self._candidates[number].commit.parent] = fitting
            yield number + 1

    def _fitting_after(self, number: int) -> list[Candidate]:
        """Return the candidates that fit on the parent of the one with this number."""
        files = self.transplanter.files_of(self._candidates[number].commit.parent)
        later = self._candidates[number : number + MAX_DISTANCE]
        return [other for other in later if self._place(other, files)]

    def best_plan(
        self, used: Collection[str], excluded_bases: Collection[str], max_features: int
    ) -> BasePlan | None:
        """Return the base on which most unused candidates fit; None if there are too few."""
        best_base = ""
        best: list[Candidate] = []
        for base, fitting in self._fitting.items():
            if base in excluded_bases:
                continue
            free = [other for other in fitting if other.commit.commit_id not in used]
            # A spare one for each, since not all hold. More make a base no better than a newer one.
            limit = 2 * max_features
            if min(len(free), limit) >= max(MIN_FEATURES, min(len(best), limit)):
                best_base, best = base, free
        if not best:
            return None
        files = self.transplanter.files_of(best_base)
        placements = [self._place(candidate, files) for candidate in best]
        return BasePlan(best_base, [placement for placement in placements if placement])

    def _place(self, candidate: Candidate, files: Mapping[str, Content]) -> Placement | None:
        move = self.transplanter.move
        feature_files = move(candidate.changes, candidate.feature_paths, files)
        if isinstance(feature_files, Conflict):
            return None
        test_files = move(candidate.changes, candidate.test_paths, files)
        if isinstance(test_files, Conflict):
            return None
        return Placement(candidate, feature_files, test_files)
