"""Confirmation suites of a feature, made from its hidden tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from cooperbench.eval.canaries.copies import NewFile
    from cooperbench.eval.canaries.model import HiddenTest, TestFile
    from cooperbench.eval.canaries.vocabulary import Texts
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
    """Names of tests that must fail; empty if the kind is `added`."""
    tests_total: int
    """Number of hidden tests that can be read in the files that the patch adds or changes."""
    tests_with_decoys: int
    """Number of hidden tests of which there is a version that must fail, in this suite."""


@dataclass(frozen=True)
class _HiddenFile:
    """A test file that the hidden tests add or change."""

    path: str
    file: TestFile
    tests: tuple[HiddenTest, ...]
    """The tests that the patch adds or changes."""


def new_suites(
    feature: Feature,
    store: TreeStore,
    random: Random,
    *,
    max_growth: float = MAX_GROWTH,
    own_types: Collection[str] = (),
) -> Iterator[tuple[Suite, Suite]]:
    """Yield pairs of suites, the best kind first; callers take the first that works.

    Args:
        feature: The feature with the hidden tests.
        store: Trees on top of the task's base commit.
        random: The source of all choices.
        max_growth: How many instances there may be per hidden test. Callers derive it from the
            duration of the golden run. Each test keeps at least one version that must fail.
        own_types: Names of tests (as in `Suite.originals`) that compare objects of the library
            itself with literals. Their operands are compared as they are, not as plain copies.
    """
    from cooperbench.eval.canaries.copies import add_failing_test

    maker = _SuiteMaker(feature, store)
    if not maker.files:
        return
    texts = _texts_known_to_agents(feature, store)
    settings = _CopySettings(max_growth, own_types, texts)
    copies = _copied_suites(maker, settings, random, has_small_types=False)
    if any(suite.decoys for suite in copies):
        yield copies
        if any(hidden.file.is_compiled for hidden in maker.files):
            # Perhaps a number was too large for its type.
            yield _copied_suites(maker, settings, random, has_small_types=True)
    in_place = _suites_changed_in_place(maker, texts, random)
    if any(suite.decoys for suite in in_place):
        yield in_place
    if any(hidden.file.new_test for hidden in maker.files):
        added = maker.make("added", lambda hidden: add_failing_test(hidden.file, random))
        yield added, added


class _CopySettings(NamedTuple):
    """How tests are copied; see `new_suites`."""

    max_growth: float
    own_types: Collection[str]
    texts: Texts
    """The words that agents know."""


def _copied_suites(
    maker: _SuiteMaker, settings: _CopySettings, random: Random, *, has_small_types: bool
) -> tuple[Suite, Suite]:
    """Return two suites with copies of tests of which one is right and the others must fail."""
    from cooperbench.eval.canaries.copies import copy_tests
    from cooperbench.eval.canaries.literals import KnownValues

    new_files = {}
    known_values = KnownValues()
    for hidden in maker.files:
        new_files[hidden.path] = copy_tests(
            replace(hidden.file, has_small_types=has_small_types),
            hidden.tests,
            random,
            max_growth=settings.max_growth,
            own_types=settings.own_types,
            texts=settings.texts,
            known_values=known_values,
        )
    return (
        maker.make("copies", lambda hidden: new_files[hidden.path][0]),
        maker.make("copies", lambda hidden: new_files[hidden.path][1]),
    )


def _suites_changed_in_place(
    maker: _SuiteMaker, texts: Texts, random: Random
) -> tuple[Suite, Suite]:
    """Return two suites; each test that can be changed must fail in one of them."""
    from cooperbench.eval.canaries.copies import change_in_place

    first, second = _split(maker.files, random)

    def change(half: dict[str, list[HiddenTest]], hidden: _HiddenFile) -> NewFile:
        return change_in_place(hidden.file, half[hidden.path], random, texts)

    return (
        maker.make("in_place", partial(change, first)),
        maker.make("in_place", partial(change, second)),
    )


def _texts_known_to_agents(feature: Feature, store: TreeStore) -> Texts:
    """Return the words of the descriptions of features, and of the files that a feature changes."""
    from cooperbench.eval.canaries.vocabulary import Texts, words_in

    descriptions: set[bytes] = set()
    for other in feature.task.features:
        if other.description.is_file():
            descriptions |= words_in(other.description.read_bytes())
    sources: set[bytes] = set()
    golden = store.apply(feature.patch.read_bytes()).tree
    if golden:
        for change in store.changes(golden).values():
            sources |= words_in(store.content(change.before) or b"")
    return Texts(frozenset(descriptions), frozenset(sources))


def _split(
    files: Sequence[_HiddenFile], random: Random
) -> tuple[dict[str, list[HiddenTest]], dict[str, list[HiddenTest]]]:
    """Divide the tests that can be changed: each is changed in one of two suites."""
    first: dict[str, list[HiddenTest]] = {hidden.path: [] for hidden in files}
    second: dict[str, list[HiddenTest]] = {hidden.path: [] for hidden in files}
    for hidden in files:
        for test in hidden.tests:
            half = random.choice((first, second))
            half[hidden.path].append(test)
    return first, second


class _SuiteMaker:
    """Suites of one feature: new contents of its test files, as patches."""

    def __init__(self, feature: Feature, store: TreeStore) -> None:
        from cooperbench.eval.protected_files import applied_tests

        self._store = store
        self._tree, self._since = applied_tests(feature.tests.read_bytes(), feature, store)
        self.files = tuple(self._read_files()) if self._tree else ()

    def _read_files(self) -> Iterator[_HiddenFile]:
        from cooperbench.diff import new_lines
        from cooperbench.eval.canaries.languages import read_test_file
        from cooperbench.eval.trees import FILE

        added: dict[str, set[int]] = {}
        for line in new_lines(self._store.patch_of(self._tree, self._since)):
            if line.added:
                added.setdefault(line.path, set()).add(line.number)
        for path, change in self._store.changes(self._tree, self._since).items():
            if change.after is None or not change.after.mode.startswith(FILE[:3]):
                continue
            file = read_test_file(path, self._store.content(change.after) or b"")
            if file:
                tests = _hidden_tests(file, added.get(path, set()))
                yield _HiddenFile(path, file, tests)

    def make(self, kind: SuiteKind, change: Callable[[_HiddenFile], NewFile | None]) -> Suite:
        """Return a suite with changed test files."""
        contents: dict[str, bytes] = {}
        originals: list[str] = []
        decoys: list[str] = []
        tests_with_decoys = 0
        for hidden in self.files:
            new = change(hidden)
            if new is None:
                continue
            contents[hidden.path] = new.content
            originals += new.originals
            decoys += new.decoys
            tests_with_decoys += new.tests_with_decoys
        tree = self._store.edit(self._tree, contents)
        return Suite(
            tests=self._store.patch_of(tree, self._since),
            kind=kind,
            originals=tuple(originals),
            decoys=tuple(decoys),
            tests_total=sum(len(hidden.tests) for hidden in self.files),
            tests_with_decoys=tests_with_decoys,
        )


def _hidden_tests(file: TestFile, added_lines: set[int]) -> tuple[HiddenTest, ...]:
    """Return the tests that have an added line, with the checks of which agents know nothing.

    Those are the checks with an added line, or all if there is none. If no test was changed, the
    patch changes what tests use, and all of them are hidden.
    """
    line_starts = _line_starts(file.source)
    hidden = []
    for test in file.tests:
        if not _has_line(test.span, line_starts, added_lines):
            continue
        checks = tuple(
            check for check in test.checks if _has_line(check.span, line_starts, added_lines)
        )
        hidden.append(replace(test, checks=checks or test.checks))
    return tuple(hidden) or file.tests


def _line_starts(source: bytes) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _has_line(span: tuple[int, int], line_starts: list[int], lines: set[int]) -> bool:
    from bisect import bisect_right

    first = bisect_right(line_starts, span[0])
    last = bisect_right(line_starts, max(span[0], span[1] - 1))
    return any(number in lines for number in range(first, last + 1))
