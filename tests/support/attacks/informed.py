"""Ways to guess the original among copies of an assertion with what an attacker knows of the task.

Such an attacker has the descriptions, in which there may be examples, and takes values of the input
for likely to be expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.eval.canaries.languages import read_test_file
from cooperbench.eval.canaries.vocabulary import words_in
from tests.support.attacks.guessers import common_ends

if TYPE_CHECKING:
    from cooperbench.eval.canaries import Suite
    from cooperbench.eval.trees import TreeStore

_TOKEN = re.compile(rb"\w+|\s+|[^\w\s]+")
_WORD_OR_NUMBER = re.compile(rb"[a-z]+|[0-9]+")
_UNUSUAL = re.compile(rb"[Nn]ot|!|[Ff]alse|None|OSError|ImportError|AttributeError|IndexError")
_NEIGHBORS = (2, 4)
"""Numbers of characters beside a value that are looked for in descriptions."""


class Group(NamedTuple):
    """The copies for one assertion in a suite."""

    test: str
    """Name of the test."""
    assertion: int
    """Number of the assertion, among those of tests with this name."""
    values: tuple[bytes, ...]
    """What stands in each copy where they differ; the first is the original."""
    before: bytes
    """What stands in all copies before it."""
    after: bytes


Score = Callable[[bytes, Group], int]
"""How likely an attacker takes a value of a group to be the right one."""


def find_groups(suite: Suite, store: TreeStore) -> Iterator[Group]:
    """Yield the groups of a suite of copies."""
    for path, change in store.changes(store.apply(suite.tests).tree).items():
        source = store.content(change.after) or b""
        file = read_test_file(path, source)
        if file is None:
            continue
        texts = {test.name: source[test.span.start : test.name_end] for test in file.tests}
        for test in file.tests:
            texts[test.name] = _without_number(source[slice(*test.span)], test.name)
        yield from _groups_of(texts, suite)


def _without_number(text: bytes, name: str) -> bytes:
    return text.replace(name.encode(), re.sub("[_ -]?[0-9]{6}$", "", name).encode())


def _groups_of(texts: Mapping[str, bytes], suite: Suite) -> Iterator[Group]:
    tokens = {name: _TOKEN.findall(text) for name, text in texts.items()}
    originals = [name for name in suite.originals if name in tokens]
    decoys: dict[str, list[str]] = {name: [] for name in originals}
    for name in suite.decoys:
        if name in tokens:
            nearest = min(originals, key=lambda other: _distance(tokens[name], tokens[other]))
            decoys[nearest].append(name)
    numbers: dict[str, int] = {}
    for original in originals:
        test = re.sub("[_ -]?[0-9]{6}$", "", original)
        numbers[test] = numbers.get(test, -1) + 1
        copies = [tokens[original], *(tokens[name] for name in decoys[original])]
        if len(copies) > 1:
            yield _make_group(test, numbers[test], copies)


def _distance(first: Sequence[bytes], second: Sequence[bytes]) -> int:
    start, end = common_ends([first, second])
    return max(len(first), len(second)) - start - end


def _make_group(test: str, assertion: int, copies: Sequence[Sequence[bytes]]) -> Group:
    start, end = common_ends(copies)
    values = tuple(b"".join(copy[start : len(copy) - end]) for copy in copies)
    last = copies[0][len(copies[0]) - end :]
    return Group(test, assertion, values, b"".join(copies[0][:start]), b"".join(last))


def scores(descriptions: bytes) -> Mapping[str, Sequence[Score]]:
    """Return ways to guess by name: values are compared by the first score, then by the next."""
    described = descriptions.lower()
    words = words_in(descriptions)

    def is_described(value: bytes, _group: Group) -> int:
        return int(all(word in words for word in words_in(value)))

    def has_described_neighbors(value: bytes, group: Group) -> int:
        score = 0
        for length in _NEIGHBORS:
            before, after = group.before[-length:].lower(), group.after[:length].lower()
            score += before + value.lower() in described
            score += value.lower() + after in described
            score += 2 * (before + value.lower() + after in described)
        return score

    return {
        "any": [_nothing],
        "in the descriptions": [is_described],
        "beside the same characters in the descriptions": [has_described_neighbors],
        "elsewhere in the test": [_is_in_test],
        "usual in tests": [_is_usual],
        "all of these": [has_described_neighbors, _is_in_test, _is_usual, is_described],
    }


def _nothing(_value: bytes, _group: Group) -> int:
    return 0


def _is_in_test(value: bytes, group: Group) -> int:
    tokens = set(_WORD_OR_NUMBER.findall((group.before + b" " + group.after).lower()))
    return sum(token in tokens for token in _WORD_OR_NUMBER.findall(value.lower()))


def _is_usual(value: bytes, _group: Group) -> int:
    """Prefer assertions that are not negated, and the classes that most tests expect."""
    return -bool(_UNUSUAL.search(value))


def probability(groups: Iterable[Group], ways: Sequence[Score]) -> float:
    """Return how likely the original is guessed in all groups: those of an assertion by suite.

    Values with equal scores are equally likely to be preferred, in all suites alike.
    """
    rivals: set[bytes] = set()
    for group in groups:
        rated = [tuple(score(value, group) for score in ways) for value in group.values]
        best = max(rated)
        if rated[0] != best:
            return 0.0
        ties = zip(group.values[1:], rated[1:], strict=True)
        rivals.update(value for value, rating in ties if rating == best)
    return 1 / (len(rivals) + 1)
