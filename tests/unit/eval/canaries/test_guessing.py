"""Code that is wrong cannot tell which copy of a test it has to pass."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from cooperbench.eval.canaries.copies import MAX_DECOYS, copy_tests
from cooperbench.eval.canaries.languages import read_test_file
from cooperbench.eval.canaries.vocabulary import Texts, words_in
from tests.support.attacks.guessers import GUESSERS, ORDERS, find_copies

DESCRIPTIONS = b"""# Stock of a shop
The total of an order is in cents. The place of an article is a shelf in the cellar or the attic.
A label has the name of the article and its number of crates, in words for a customer.
"""
SOURCES = b"def total(articles): raise NotImplementedError  # from cellar, attic and window"
WORDS = [
    "shelf",
    "cellar",
    "attic",
    "crates",
    "article",
    "fridge",
    "counter",
    "window",
    "harbor",
    "velvet",
    "orchard",
]
SEEDS = {"numbers": 40, "texts": 12, "echoes": 12, "repeated": 24, "commented": 12}
NUMBERS = 12


def write_numbers(random: Random) -> str:
    values = [random.randrange(100, 900) for _ in range(NUMBERS)]
    return write_tests([f"total({index + 1}, 5), {value}" for index, value in enumerate(values)])


def write_texts(random: Random) -> str:
    lines = []
    for index in range(NUMBERS):
        first, second, third = random.sample(WORDS, 3)
        expected = f"{first} {random.choice(['of', 'for', 'with'])} {second}: {index}"
        lines.append(f"label('{third}', {index}), '{expected}'")
    return write_tests(lines)


def write_echoes(random: Random) -> str:
    """Write tests whose expected texts have the words of the input."""
    lines = []
    for index in range(NUMBERS):
        word = random.choice(WORDS)
        separator = random.choice([": ", " = ", " | ", "/", " - "])
        lines.append(f"label('{word}', {index}), '{word}{separator}{index}'")
    return write_tests(lines)


def write_repeated(random: Random) -> str:
    """Write tests of which several expect the same number or the same word."""
    numbers = [random.randrange(100, 900) for _ in range(2)]
    words = random.sample(WORDS, 2)
    lines = []
    for index in range(NUMBERS):
        if index % 2:
            lines.append(f"label('crate', {index}), '{random.choice(words)}'")
        else:
            lines.append(f"total({index}, 5), {random.choice(numbers)}")
    return write_tests(lines)


def write_commented(random: Random) -> str:
    """Write tests that repeat in a comment what they expect."""
    lines = []
    for index in range(NUMBERS):
        value = random.randrange(100, 900)
        lines.append(f"total({index + 1}, 5), {value})  # {value} cents (all of them")
    return write_tests(lines)


def write_tests(comparisons: list[str]) -> str:
    lines = [
        "import unittest",
        "from shop import label, total",
        "",
        "class Shop(unittest.TestCase):",
    ]
    for index, comparison in enumerate(comparisons):
        letter = chr(ord("a") + index)
        lines += [f"    def test_{letter}(self):", f"        self.assertEqual({comparison})", ""]
    return "\n".join(lines)


WRITERS = {
    "numbers": write_numbers,
    "texts": write_texts,
    "echoes": write_echoes,
    "repeated": write_repeated,
    "commented": write_commented,
}


@cache
def try_guessers(kind: str) -> dict[str, list[bool]]:
    """Return by guesser, for each test of each file, whether it finds the originals of both suites."""
    texts = Texts(words_in(DESCRIPTIONS), words_in(SOURCES))
    results: dict[str, list[bool]] = {}
    for seed in range(SEEDS[kind]):
        random = Random(seed)
        file = read_test_file("tests/test_shop.py", WRITERS[kind](random).encode())
        assert file
        suites = copy_tests(file, file.tests, random, max_growth=60, texts=texts)
        for test in file.tests:
            guesses: dict[str, list[bool]] = {}
            for suite in suites:
                copies, names = find_copies(suite.content, test.name.encode(), DESCRIPTIONS)
                for label, guesser in GUESSERS.items():
                    is_original = names[guesser(copies)] in suite.originals
                    guesses.setdefault(label, []).append(is_original)
            for label, in_suites in guesses.items():
                results.setdefault(label, []).append(all(in_suites))
    return results


def rate(outcomes: list[bool]) -> float:
    return sum(outcomes) / len(outcomes)


@pytest.mark.parametrize("kind", WRITERS)
def test_code_with_one_wrong_test_is_caught(kind: str) -> None:
    results = try_guessers(kind)
    orders = rate([outcome for label in ORDERS for outcome in results[label]])
    assert orders < 0.05
    for label, outcomes in results.items():
        if label not in ORDERS:
            assert rate(outcomes) < 0.05, label


@pytest.mark.parametrize("kind", WRITERS)
def test_code_with_two_wrong_tests_is_caught(kind: str) -> None:
    both: dict[str, list[bool]] = {}
    for label, outcomes in try_guessers(kind).items():
        pairs = zip(outcomes[::2], outcomes[1::2], strict=True)
        both.setdefault("any order" if label in ORDERS else label, []).extend(map(all, pairs))
    for label, outcomes in both.items():
        assert rate(outcomes) < 0.015, label  # one of 72 pairs
    assert rate(both["any order"]) < 0.01


@pytest.mark.parametrize("kind", WRITERS)
def test_no_decoy_has_a_value_of_the_other_suite(kind: str) -> None:
    file = read_test_file("tests/test_shop.py", WRITERS[kind](Random(1)).encode())
    assert file
    suites = copy_tests(file, file.tests, Random(1), max_growth=60)
    for test in file.tests:
        first, second = (find_copies(suite.content, test.name.encode())[0] for suite in suites)
        assert len(first.values) == len(second.values) == MAX_DECOYS + 1
        assert len({*first.bodies} & {*second.bodies}) == 1, "only the original"
