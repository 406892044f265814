from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.text import (
    dollars_text,
    head_and_tail,
    names_for_error,
    plural,
    printable,
    shorten,
    wrap,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Größe 日本 🙂", "plain Größe 日本 🙂"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("line\nnext\r\t", "line\\nnext\\r\\t"),
        ("abc\u202edcb", "abc\\u202edcb"),
        ("\u2066x\u2069\u200f", "\\u2066x\\u2069\\u200f"),
        ("csi\x9b2J\x7f", "csi\\x9b2J\\x7f"),
        ("bad \udcff byte\u2028", "bad \\udcff byte\\u2028"),
    ],
)
def test_hostile_characters_become_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_the_result_is_one_line_that_can_be_written(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert "\x1b" not in shown
    shown.encode()
    assert printable(shown) == shown


def test_names_like_the_wanted_one_come_first() -> None:
    names = ["alpha", "beta", "gamma", "pallets_click_task"]
    assert names_for_error(names, "gama") == "gamma, alpha, beta, pallets_click_task"
    assert names_for_error(names, "click").startswith("pallets_click_task, ")
    assert names_for_error([]) == "none"


def test_long_lists_are_cut_and_counted() -> None:
    shown = names_for_error([f"name{number}" for number in range(40)], limit=3)
    assert shown == "name0, name1, name2, … (40 in all)"


def test_plural() -> None:
    assert [plural(0, "pair"), plural(1, "pair"), plural(2, "repository", "repositories")] == [
        "0 pairs",
        "1 pair",
        "2 repositories",
    ]
    assert plural(12345, "token") == "12,345 tokens"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("agent 1: the patch changes nothing", "agent 1: the patch…"),
        ("exactly twenty chars", "exactly twenty chars"),
        ("a" * 30, "a" * 19 + "…"),
    ],
)
def test_long_texts_are_cut_between_words(text: str, short: str) -> None:
    assert shorten(text, 20) == short


def test_wrap_keeps_long_words_whole() -> None:
    line = "[Task 1/2] open /a/path/that/is/far/too/long/for/it please"
    assert wrap(line, 20) == (
        "[Task 1/2] open\n    /a/path/that/is/far/too/long/for/it\n    please"
    )
    assert wrap(line, None) == line


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abc<1>efg"),
        ("abcdefg", 5, "abc<2>fg"),
        ("abcdefg", 1, "a<6>"),
        ("", 0, ""),
    ],
)
def test_of_a_long_text_both_ends_are_kept(text: str, most: int, shown: str) -> None:
    assert head_and_tail(text, most, "<{cut}>") == shown


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (0, "$0.00"),
        (3.2, "$3.20"),
        (1234.5, "$1,234.50"),
        (0.00126, "$0.0013"),
        (0.000084, "$0.000084"),
        (2e-7, "$0.0000002"),
    ],
)
def test_dollars(dollars: float, text: str) -> None:
    assert dollars_text(dollars) == text
