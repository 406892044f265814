"""What counts as a claim, sentence by sentence: what is found is meant, and what is not meant is not found."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cooperbench.report.coordination.claims import claims_of, distinct
from cooperbench.report.coordination.names import names_in
from cooperbench.report.coordination.sentences import MOST_CHARACTERS, sentences_of


def said(message: str) -> list[str]:
    """`+name` for what it will touch, `-name` for what not, in order."""
    return [f"{'+' if claim.will_touch else '-'}{claim.name}" for claim in claims_of("agent1", 1, message)]


@pytest.mark.parametrize(
    ("message", "claims"),
    [
        ("I will add a parameter named limit to parse() in src/parser.py.", ["+parse", "+src/parser.py"]),
        ("I'm adding method `Z` to class `W` in f.py", ["+Z", "+W", "+f.py"]),
        ("I’ll change a.py, b.py and c.py.", ["+a.py", "+b.py", "+c.py"]),
        ("I change one line in ForNode.render.", ["+ForNode.render"]),
        ("I've already added `Money.split` to coinage/money.py, you can call `foo_bar()`.", ["+Money.split", "+coinage/money.py"]),
        ("I will be modifying the `render` method in environment.py so that `Context.get` works.", ["+render", "+environment.py"]),
        ("I'll add a function above first() in filters.py", ["+filters.py"]),
        ("I am going to add `lookup()` in rates.py and update wallet.py.", ["+lookup", "+rates.py", "+wallet.py"]),
        ("I'll change a.py, you change b.py.", ["+a.py"]),
        ("I'll take parse(), you take format()", ["+parse"]),
        ("I won't touch `format_money`. I will change parse_money.", ["-format_money", "+parse_money"]),
        ("I'm not touching currency.py. Won't touch rounding.py. Not modifying z.py.", ["-currency.py", "-rounding.py", "-z.py"]),
        ("I'll leave errors.py alone. I will stay out of `parsing.py`.", ["-errors.py", "-parsing.py"]),
        ("I'll add tests to a.py and won't touch b.py.", ["+a.py", "-b.py"]),
        ("I did not change lexer.py", ["-lexer.py"]),
        ("I won't touch parse() in a.py.", ["-parse"]),
        ("I will NOT be touching `src/a.py` or `src/b.py`.", ["-src/a.py", "-src/b.py"]),
        ("I won't be modifying anything in config/schema.py.", ["-config/schema.py"]),
        ("I will only modify consumer.go (Consume method) and won't touch producer.go at all.", ["+consumer.go", "-producer.go"]),
        ("In `src/env.py`: I'll modify `Environment.__init__` to accept `default`.", ["+Environment.__init__", "+src/env.py"]),
        ("I modified `_parse` (lines 1-5) in core.py and added a new `Group.alias` method.", ["+_parse", "+core.py", "+Group.alias"]),
        ("I'm going to be working in router.ts: adding `Matcher`. I'm leaving b.ts unchanged.", ["+router.ts", "-b.ts"]),
        ("Just to confirm: you'll change `load()` and I'll change `save()`.", ["+save"]),
        ("I've implemented it in client.py by wrapping `send()` with `retry()`.", ["+client.py"]),
        ("I will move `helper_fn` from x.py to y.py.", ["+helper_fn", "+x.py", "+y.py"]),
    ],
)  # fmt: skip
def test_a_word_that_is_given_is_found(message: str, claims: list[str]) -> None:
    assert said(message) == claims


@pytest.mark.parametrize(
    "message",
    [
        "Will you change a.py?",
        "Should I change a.py? I could change b.py.",
        "If you agree I will change a.py.",
        "I will change a.py or b.py.",
        "I might change a.py, maybe I will add foo() too.",
        'You said "I will change a.py" before.',
        "> I will change a.py",
        "```\nI will change a.py\n```",
        "You will change a.py. agent2 will add foo() to b.py. We will change c.py.",
        "I will use parse() from a.py and look at b.py.",
        "I'll let you edit a.py.",
        "I will add tests for parse_all().",
        "I won't change the signature of parse() in a.py.",
        "I won't touch a.py except for the imports.",
        "I won't touch a.py until you are done.",
        "I won't modify the `FILTERS` dict's existing entries.",
        "I'd like to avoid touching a.py. I would rather not touch b.py. I am not sure whether I will change c.py.",
        "I'll wait for you to finish `parser.py` before I start.",
        "I'll make sure a.py still works.",
        "I'll keep my changes limited to the `finally` block.",
        "I will leave the decision about a.py open.",
        "I looked at https://example.org/a.py and Node.js, e.g. version v1.2.",
        "I'll add the parameter `limit`.",
        "API will change a.py",
    ],
)
def test_what_is_no_word_given_makes_no_claim(message: str) -> None:
    assert said(message) == []


def test_lists_under_a_heading_belong_to_it() -> None:
    message = """Hi! Files I will modify:
- **src/a.ts**: new `parse()`. Uses b.ts.
2. `c.go:10-20`
* and tests

My plan:
- Add `Rates.lookup` to rates.py
- Talk to you about d.py
- z.py looks odd

I will not touch:
- e.py
Then we merge f.py"""
    assert said(message) == ["+src/a.ts", "+c.go", "+Rates.lookup", "+rates.py", "-e.py"]


def test_evidence_points_into_the_message() -> None:
    message = "Hello.\n  - ok; I will change `Money.add` in money.py! Bye."
    (first, second) = claims_of("agent2", 7, message)
    assert (first.agent_id, first.message, first.kind, first.tense, first.role) == (
        "agent2",
        7,
        "symbol",
        "future",
        "change",
    )
    assert first.location == second.name == "money.py"
    assert message[first.start : first.end] == first.sentence == "I will change `Money.add` in money.py!"


def test_a_claim_that_is_repeated_counts_once() -> None:
    texts = ["I will change a.py.", "As I said: I'm changing a.py.", "I won't change a.py."]
    claims = [claim for number, text in enumerate(texts, 1) for claim in claims_of("agent1", number, text)]
    once = distinct(claims)
    assert [(claim.will_touch, claim.message, claim.said_again) for claim in once] == [
        (True, 1, (2,)),
        (False, 3, ()),
    ]


WORDS = st.sampled_from(
    [
        "I", "I'll", "won't", "will", "not", "change", "adding", "touched", "add", "a.py", "`x`", "foo()", "and", "or", ",", "in",
        "to", "My plan:", "\n- ", "\n", "?", ".", "```", '"', ">", "class", "Foo", "leave", "alone", "’", "if", "b_c", "**", "\x00", "é",
    ]
)  # fmt: skip


@given(st.one_of(st.lists(WORDS, max_size=60).map(" ".join), st.text(max_size=300)))
@settings(max_examples=300)
@example("I will change\u2028a.py\r\n- b.py")
def test_any_text_is_read_and_evidence_is_where_it_says(text: str) -> None:
    for sentence in sentences_of(text):
        assert text[sentence.start : sentence.end] == sentence.text
    for claim in claims_of("agent1", 1, text):
        assert text[claim.start : claim.end] == claim.sentence
        assert claim.name.rpartition(".")[2].rpartition("/")[2] in claim.sentence.replace("::", ".")


@pytest.mark.parametrize(
    "piece",
    [
        "a.", "a/", "`", "`a", "a_", "function ", "f(", "I will ", "I'll add ", "I will change a.py, ", ".", "?", " ", "- ", "class a::",
        "a.py", "*", "-*", "I won't\t", "\n- a.py", "I will\n", "```\n", "'", "be only just ", "e.g.", "((((", "\ud800", "I " * 30 + "\n",
    ],
)  # fmt: skip
def test_a_megabyte_of_anything_is_read_in_linear_time(piece: str) -> None:
    """What is quadratic here takes hours, which the time limit of tests ends."""
    message = (piece * (1_000_000 // len(piece) + 1))[:1_000_000]
    assert sum(len(sentence.text) for sentence in sentences_of(message)) <= MOST_CHARACTERS
    assert len(claims_of("agent1", 1, message)) <= 200
    assert len(names_in(message[:10_000])) <= 10_000
