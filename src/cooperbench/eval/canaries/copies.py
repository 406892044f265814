"""Copies of tests: for each check one that passes and some that must fail, in random order.

A copy keeps one check of its test and makes the others neutral. If it kept them, the right value of
each check would be the one that most copies have.

Two suites are made together. Their decoys have different values: code that prefers some value, in
whatever way, passes both suites only if it prefers the right one to the decoys of both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from cooperbench.eval.canaries.literals import (
    KnownValues,
    Part,
    Surroundings,
    count_tokens,
    edit_part,
    find_parts,
    find_token_spans,
    find_tokens,
    is_common,
    is_shown,
    other_values,
)
from cooperbench.eval.canaries.model import (
    Check,
    Edit,
    HiddenTest,
    Slot,
    Span,
    TestFile,
    apply_edits,
)
from cooperbench.eval.canaries.vocabulary import Texts, WordPool

MAX_DECOYS = 14
"""Decoys per check and suite, at most. docs/evaluation.md calculates what follows from it."""
_NAME_NUMBERS = (100_000, 1_000_000)
_NAME_SUFFIX = re.compile(r"[_ -]?[0-9]{6}$")
_MAX_FILE_GROWTH = 4_000_000
"""Bytes that the copies of a file may have, at most."""
_MAX_PARTS = 20
"""Parts of an expected value that are considered."""
_ALL_CHECKS = 1_000_000


@dataclass
class NewFile:
    """A test file of a suite."""

    content: bytes
    originals: list[str] = field(default_factory=list)
    """Names of tests that must pass."""
    decoys: list[str] = field(default_factory=list)
    """Names of tests that must fail."""
    tests_with_decoys: int = 0


class _Parts(NamedTuple):
    """The parts of a file that the decoys of a check change in each suite."""

    first: Part
    second: Part


class _Group(NamedTuple):
    """The instances for one check of a test."""

    common: tuple[Edit, ...]
    """Edits that all of them have."""
    changes: tuple[list[list[Edit]], list[list[Edit]]]
    """The edits of each decoy, by suite."""


def copy_tests(  # noqa: PLR0913  # options are keyword-only
    file: TestFile,
    tests: Collection[HiddenTest],
    random: Random,
    *,
    max_growth: float,
    own_types: Collection[str] = (),
    texts: Texts | None = None,
    known_values: KnownValues | None = None,
) -> tuple[NewFile, NewFile]:
    """Return the file twice, with these tests replaced by instances of them.

    Tests without a check stay as they are. `texts` are known to agents. `known_values` are those
    of the decoys in other files of the suites.
    """
    copied = [test for test in tests if test.checks]
    limits = _Limits.of(copied, max_growth)
    without_plain = {_NAME_SUFFIX.sub("", name) for name in own_types}

    def group_makers(surroundings: Surroundings) -> Iterator[_GroupMaker]:
        for test in copied:
            plain = not test.name or test.name not in without_plain
            yield _GroupMaker(test, surroundings, random, is_plain=plain)

    # First decide what decoys change. Everything else can be seen.
    first_surroundings = _surroundings(file, copied, texts or Texts())
    parts: dict[Check, _Parts] = {}
    for maker in group_makers(first_surroundings):
        parts |= maker.choose_parts(limits)
    numbers = _count_numbers(file, parts.values())
    surroundings = _surroundings(file, copied, texts or Texts())._replace(
        numbers=numbers, known_values=known_values or KnownValues()
    )
    writers = (_SuiteWriter(file, random), _SuiteWriter(file, random))
    for maker in group_makers(surroundings):
        groups = list(maker.groups(parts, limits))
        for index, writer in enumerate(writers):
            writer.add(maker.test, groups, index, has_plain_operands=maker.is_plain)
    first, second = (writer.finish() for writer in writers)
    return first, second


class _Limits(NamedTuple):
    """How many instances of a test there may be."""

    checks: int
    decoys: int
    """Decoys per check and suite."""

    @classmethod
    def of(cls, tests: Collection[HiddenTest], max_growth: float) -> _Limits:
        """Return limits under which the tests get at most so many times as long."""
        sizes = {test: test.span.end - test.span.start for test in tests}
        size = sum(sizes.values())
        growth = min(max_growth, _MAX_FILE_GROWTH / max(size, 1))
        size_of_groups = sum(sizes[test] * len(test.checks) for test in tests)
        decoys = int(growth * size / max(size_of_groups, 1)) - 1
        if decoys >= 1:
            return cls(checks=_ALL_CHECKS, decoys=min(decoys, MAX_DECOYS))
        return cls(checks=max(1, int(growth) // 2), decoys=1)


def _surroundings(file: TestFile, tests: Iterable[HiddenTest], texts: Texts) -> Surroundings:
    """Return what code under test can see in the file apart from expected values."""
    blanks = []
    expected = []
    for test in tests:
        for check in test.checks:
            for slot in check.slots:
                if slot.kind != "fixed":
                    blanks += [Edit(*span, b"") for span in (slot.span, *slot.echoes)]
                    expected.append(file.source[slot.span.start : slot.span.end])
    unique = _without_overlaps(blanks)
    without_checks = apply_edits(file.source, Span(0, len(file.source)), unique)
    return Surroundings(
        source=file.source,
        pool=WordPool(file.source, expected, file.words, texts),
        shown=frozenset(),
        numbers=count_tokens(without_checks, file.numbers),
        has_small_types=file.has_small_types,
        known_values=KnownValues(),
        words=frozenset(word.lower() for word in file.words),
        all_numbers=frozenset(file.numbers),
    )


def _count_numbers(file: TestFile, parts: Iterable[_Parts]) -> Counter[bytes]:
    """Count the numbers of a file apart from what decoys change."""
    blanks = []
    for first, second in parts:
        for part in (first, second):
            blanks += [Edit(*span, b"") for span in (part.span, *part.slot.echoes)]
    without_decoys = apply_edits(file.source, Span(0, len(file.source)), _without_overlaps(blanks))
    return count_tokens(without_decoys, file.numbers)


def _without_overlaps(edits: Iterable[Edit]) -> list[Edit]:
    kept: list[Edit] = []
    for edit in sorted(edits):
        if not kept or edit.start >= kept[-1].end:
            kept.append(edit)
    return kept


class _NameMaker:
    """Names of instances: the name of the test and a random number.

    Words of the file would change how often the words of expected values can be seen.
    """

    def __init__(self, file: TestFile, random: Random) -> None:
        self._taken = set(file.identifiers)
        self._random = random

    def add_number(self, test: HiddenTest) -> tuple[str, bytes]:
        """Return a new name for a test, and the text to insert for it."""
        number = self._new_number()
        if test.name_style == "expression":
            return number.decode(), b" + ' " + number + b"'"
        separator = {"snake": b"_", "camel": b"", "kebab": b"-", "title": b" "}[test.name_style]
        suffix = separator + number
        return (test.name.encode() + suffix).decode("utf-8", "replace").strip(), suffix

    def _new_number(self) -> bytes:
        while True:
            number = str(self._random.randrange(*_NAME_NUMBERS)).encode()
            if number not in self._taken:
                self._taken.add(number)
                return number


class _SuiteWriter:
    """A test file of one suite."""

    def __init__(self, file: TestFile, random: Random) -> None:
        self._file = file
        self._random = random
        self._names = _NameMaker(file, random)
        self._edits: list[Edit] = []
        self._new = NewFile(b"")
        self._needs_helper = False

    def add(
        self, test: HiddenTest, groups: Iterable[_Group], index: int, *, has_plain_operands: bool
    ) -> None:
        """Replace a test by its instances."""
        instances = []
        for group in groups:
            for change in ([], *group.changes[index]):
                name, number = self._names.add_number(test)
                edits = [*group.common, *change, Edit(test.name_end, test.name_end, number)]
                instances.append(apply_edits(self._file.source, test.span, edits))
                (self._new.decoys if change else self._new.originals).append(name)
        if not instances:
            return
        self._random.shuffle(instances)
        text = _separator(self._file.source, test.span).join(instances)
        self._edits.append(Edit(*test.span, text))
        self._new.tests_with_decoys += 1
        self._needs_helper |= has_plain_operands

    def finish(self) -> NewFile:
        """Return the file with all instances."""
        if self._needs_helper and self._file.helper:
            self._edits.append(self._file.helper)
        whole = Span(0, len(self._file.source))
        self._new.content = apply_edits(self._file.source, whole, self._edits)
        return self._new


def _separator(source: bytes, span: Span) -> bytes:
    newline = b"\r\n" if b"\r\n" in source[:200] else b"\n"
    return newline * 2 if source[span.start - 1 : span.start] in (b"", b"\n") else newline


class _GroupMaker:
    """Groups of instances of one test."""

    def __init__(
        self, test: HiddenTest, surroundings: Surroundings, random: Random, *, is_plain: bool
    ) -> None:
        self.test = test
        self.is_plain = is_plain
        self._surroundings = surroundings
        self._random = random

    def choose_parts(self, limits: _Limits) -> dict[Check, _Parts]:
        """Choose what decoys change, for each check that has a group."""
        checks = list(self.test.checks)
        if len(checks) > limits.checks:
            checks = self._random.sample(checks, limits.checks)
        slots = {check: self._slots_with_values(check) for check in checks}
        # A check that cannot be changed stays in all instances.
        changeable = [check for check in checks if slots[check]]
        parts = {}
        for check in changeable:
            common = self._common_edits(check, changeable)
            parts[check] = self._choose_parts(check, slots[check], common, limits.decoys)
        return parts

    def groups(self, parts: Mapping[Check, _Parts], limits: _Limits) -> Iterator[_Group]:
        """Yield the group of each check that has parts."""
        checks = [check for check in self.test.checks if check in parts]
        for check in checks:
            common = self._common_edits(check, checks)
            yield _Group(common, self._changes(check, parts[check], common, limits.decoys))

    def _common_edits(self, check: Check, checks: Iterable[Check]) -> tuple[Edit, ...]:
        checks = list(checks)
        others = [other for other in checks if other is not check]
        edits = [*_common_edits(check, others, is_plain=self.is_plain)]
        for edit in _comment_edits(self.test, checks, self._surroundings.source):
            span = Span(edit.start, edit.end)
            if not any(span.overlaps(Span(other.start, other.end)) for other in edits):
                edits.append(edit)
        return tuple(edits)

    def _slots_with_values(self, check: Check) -> list[Slot]:
        """Return the slots of a check for which there are other values."""
        slots = check.slots
        if not self.is_plain and check.opposite:
            slots = (check.opposite,)
        return [slot for slot in slots if self._has_values(slot)]

    def _has_values(self, slot: Slot) -> bool:
        for part in find_parts(slot, self._surroundings.source):
            if other_values(part, self._surroundings, self._random, 1):
                return True
        return False

    def _choose_parts(
        self, check: Check, slots: Iterable[Slot], common: Iterable[Edit], count: int
    ) -> _Parts:
        """Choose two parts of the expected value, if it has two that are as good.

        If too few other values exist for two suites, it is the part with most of them, twice.
        """
        surroundings = self._surroundings_of(check, common)
        by_quality: dict[tuple[bool, bool, bool], list[tuple[Part, int]]] = {}
        parts = [part for slot in slots for part in find_parts(slot, surroundings.source)]
        for part in self._random.sample(parts, min(len(parts), _MAX_PARTS)):
            values = other_values(part, surroundings, self._random, 2 * count)
            if values:
                quality = (
                    is_shown(part, surroundings),
                    len(values) < 2 * count,
                    is_common(part, surroundings.source),
                )
                by_quality.setdefault(quality, []).append((part, len(values)))
        best = by_quality[min(by_quality)]
        if min(by_quality)[1]:
            part, _ = max(best, key=lambda entry: entry[1])
            return _Parts(part, part)
        return _Parts(best[0][0], best[-1][0])

    def _changes(
        self, check: Check, parts: _Parts, common: Iterable[Edit], count: int
    ) -> tuple[list[list[Edit]], list[list[Edit]]]:
        """Return the edits of the decoys of both suites.

        They have other values in one suite than in the other, as far as there are enough.
        """
        surroundings = self._surroundings_of(check, common)
        source = surroundings.source
        first_values = other_values(parts.first, surroundings, self._random, 2 * count)
        second_values = other_values(parts.second, surroundings, self._random, 2 * count)
        return (
            [edit_part(parts.first, value, source) for value in first_values[:count]],
            [edit_part(parts.second, value, source) for value in second_values[-count:]],
        )

    def _surroundings_of(self, check: Check, common: Iterable[Edit]) -> Surroundings:
        return self._surroundings._replace(shown=self._shown(check, common))

    def _shown(self, check: Check, common: Iterable[Edit]) -> frozenset[bytes]:
        """Return the words and numbers of an instance without the expected value."""
        hidden = [Edit(*slot.span, b"") for slot in check.slots]
        hidden += [Edit(*echo, b"") for slot in check.slots for echo in slot.echoes]
        removed = [edit for edit in common if edit.start < edit.end]
        edits = _without_overlaps([*removed, *hidden])
        return find_tokens(apply_edits(self._surroundings.source, self.test.span, edits))


def _common_edits(check: Check, others: Iterable[Check], *, is_plain: bool) -> Iterator[Edit]:
    """Yield the edits that all instances for one check have in common."""
    removed: list[Span] = []
    for other in sorted(others, key=lambda other: (other.span.start, -other.span.end)):
        spans = [Span(edit.start, edit.end) for edit in other.neutral]
        if any(_meets(span, check) for span in spans) or any(
            span.overlaps(earlier) for span in spans for earlier in removed
        ):
            continue
        removed += spans
        yield from other.neutral
    if not is_plain:
        return
    for edit in check.plain:
        span = Span(edit.start, edit.end)
        if not any(earlier.overlaps(span) or earlier.contains(span) for earlier in removed):
            yield edit


def _comment_edits(test: HiddenTest, checks: Iterable[Check], source: bytes) -> Iterator[Edit]:
    """Yield edits that remove the words and numbers of expected values from comments."""
    slots = [slot for check in checks for slot in check.slots if slot.kind != "fixed"]
    texts = [source[slot.span.start : slot.span.end] for slot in slots]
    tokens = frozenset[bytes]().union(*(find_tokens(text) for text in texts))
    for comment in test.comments:
        for span in find_token_spans(source, comment):
            if source[span.start : span.end].lower() in tokens:
                yield Edit(span.start, span.end, b"")


def _meets(span: Span, check: Check) -> bool:
    """Whether an edit would touch what a check needs."""
    needed = [slot.span for slot in check.slots]
    needed += [Span(edit.start, edit.end) for edit in check.plain]
    return any(span.overlaps(part) or span.contains(part) for part in needed)


def change_in_place(
    file: TestFile, tests: Collection[HiddenTest], random: Random, texts: Texts | None = None
) -> NewFile:
    """Return the file with one check of each of these tests changed, without copies."""
    edits: list[Edit] = []
    new = NewFile(b"")
    surroundings = _surroundings(file, tests, texts or Texts())
    for test in tests:
        maker = _GroupMaker(test, surroundings, random, is_plain=False)
        limits = _Limits(checks=_ALL_CHECKS, decoys=1)
        groups = list(maker.groups(maker.choose_parts(limits), limits))
        if groups:
            edits += random.choice(groups).changes[0][0]
            new.decoys.append(test.name)
            new.tests_with_decoys += 1
    new.content = apply_edits(file.source, Span(0, len(file.source)), edits)
    return new


def add_failing_test(file: TestFile, random: Random) -> NewFile | None:
    """Return the file with one more test, which fails; None if there is no form for it."""
    if file.new_test is None:
        return None
    words = sorted({word.lower() for word in file.words if word.isalpha()}) or [b"empty", b"value"]
    first, second = random.choice(words), random.choice(words)
    text = file.new_test.text
    for placeholder, value in {
        b"{first}": first,
        b"{second}": second,
        b"{First}": first.capitalize(),
        b"{Second}": second.capitalize(),
    }.items():
        text = text.replace(placeholder, value)
    edit = Edit(file.new_test.start, file.new_test.end, text)
    content = apply_edits(file.source, Span(0, len(file.source)), [edit])
    return NewFile(content, tests_with_decoys=0)
