"""Copies of tests: for each check one that passes and some that must fail, in random order.

A copy keeps one check of its test and makes the others neutral. If it kept them, the right value of
each check would be the one that most copies have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from cooperbench.eval.canaries.literals import other_edits
from cooperbench.eval.canaries.model import (
    Check,
    Edit,
    HiddenTest,
    Slot,
    Span,
    TestFile,
    apply_edits,
)

MAX_DECOYS = 4
"""Decoys per check, at most: a wrong patch finds the original with a probability of 1 to 5."""
MAX_INSTANCES = 60
"""Instances per test, at most."""
_MAX_WORD = 12
_MAX_FILE_GROWTH = 4_000_000
"""Bytes that the copies of a file may have, at most."""


@dataclass
class NewFile:
    """A test file of a suite."""

    content: bytes
    originals: list[str] = field(default_factory=list)
    """Names of tests that must pass."""
    decoys: list[str] = field(default_factory=list)
    """Names of tests that must fail."""
    tests_with_decoys: int = 0


@dataclass(frozen=True)
class _Instance:
    name: str
    text: bytes
    is_decoy: bool


class NameMaker:
    """Names of instances: the name of the test, and a word of the file that reveals nothing."""

    def __init__(self, file: TestFile, random: Random) -> None:
        short = [word for word in file.words if word.isalpha() and len(word) <= _MAX_WORD]
        words = {word.lower() for word in short}
        self._words = sorted(words) or [b"case"]
        self._taken = {identifier.lower() for identifier in file.identifiers}
        self._random = random

    def add_word(self, test: HiddenTest) -> tuple[str, bytes]:
        """Return a new name for a test, and the text to insert for it."""
        name = test.name.encode()
        words = [self._random.choice(self._words)]
        if not name:
            # Only the words are known of the id, so they have to be enough.
            words += [self._random.choice(self._words) for _ in range(2)]
        while True:
            suffix = _suffix(words, test.name_style)
            if (name + suffix).lower() not in self._taken:
                break
            words.append(self._random.choice(self._words))
        self._taken.add((name + suffix).lower())
        text = suffix
        if test.name_style == "expression":
            text = b" + '" + suffix + b"'"
        return (name + suffix).decode("utf-8", "replace").strip(), text


def _suffix(words: Sequence[bytes], style: str) -> bytes:
    if style == "snake":
        return b"_" + b"_".join(words)
    if style == "kebab":
        return b"-" + b"-".join(words)
    if style == "camel":
        return b"".join(word.capitalize() for word in words)
    return b" " + b" ".join(words)


def copy_tests(
    file: TestFile,
    tests: Collection[HiddenTest],
    random: Random,
    *,
    max_growth: float,
    own_types: Collection[str] = (),
) -> NewFile:
    """Return the file with these tests replaced by instances of them.

    Tests without a check stay as they are.
    """
    copied = [test for test in tests if test.checks]
    edits = []
    names = NameMaker(file, random)
    new = NewFile(b"")
    has_plain_operands = False
    size = sum(test.span.end - test.span.start for test in copied)
    limit = min(max_growth, MAX_INSTANCES, _MAX_FILE_GROWTH / max(size, 1))
    for test in copied:
        plain = not any(test.name and name.startswith(test.name) for name in own_types)
        instances = list(_instances(test, file, names, random, limit=limit, plain=plain))
        if not any(instance.is_decoy for instance in instances):
            continue
        random.shuffle(instances)
        text = _separator(file.source, test.span).join(one.text for one in instances)
        edits.append(Edit(*test.span, text))
        new.originals += [one.name for one in instances if not one.is_decoy]
        new.decoys += [one.name for one in instances if one.is_decoy]
        new.tests_with_decoys += 1
        has_plain_operands |= plain
    if has_plain_operands and file.helper:
        edits.append(file.helper)
    new.content = apply_edits(file.source, Span(0, len(file.source)), edits)
    return new


def _separator(source: bytes, span: Span) -> bytes:
    newline = b"\r\n" if b"\r\n" in source[:200] else b"\n"
    return newline * 2 if source[span.start - 1 : span.start] in (b"", b"\n") else newline


def _instances(  # noqa: PLR0913  # options are keyword-only
    test: HiddenTest,
    file: TestFile,
    names: NameMaker,
    random: Random,
    *,
    limit: float,
    plain: bool,
) -> Iterator[_Instance]:
    """Yield the instances of a test, one group of them for each check."""
    max_checks = max(1, int(limit) // 2)
    checks = list(test.checks)
    if len(checks) > max_checks:
        checks = random.sample(checks, max_checks)
    decoys = max(1, min(MAX_DECOYS, int(limit) // max(len(checks), 1) - 1))
    changes_of = []
    for check in checks:
        slots = check.slots
        if not plain and check.opposite:
            slots = (check.opposite,)
        changes = _changes(slots, file, random, decoys)
        if changes:
            changes_of.append((check, changes))
    for check, changes in changes_of:
        # A check that cannot be changed stays in all instances.
        others = [other for other, _ in changes_of if other is not check]
        common = list(_common_edits(check, others, plain=plain))
        for change in ([], *changes):
            name, word = names.add_word(test)
            edits = [*common, *change, Edit(test.name_end, test.name_end, word)]
            text = apply_edits(file.source, test.span, edits)
            yield _Instance(name, text, is_decoy=bool(change))


def _changes(slots: Sequence[Slot], file: TestFile, random: Random, count: int) -> list[list[Edit]]:
    """Return changes of the slot that has most alternatives."""
    best: list[list[Edit]] = []
    for slot in random.sample(slots, len(slots)):
        changes = other_edits(slot, file, random, count)
        if len(changes) > len(best):
            best = changes
        if len(best) == count:
            break
    return best


def _common_edits(check: Check, others: Iterable[Check], *, plain: bool) -> Iterator[Edit]:
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
    if not plain:
        return
    for edit in check.plain:
        span = Span(edit.start, edit.end)
        if not any(earlier.overlaps(span) or earlier.contains(span) for earlier in removed):
            yield edit


def _meets(span: Span, check: Check) -> bool:
    """Whether an edit would touch what a check needs."""
    needed = [slot.span for slot in check.slots]
    needed += [Span(edit.start, edit.end) for edit in check.plain]
    return any(span.overlaps(part) or span.contains(part) for part in needed)


def change_in_place(file: TestFile, tests: Iterable[HiddenTest], random: Random) -> NewFile:
    """Return the file with one check of each of these tests changed, without copies."""
    edits: list[Edit] = []
    new = NewFile(b"")
    for test in tests:
        checks = list(test.checks)
        random.shuffle(checks)
        for check in checks:
            changes = _changes(check.slots, file, random, 1)
            if changes:
                edits += changes[0]
                new.decoys.append(test.name)
                new.tests_with_decoys += 1
                break
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
