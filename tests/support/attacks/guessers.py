"""Ways to guess the original among copies of a test from what the test file shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from cooperbench.eval.canaries.vocabulary import words_in

_TOKEN = re.compile(rb"\w+|\s+|[^\w\s]+")


class Copies(NamedTuple):
    """The copies of one test in a suite, in the order of the file."""

    values: Sequence[bytes]
    """What stands in each copy where they differ."""
    bodies: Sequence[bytes]
    outside: Counter[bytes]
    """Words, numbers and separators of the rest of the file."""
    described: frozenset[bytes]
    """Words, in lower case, of the descriptions that the attacker has."""


Guesser = Callable[[Copies], int]
"""It returns the index of the copy that it takes for the original."""


def find_copies(content: bytes, name: bytes, descriptions: bytes = b"") -> tuple[Copies, list[str]]:
    """Return the copies of a method in a Python test file, and their names."""
    pattern = re.compile(rb"^    def (" + name + rb"_\d+)\(self\):\n((?:        .*\n?)+)", re.M)
    matches = list(pattern.finditer(content))
    bodies = [match[2].rstrip() for match in matches]
    outside = Counter(_TOKEN.findall(pattern.sub(b"", content)))
    copies = Copies(_differences(bodies), bodies, outside, words_in(descriptions))
    return copies, [match[1].decode() for match in matches]


def common_ends(texts: Sequence[Sequence[bytes]]) -> tuple[int, int]:
    """Return how many tokens all texts have in common at their beginning, and at their end."""
    length = min(map(len, texts))
    start = 0
    while start < length and len({text[start] for text in texts}) == 1:
        start += 1
    end = 0
    while end < length - start and len({text[-1 - end] for text in texts}) == 1:
        end += 1
    return start, end


def _differences(bodies: Sequence[bytes]) -> list[bytes]:
    """Return the tokens between what all texts begin with and what all of them end with."""
    texts = [_TOKEN.findall(body) for body in bodies]
    start, end = common_ends(texts)
    return [b"".join(text[start : len(text) - end]) for text in texts]


def _uses(copies: Copies) -> list[int]:
    return [copies.outside[value] for value in copies.values]


def _uses_in_test(copies: Copies) -> list[int]:
    counts = zip(copies.bodies, copies.values, strict=True)
    return [body.count(value) for body, value in counts]


def _numbers(copies: Copies) -> list[float]:
    digits = [re.sub(rb"[^0-9.]", b"", value) for value in copies.values]
    return [float(text) if re.fullmatch(rb"\d+(\.\d+)?", text) else 0.0 for text in digits]


def _is_described(copies: Copies) -> list[bool]:
    return [value.lower() in copies.described for value in copies.values]


def _hashes(salt: int, copies: Copies) -> list[int]:
    digests = [sha256(bytes([salt]) + value).digest() for value in copies.values]
    return [int.from_bytes(digest, "big") for digest in digests]


def _index_of_rank(numbers: Sequence[float], share: float) -> int:
    order = sorted(range(len(numbers)), key=lambda index: numbers[index])
    return order[round(share * (len(order) - 1))]


def _most(measure: Callable[[Copies], Sequence[float]], copies: Copies) -> int:
    values = measure(copies)
    return values.index(max(values))


def _least(measure: Callable[[Copies], Sequence[float]], copies: Copies) -> int:
    values = measure(copies)
    return values.index(min(values))


def _lengths(copies: Copies) -> list[int]:
    return [len(value) for value in copies.values]


def _has_rank(share: float, copies: Copies) -> int:
    return _index_of_rank(_numbers(copies), share)


GUESSERS: Mapping[str, Guesser] = {
    "the first": lambda _: 0,
    "the last": lambda copies: len(copies.values) - 1,
    **{f"rank {share} of the numbers": partial(_has_rank, share) for share in (0, 0.2, 0.5, 1)},
    "used most in the file": partial(_most, _uses),
    "used least in the file": partial(_least, _uses),
    "used in the test": partial(_most, _uses_in_test),
    "the shortest": partial(_least, _lengths),
    "the longest": partial(_most, _lengths),
    "described": partial(_most, _is_described),
    "not described": partial(_least, _is_described),
    **{f"order {salt}": partial(_least, partial(_hashes, salt)) for salt in range(24)},
}
ORDERS = [label for label in GUESSERS if label.startswith("order")]
"""Any order of all values: the same value is preferred in both suites."""
