"""Words for decoys. The right word must not stand out by where else it can be seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from random import Random
from typing import NamedTuple

WORD = re.compile(rb"[A-Za-z]{2,}")
_FREQUENT = 3


class Visibility(NamedTuple):
    """The places where code under test, or its author, can see a word."""

    uses: int
    """Number of uses in the test file, apart from the value to replace, up to a maximum."""
    is_described: bool
    """Whether it is in a description of a feature."""
    is_in_source: bool
    """Whether it is in the code that the feature changes."""


class Texts(NamedTuple):
    """Texts that agents know."""

    descriptions: frozenset[bytes] = frozenset()
    """Words, in lower case, of the descriptions of features."""
    sources: frozenset[bytes] = frozenset()
    """Words, in lower case, of the code that a feature changes."""


def words_in(text: bytes) -> frozenset[bytes]:
    """Return the words of a text in lower case."""
    return frozenset(word.lower() for word in WORD.findall(text))


@cache
def _common_words() -> frozenset[bytes]:
    text = resources.files("cooperbench.eval.canaries").joinpath("common_words.txt").read_bytes()
    return words_in(text)


class WordPool:
    """Words that may replace words of the expected values of a file."""

    def __init__(
        self, source: bytes, expected: Iterable[bytes], strings: Sequence[bytes], texts: Texts
    ) -> None:
        """`expected` are the expected values of all checks; `strings` are words in strings."""
        self._uses = Counter(word.lower() for word in WORD.findall(source))
        self._texts = texts
        in_strings = {word.lower() for word in strings}
        words = in_strings | texts.descriptions | texts.sources | _common_words()
        self._by_visibility: dict[Visibility, list[bytes]] = {}
        for word in sorted(words):
            self._by_visibility.setdefault(self._visibility(word), []).append(word)
        # Expected words of other checks are used in any case.
        self._used = {word.lower() for value in expected for word in WORD.findall(value)}
        self._samples: dict[tuple[bytes, int], list[bytes]] = {}

    def _visibility(self, word: bytes, own_uses: int = 0) -> Visibility:
        return Visibility(
            uses=min(self._uses[word] - own_uses, _FREQUENT),
            is_described=word in self._texts.descriptions,
            is_in_source=word in self._texts.sources,
        )

    def sample(self, word: bytes, value: bytes, random: Random, count: int) -> list[bytes]:
        """Return other words in the same case that can be seen in the same texts.

        `value` is the text in which they replace a word.

        Words that decoys do not have yet come first: nothing shows that the right word is not used
        for decoys of other checks. A word gets the same other words each time.
        """
        key = (word.lower(), count)
        if key not in self._samples:
            self._samples[key] = self._new_sample(word.lower(), value, random, count)
        return [with_case_of(word, other) for other in self._samples[key]]

    def _new_sample(self, lower: bytes, value: bytes, random: Random, count: int) -> list[bytes]:
        visibility = self._visibility(lower, own_uses=_count(lower, value))
        values: list[bytes] = []
        for other in sorted(self._by_visibility, key=lambda other: _distance(visibility, other)):
            words = [word for word in self._by_visibility[other] if word != lower]
            fresh = [word for word in words if word not in self._used]
            used = [word for word in words if word in self._used]
            missing = count - len(values)
            chosen = random.sample(fresh, min(missing, len(fresh)))
            chosen += random.sample(used, min(missing - len(chosen), len(used)))
            self._used.update(chosen)
            values += chosen
            if len(values) >= count:
                break
        random.shuffle(values)
        return values


def _count(word: bytes, text: bytes) -> int:
    return sum(1 for other in WORD.findall(text) if other.lower() == word)


def _distance(first: Visibility, second: Visibility) -> tuple[bool, bool, int]:
    return (
        (first.uses > 0) != (second.uses > 0) or first.is_described != second.is_described,
        first.is_in_source != second.is_in_source,
        abs(first.uses - second.uses),
    )


def with_case_of(example: bytes, word: bytes) -> bytes:
    """Return a word in the case of another."""
    if example.isupper() and len(example) > 1:
        return word.upper()
    if example[:1].isupper():
        return word[:1].upper() + word[1:].lower()
    return word.lower()
