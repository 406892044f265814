"""Questions, repetition, messages that nobody read: by what the record says, not by what sounds plausible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from cooperbench.report.messages import find_plans, find_questions, find_repetitions, find_unread
from cooperbench.report.pairs import Conversation, SentMessage

if TYPE_CHECKING:
    from collections.abc import Sequence


def at(second: int) -> str:
    return f"2026-03-04T10:{second // 60:02d}:{second % 60:02d}.000Z"


def message(
    sequence: int,
    sender: int,
    text: str,
    second: int,
    shown: int | None = None,
) -> SentMessage:
    """Sent by agent 1 or 2 to the other."""
    return SentMessage(
        sequence,
        f"agent{sender}",
        f"agent{3 - sender}",
        text,
        at(second),
        1,
        None if shown is None else at(shown),
    )


def test_a_question_is_a_sentence_outside_of_code_and_quotes() -> None:
    talk = [
        message(1, 1, "Hi. Do you rename Parser.feed? I hope not.\n- Which files are *yours?*", 10),
        message(2, 1, "```\nreally is it?\n```\n> is it so?\n?", 10),
    ]
    assert [(one.message, one.text) for one in find_questions(talk)] == [
        (1, "Do you rename Parser.feed?"),
        (1, "- Which files are *yours?*"),
    ]


def test_a_plan_says_what_the_sender_is_going_to_do() -> None:
    talk = [
        message(1, 1, "Hi. I'll rename Parser.feed. You will see.\nPlan: tests first", 10),
        message(2, 2, "I'm going to add a cache; what will I call it?\n> I will\n```\nI will\n```", 10),
        message(3, 1, "I plan to keep `feed`. **My plan:** nothing else. The planner will I think stay.", 20),
        message(4, 2, "Should I'll? I will ask?", 30),
    ]  # fmt: skip
    assert [(one.message, one.text) for one in find_plans(talk)] == [
        (1, "I'll rename Parser.feed."),
        (1, "Plan: tests first"),
        (2, "I'm going to add a cache;"),
        (3, "I plan to keep `feed`."),
        (3, "**My plan:** nothing else."),
    ]


def test_saying_it_again_is_repetition_in_other_words_it_is_not() -> None:
    plan = "I will add the truncate filter above join in filters.py and register it at the end"
    talk = [
        message(1, 1, plan, 1),
        message(2, 2, plan, 2),  # somebody else
        message(3, 1, plan.upper() + "!!", 3),
        message(4, 1, f"Just so you know: {plan} of FILTERS.", 4),
        message(
            5,
            1,
            "The truncate filter is in, tests pass, nothing else has changed on my side so far",
            5,
        ),
        message(6, 1, "ok", 6),
        message(7, 1, "OK.", 7),
    ]
    assert [(one.message, one.text) for one in find_repetitions(talk)] == [
        (3, "repeats message 1"),
        (4, "repeats message 3"),
        (7, "repeats message 6"),
    ]


def test_messages_that_were_not_delivered_are_never_shown() -> None:
    talk = Conversation(
        (message(1, 1, "a", 10, 11), message(2, 1, "b", 20), message(3, 2, "c", 30))
    )
    assert [(one.message, one.text) for one in find_unread(talk)] == [
        (2, "agent2 took no further step"),
        (3, "agent1 took no further step"),
    ]
    assert list(find_unread(talk._replace(complete=False))) == []


TEXTS = st.one_of(
    st.text(max_size=80), st.sampled_from(["is it?", "yes", "a b c d", "a b c d e", "?" * 50])
)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), TEXTS, st.booleans()), max_size=12))
@settings(max_examples=100)
def test_any_conversation_is_read(said: Sequence[tuple[int, str, bool]]) -> None:
    talk = tuple(
        message(number, sender, text, number, number + 1 if shown else None)
        for number, (sender, text, shown) in enumerate(said, 1)
    )
    for question in find_questions(talk):
        assert question.text in talk[question.message - 1].text
    for repetition in find_repetitions(talk):
        assert int(repetition.text.split()[2]) < repetition.message
