"""Where two agents' patches meet: files, places in the base, lines, symbols.

Places are compared in the base's line numbers, which both patches share. Two changes overlap where they replace a
common base line or insert at the same point; they are adjacent where one begins right where the other ends, which git
does not merge either. The same change on both sides is `identical` and no overlap: agents that shared their work over
git have many.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cooperbench.report.coordination.changes import Change, ChangedFile, Work

MOST_PLACES = 500
"""Of one file that are listed; all are counted."""


@dataclass(frozen=True)
class Place:
    """Two changes that meet, with their lines in the two patch files."""

    kind: Literal["overlapping", "adjacent", "identical"]
    old_start: int
    """First base line concerned, from 1."""
    old_end: int
    """The base line after the last one; equal to `old_start` for an insertion."""
    first_patch_line: int
    second_patch_line: int


@dataclass(frozen=True)
class SharedFile:
    """A file that both change."""

    path: str
    first_patch_line: int
    second_patch_line: int
    overlapping: int
    adjacent: int
    identical: int
    base_lines: int
    """Base lines that both replace."""
    identical_lines: int
    """Added lines, blank ones apart, that both have."""
    conflicts: bool | None
    """By the plain git merge of the evaluation; None: not evaluated."""
    places: tuple[Place, ...]


@dataclass(frozen=True)
class SharedSymbol:
    """A function, class or type that both touch."""

    path: str
    name: str
    added_by_both: bool
    first_patch_line: int
    second_patch_line: int


@dataclass(frozen=True)
class Overlap:
    """Two agents' patches side by side."""

    first: str
    second: str
    files: tuple[SharedFile, ...]
    file_share: float | None
    """Shared files over all files of the two (Jaccard); None where there are none."""
    overlapping: int
    adjacent: int
    identical: int
    base_lines: int
    identical_lines: int
    symbols: tuple[SharedSymbol, ...]
    """Touched by both in the same file."""


def overlap_of(first: Work, second: Work, conflicting: frozenset[str] | None) -> Overlap:
    """`conflicting`: the files in which the plain merge failed, None where that is not known."""
    by_path = {path: file for file in second.files for path in file.paths}
    # A renamed file is compared under both of its names.
    sides = [(ours, next(filter(None, map(by_path.get, ours.paths)), None)) for ours in first.files]
    files = tuple(_shared_file(ours, theirs, conflicting) for ours, theirs in sides if theirs)
    union = first.paths | second.paths
    return Overlap(
        first.agent_id,
        second.agent_id,
        files,
        len(first.paths & second.paths) / len(union) if union else None,
        sum(file.overlapping for file in files),
        sum(file.adjacent for file in files),
        sum(file.identical for file in files),
        sum(file.base_lines for file in files),
        sum(file.identical_lines for file in files),
        tuple(_shared_symbols(first, second)),
    )


def _shared_file(ours: ChangedFile, theirs: ChangedFile, conflicting: frozenset[str] | None) -> SharedFile:
    places = list(_places(ours.changes, theirs.changes))
    kinds = Counter(place.kind for place in places)
    if ours.is_binary or theirs.is_binary:
        kinds["overlapping"] += 1
    return SharedFile(
        ours.path,
        ours.patch_line,
        theirs.patch_line,
        kinds["overlapping"],
        kinds["adjacent"],
        kinds["identical"],
        len(_base_lines(ours) & _base_lines(theirs)),
        (_added(ours) & _added(theirs)).total(),
        None if conflicting is None else bool(conflicting & {*ours.paths, *theirs.paths}),
        tuple(places[:MOST_PLACES]),
    )


def _places(ours: Sequence[Change], theirs: Sequence[Change]) -> Iterator[Place]:
    """Both sides are sorted by place and free of overlaps in themselves: one walk over them."""
    mine, yours = 0, 0
    while mine < len(ours) and yours < len(theirs):
        one, other = ours[mine], theirs[yours]
        if one.old_start <= other.old_end and other.old_start <= one.old_end:
            start, end = max(one.old_start, other.old_start), min(one.old_end, other.old_end)
            kind: Literal["overlapping", "adjacent", "identical"]
            if (one.old_start, one.removed, one.added) == (other.old_start, other.removed, other.added):
                kind = "identical"
            elif start < end or one.old_start == other.old_start:
                kind = "overlapping"
            else:
                kind = "adjacent"
            yield Place(kind, start, end, one.patch_line, other.patch_line)
        if (one.old_end, one.old_start) <= (other.old_end, other.old_start):
            mine += 1
        else:
            yours += 1


def _base_lines(file: ChangedFile) -> set[int]:
    return {number for change in file.changes for number in range(change.old_start, change.old_end)}


def _added(file: ChangedFile) -> Counter[str]:
    return Counter(line for change in file.changes for line in change.added if line.strip())


def _shared_symbols(first: Work, second: Work) -> Iterator[SharedSymbol]:
    theirs = {(symbol.path, symbol.name): symbol for symbol in second.symbols}
    for ours in first.symbols:
        same = theirs.get((ours.path, ours.name))
        if same is not None:
            both = ours.is_added and same.is_added
            yield SharedSymbol(ours.path, ours.name, both, ours.patch_line, same.patch_line)
