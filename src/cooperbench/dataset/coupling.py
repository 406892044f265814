"""How closely the features of a pair are coupled, by their golden patches.

Nothing is run: files, symbols and lines are compared in the patches themselves. Only a conflict of
meaning has to be measured; pairs.json has what is known about that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from cooperbench.dataset.golden_groups import GoldenGroup, is_current, read_golden_groups
from cooperbench.diff import ChangedFile, parse_diff
from cooperbench.models import Feature, Pair, Task
from cooperbench.patch_symbols import changed_lines, changed_symbols, meeting_changes
from cooperbench.storage import read_bytes

Coupling = Literal["none", "file", "symbol", "text", "meaning"]
COUPLINGS: dict[Coupling, str] = {
    "none": "the golden patches change different files",
    "file": "the golden patches change a common file, but different functions and classes",
    "symbol": "the golden patches change a common function or class, and merge",
    "text": "the golden patches change the same or neighboring lines; git cannot merge them",
    "meaning": "the golden patches merge, but tests fail with both",
}
"""The classes from loose to tight, and what they mean."""
UNKNOWN = "unknown"
"""Stands for the class of a pair with a golden patch that is not a diff."""
_ORDER: tuple[Coupling, ...] = tuple(COUPLINGS)


class CouplingReader:
    """Classifies pairs. It reads each golden patch once."""

    def __init__(self) -> None:
        self._patches: dict[Feature, _GoldenPatch | None] = {}
        self._groups: dict[Task, dict[tuple[int, ...], GoldenGroup]] = {}

    def coupling_of(self, pair: Pair) -> Coupling | None:
        """Return the class of a pair; of a larger group, the tightest one in it.

        Returns:
            None if one of the golden patches is not a diff.
        """
        couplings: list[Coupling] = []
        for first, second in combinations(pair.features, 2):
            coupling = self._coupling_of_two(first, second)
            if coupling is None:
                return None
            couplings.append(coupling)
        if self._fails_together(pair.task, pair.feature_ids):
            couplings.append("meaning")
        return max(couplings, key=_ORDER.index)

    def _coupling_of_two(self, first: Feature, second: Feature) -> Coupling | None:
        first_patch, second_patch = self._patch_of(first), self._patch_of(second)
        if first_patch is None or second_patch is None:
            return None
        coupling = _compare(first_patch, second_patch)
        feature_ids = (first.feature_id, second.feature_id)
        if coupling != "text" and self._fails_together(first.task, feature_ids):
            return "meaning"
        return coupling

    def _patch_of(self, feature: Feature) -> _GoldenPatch | None:
        if feature not in self._patches:
            self._patches[feature] = _read_patch(feature)
        return self._patches[feature]

    def _fails_together(self, task: Task, feature_ids: tuple[int, ...]) -> bool:
        if task not in self._groups:
            self._groups[task] = read_golden_groups(task)
        group = self._groups[task].get(feature_ids)
        return group is not None and group.is_semantic_conflict and is_current(group, task)


class _GoldenPatch:
    """The files of a golden patch, and the functions and classes that it changes."""

    def __init__(self, files: Sequence[ChangedFile]) -> None:
        self.by_path: dict[str, ChangedFile] = {}
        for file in files:
            for path in file.paths:
                self.by_path[path] = file
        # Two methods of one class have the class in common.
        self.symbols = {_outermost(symbol) for symbol in changed_symbols(changed_lines(files))}


def _outermost(symbol: str) -> str:
    """Return a symbol with its path, without what is nested in it: `src/money.py: Money`."""
    path, _, name = symbol.rpartition(": ")
    return f"{path}: {name.partition('.')[0]}"


def _read_patch(feature: Feature) -> _GoldenPatch | None:
    data = read_bytes(feature.patch, follow_link=True)
    if data is None:
        return None
    try:
        return _GoldenPatch(parse_diff(data))
    except ValueError:
        return None


def _compare(first: _GoldenPatch, second: _GoldenPatch) -> Coupling:
    shared_paths = first.by_path.keys() & second.by_path.keys()
    if not shared_paths:
        return "none"
    for path in shared_paths:
        if _conflicts(first.by_path[path], second.by_path[path]):
            return "text"
    return "symbol" if first.symbols & second.symbols else "file"


def _conflicts(file: ChangedFile, other: ChangedFile) -> bool:
    if file.is_binary or other.is_binary:
        return True
    return any(True for _ in meeting_changes(file, other))
