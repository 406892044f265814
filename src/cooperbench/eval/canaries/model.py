"""Data that the reader of a language returns: tests, their checks, and what can be changed.

All positions are byte offsets in the file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

SlotKind = Literal["number", "scaled_number", "text", "phrase", "fixed"]
"""What stands in a slot: a number, one that is compared with a tolerance, text that is compared,
text that another text has to contain or match, or something with a fixed set of alternatives."""
NameStyle = Literal["snake", "camel", "kebab", "title", "expression"]
"""How a number is added to a name: `test_a_1`, `TestA1`, `a-1`, `'a 1'`, `name + ' 1'`."""


class Edit(NamedTuple):
    """A replacement of a part of a file."""

    start: int
    end: int
    text: bytes


class Span(NamedTuple):
    """A part of a file."""

    start: int
    end: int

    def contains(self, other: Span) -> bool:
        """Whether the other part lies within this one."""
        return self.start <= other.start and other.end <= self.end

    def overlaps(self, other: Span) -> bool:
        """Whether the two parts have something in common."""
        return self.start < other.end and other.start < self.end


class Spans:
    """Parts of a file; those that overlap count as one."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for span in sorted(spans):
            if self._ends and span.start < self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], span.end)
            else:
                self._starts.append(span.start)
                self._ends.append(span.end)

    def contain(self, other: Span) -> bool:
        """Whether another part lies within one of these."""
        index = bisect_right(self._starts, other.start) - 1
        return index >= 0 and other.end <= self._ends[index]


@dataclass(frozen=True)
class Slot:
    """A part of an assertion that can be changed, so that every correct implementation fails."""

    span: Span
    kind: SlotKind
    alternatives: tuple[bytes, ...] = ()
    """All that a `fixed` slot may become."""
    echoes: tuple[Span, ...] = ()
    """Messages that may repeat the expected value, which would give it away."""
    highest: int | None = None
    """The largest number that its type can hold."""


@dataclass(frozen=True)
class Check:
    """One assertion, or one row of a table of a test."""

    span: Span
    slots: tuple[Slot, ...]
    """Several literals of one value; decoys change one of them, always the same."""
    neutral: tuple[Edit, ...] = ()
    """Edits after which the test no longer checks this, and does not show what it expects."""
    plain: tuple[Edit, ...] = ()
    """Edits after which a plain copy of the operand is compared."""
    opposite: Slot | None = None
    """What to change instead if the operand is not of a built-in type: it may equal anything."""


@dataclass(frozen=True)
class HiddenTest:
    """A test in a file."""

    name: str
    span: Span
    name_end: int
    """Where a number can be added to its name."""
    name_style: NameStyle
    checks: tuple[Check, ...]
    comments: tuple[Span, ...] = ()
    """Comments and the documentation of the test, which may repeat expected values."""


@dataclass(frozen=True)
class TestFile:
    """The tests of a file, and what plausible values can be made of."""

    __test__ = False

    source: bytes
    tests: tuple[HiddenTest, ...]
    words: tuple[bytes, ...] = ()
    """Words in its strings."""
    numbers: tuple[bytes, ...] = ()
    identifiers: frozenset[bytes] = frozenset()
    helper: Edit | None = None
    """Insertion of the function that makes plain copies of operands."""
    new_test: Edit | None = None
    """Insertion of a test that fails; `{first}` and `{second}` stand for words."""
    is_compiled: bool = False
    """Whether a number that is too large for its type keeps all tests from running."""
    has_small_types: bool = False
    """Whether numbers are compared with ones of the smallest type that can hold them."""


@dataclass
class Vocabulary:
    """Words and numbers of a file while it is read."""

    words: set[bytes] = field(default_factory=set)
    numbers: set[bytes] = field(default_factory=set)


def apply_edits(source: bytes, span: Span, edits: Iterable[Edit]) -> bytes:
    """Return a part of a file after some edits, of which none overlap."""
    parts = []
    position = span.start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [source[position : edit.start], edit.text]
        position = edit.end
    parts.append(source[position : span.end])
    return b"".join(parts)
