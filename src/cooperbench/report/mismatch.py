"""A mismatch: something on disk that does not fit the rest of a run, and which numbers it affects.

`consistency` finds them. This module knows how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from cooperbench.models import Setting
from cooperbench.report.pairs import VERDICTS, PairData, PairKey
from cooperbench.text import plural

MARK = "†"
"""Stands beside every number that a mismatch affects."""
MARK_NOTE = f"{MARK} something on disk does not fit: see Mismatches"
_MAX_NAMED_PAIRS = 3

Kind = Literal[
    "history",
    "config",
    "gone",
    "changed",
    "replaced",
    "verdict_changed",
    "not_requested",
    "other_pair",
    "other_run",
    "other_agent",
    "conditions",
    "patch",
    "dataset",
    "unconfirmed",
    "contradiction",
    "mixed",
    "unchecked",
]

_VERDICTS = tuple(VERDICTS)
_ALL = (*_VERDICTS, "cost")
AFFECTS: Mapping[Kind, tuple[str, ...]] = {
    "history": _ALL,
    "config": _ALL,
    "gone": _ALL,
    "changed": _ALL,
    "replaced": _ALL,
    "verdict_changed": _VERDICTS,
    "not_requested": _ALL,
    "other_pair": _ALL,
    "other_run": _ALL,
    "other_agent": _ALL,
    "conditions": _ALL,
    "patch": _VERDICTS,
    "dataset": _VERDICTS,
    "unconfirmed": ("individual", "merged", "overall", "strict"),
    "contradiction": _VERDICTS,
    "mixed": _VERDICTS,
    "unchecked": (),
}
"""The verdicts whose rates a mismatch of a kind affects, and `cost`."""


@dataclass(frozen=True)
class Mismatch:
    """One thing that does not fit."""

    kind: Kind
    """`unchecked` if something cannot be checked, mostly because an older version wrote it."""
    runs: tuple[str, ...]
    setting: Setting | None
    """None if it is about all settings."""
    pairs: tuple[PairKey, ...]
    """Empty if it is about all pairs, or if it is not known about which."""
    affects: tuple[str, ...]
    """Names of verdicts whose rates it affects, and `cost`."""
    text: str
    """One line."""

    @property
    def line(self) -> str:
        """The line with the names of the runs."""
        return f"{', '.join(self.runs)}: {self.text}"

    @property
    def is_unchecked(self) -> bool:
        """Whether this is only about something that cannot be checked."""
        return self.kind == "unchecked"

    def is_about(self, pair: PairData) -> bool:
        """Whether the numbers of a pair of these runs are affected."""
        if self.is_unchecked or self.setting not in (None, pair.setting):
            return False
        return not self.pairs or pair.key in self._pair_set

    @cached_property
    def _pair_set(self) -> frozenset[PairKey]:
        return frozenset(self.pairs)


@dataclass
class Findings:
    """Collects the pairs that one line is about."""

    run: str
    pairs_by_line: dict[tuple[Kind, Setting | None, str], list[PairKey]] = field(
        default_factory=dict
    )
    explained: set[tuple[Setting, PairKey, str]] = field(default_factory=set)
    """Files of which it is known why they do not fit, so that one cause has one line."""

    def add(self, kind: Kind, pair: PairData, text: str, *files: str) -> None:
        """Add a pair to a line, which explains why these files of the pair do not fit."""
        self.add_key(kind, pair.setting, pair.key, text)
        self.explained.update((pair.setting, pair.key, file) for file in files)

    def is_explained(self, pair: PairData, file: str) -> bool:
        """Whether a line already says why a file of the pair does not fit."""
        return (pair.setting, pair.key, file) in self.explained

    def has(self, kind: Kind) -> bool:
        """Whether there is a line of a kind."""
        return any(key[0] == kind for key in self.pairs_by_line)

    def add_key(self, kind: Kind, setting: Setting, key: PairKey, text: str) -> None:
        """Add a pair to a line."""
        self.pairs_by_line.setdefault((kind, setting, text), []).append(key)

    def add_run(self, kind: Kind, text: str) -> None:
        """Add a line about the whole run."""
        self.pairs_by_line.setdefault((kind, None, text), [])

    def mismatches(self) -> list[Mismatch]:
        """Return a mismatch for each line; what cannot be checked comes last."""
        mismatches = []
        for (kind, setting, text), pairs in self.pairs_by_line.items():
            line = text if setting is None else f"{setting}: {text}: {name_pairs(pairs)}"
            if kind == "unchecked" and setting is not None:
                line = f"{setting}: cannot be checked for {plural(len(pairs), 'pair')}: {text}"
            mismatches.append(
                Mismatch(kind, (self.run,), setting, tuple(pairs), AFFECTS[kind], line)
            )
        return sorted(mismatches, key=lambda mismatch: mismatch.is_unchecked)


def name_pairs(keys: Sequence[PairKey]) -> str:
    """Return the first pairs by name, and how many more there are."""
    names = ", ".join(key.label for key in keys[:_MAX_NAMED_PAIRS])
    hidden = len(keys) - _MAX_NAMED_PAIRS
    return f"{names} and {plural(hidden, 'more pair')}" if hidden > 0 else names


def affected_numbers(
    mismatches: Sequence[Mismatch], run: str, pairs: Iterable[PairData]
) -> tuple[str, ...]:
    """Return the verdicts whose rates over these pairs of a run are affected, and `cost`."""
    names: set[str] = set()
    for pair in pairs:
        for mismatch in mismatches_of(mismatches, run, pair):
            names.update(mismatch.affects)
    return tuple(name for name in _ALL if name in names)


def mismatches_of(mismatches: Iterable[Mismatch], run: str, pair: PairData) -> list[Mismatch]:
    """Return those that affect the numbers of one pair of a run."""
    return [mismatch for mismatch in mismatches if run in mismatch.runs and mismatch.is_about(pair)]


def mismatch_kinds(mismatches: Iterable[Mismatch], run: str, pair: PairData) -> list[str]:
    """Return the kinds of those that affect the numbers of one pair of a run, each once."""
    return [*dict.fromkeys(mismatch.kind for mismatch in mismatches_of(mismatches, run, pair))]


def mismatch_texts(mismatches: Iterable[Mismatch]) -> list[str]:
    """Return the text of each mismatch, without what cannot be checked."""
    return [mismatch.text for mismatch in mismatches if not mismatch.is_unchecked]


def unchecked_texts(mismatches: Iterable[Mismatch]) -> list[str]:
    """Return the text of everything that cannot be checked."""
    return [mismatch.text for mismatch in mismatches if mismatch.is_unchecked]


def mismatch_lines(mismatches: Iterable[Mismatch]) -> list[str]:
    """Return the text of each mismatch with its runs, without what cannot be checked."""
    return [mismatch.line for mismatch in mismatches if not mismatch.is_unchecked]


def unchecked_lines(mismatches: Iterable[Mismatch]) -> list[str]:
    """Return the text of everything that cannot be checked, with its runs."""
    return [mismatch.line for mismatch in mismatches if mismatch.is_unchecked]
