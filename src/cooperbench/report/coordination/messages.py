"""What messages say by their form: questions and their answers, repetition, and messages that nobody read.

Of a message the first `MOST_CHARACTERS` are read, without fenced code and quoted lines. Every scan is linear, however
hostile the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from cooperbench.report.records import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cooperbench.report.records import Conversation, SentMessage

MOST_CHARACTERS = 64_000
LONGEST_SENTENCE = 800
SIMILAR = 0.7
"""Jaccard similarity of three-word sequences from which on a message repeats an earlier one."""
ANSWERS_LOOKED_AT = 50
"""So many messages back after a question; later ones answer something else."""
EARLIER_MESSAGES = 100
"""So many of the same sender to the same recipient are compared; word-for-word repetition is found at any distance."""
_MOST_WORDS = 4_000
_SENTENCE_END = re.compile(r"[.!?;](?=[\s\"')\]*]|$)[\"')\]*]{0,8}")
_ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "cf.", "approx.", "incl.")
_BULLET = re.compile(r"[ \t]{0,40}(?:[-*+•]|\d{1,3}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?")
_WORD = re.compile(r"[^\W_]+(?:_[^\W_]+)*")
_ANSWERS = re.compile(
    r"\W{0,8}(?:yes|yep|yeah|no|nope|sure|ok|okay|agreed|correct|right|exactly|confirmed|understood|got it|sounds good|"
    r"good question|great|fine|ack|will do|answer|to answer|re:|regarding)\b",
    re.IGNORECASE,
)
_COMMON = (
    "about after again also another anything before being between both change changes changing code could "
    "does doing done each else even every feature file files from function have here into just know like "
    "make mine more most much need only other over please same should some something such sure than that "
    "their them then there these they thing this those touch touching under using very want well were "
    "what when where which while will with working would your you agent agent1 agent2 plan planning going "
    "anyone think method class"
)
_COMMON_WORDS = frozenset(_COMMON.split())


@dataclass(frozen=True)
class Question:
    """A sentence that asks, and whether it was answered."""

    asker: str
    asked: str
    message: int
    """Sequence number of the message that it is in."""
    start: int
    """Its place in the message, in characters from 0."""
    end: int
    text: str
    was_shown: bool | None
    """Whether it was put before the one who was asked; None: not on record."""
    replied_by: int | None
    """The first message back after it was shown, whatever that is about."""
    answered_by: int | None
    """The first message back that takes up a word of it, or begins like an answer."""
    seconds: float | None
    """From asking to that answer being sent."""
    asker_steps: int | None
    """Steps that the asker took between asking and being shown the answer."""


@dataclass(frozen=True)
class Repetition:
    """A message that says again what its sender has told the same recipient."""

    sender: str
    message: int
    earlier: int
    similarity: float


@dataclass(frozen=True)
class UnreadMessage:
    """A message that its recipient never saw."""

    sender: str
    recipient: str
    message: int
    after_end: bool
    """It was sent after the recipient's last action."""


def timestamp_of(text: object) -> float | None:
    """Seconds since 1970 of an ISO 8601 time; None for anything else."""
    time = parse_time(text)
    return None if time is None else time.timestamp()


def seconds_between(start: float | None, end: float | None) -> float | None:
    """Never below zero: clocks of two processes may differ a little."""
    return None if start is None or end is None else round(max(0.0, end - start), 3)


def prose_lines(message: str) -> Iterator[tuple[int, str]]:
    """The lines outside of fenced code and quotations, each with its place in the message."""
    in_fence = False
    at = 0
    for line in message[:MOST_CHARACTERS].split("\n"):
        start, at = at, at + len(line) + 1
        if line.lstrip().startswith(("```", "~~~")):
            in_fence = not in_fence
        elif not in_fence and not line.lstrip().startswith(">"):
            yield start, line


def questions_in(conversation: Conversation) -> list[Question]:
    messages = conversation.messages
    shown_is_known = any(message.delivered_at for message in messages)
    words: dict[int, set[str]] = {}
    """Of messages that may be answers, by their place: each is read once."""

    def answers(place: int, asked: set[str]) -> bool:
        text = messages[place].text[:MOST_CHARACTERS]
        if place not in words:
            words[place] = _content_words(text)
        return _ANSWERS.match(text) is not None or bool(asked & words[place])

    found = []
    for place, message in enumerate(messages):
        asking = list(_asking_sentences(message.text))
        back = _replies(messages, place, shown_is_known) if asking else []
        for start, sentence in asking:
            asked = _content_words(sentence)
            answer = next((messages[reply] for reply in back if answers(reply, asked)), None)
            sent, answered = (timestamp_of(one.timestamp) if one else None for one in (message, answer))
            found.append(
                Question(
                    message.sender,
                    message.recipient,
                    message.sequence,
                    start,
                    start + len(sentence),
                    sentence,
                    message.delivered_at is not None if shown_is_known else None,
                    messages[back[0]].sequence if back else None,
                    answer.sequence if answer else None,
                    seconds_between(sent, answered),
                    _steps_between(message, answer),
                )
            )
    return found


def repetitions_in(messages: Sequence[SentMessage]) -> list[Repetition]:
    found = []
    said: dict[tuple[str, str], list[tuple[int, frozenset[str]]]] = {}
    exactly: dict[tuple[str, str, str], int] = {}
    for message in messages:
        spoken = _words(message.text)
        if not spoken:
            continue
        way = (message.sender, message.recipient)
        whole = " ".join(spoken)
        shingles = frozenset(" ".join(spoken[at : at + 3]) for at in range(max(1, len(spoken) - 2)))
        earlier, similarity = exactly.get((*way, whole)), 1.0
        if earlier is None:
            recent = said.get(way, [])
            similarity, earlier = max(
                ((_jaccard(shingles, other), number) for number, other in recent), default=(0.0, None)
            )
        if earlier is not None and similarity >= SIMILAR:
            found.append(Repetition(message.sender, message.sequence, earlier, round(similarity, 3)))
        exactly.setdefault((*way, whole), message.sequence)
        said.setdefault(way, []).append((message.sequence, shingles))
        del said[way][:-EARLIER_MESSAGES]
    return found


def never_shown(conversation: Conversation, last_acts: Mapping[str, float | None]) -> list[UnreadMessage]:
    """Messages without a delivery; none where the record does not tell of deliveries."""
    if not conversation.complete or not any(
        one.delivered_by or one.sender_step is not None for one in conversation.messages
    ):
        return []
    return [
        UnreadMessage(one.sender, one.recipient, one.sequence, _is_after(one, last_acts.get(one.recipient)))
        for one in conversation.messages
        if one.delivered_at is None
    ]


def _is_after(message: SentMessage, last_act: float | None) -> bool:
    sent = timestamp_of(message.timestamp)
    return sent is not None and last_act is not None and sent >= last_act


def _asking_sentences(message: str) -> Iterator[tuple[int, str]]:
    """Sentences that end with a question mark, with their places."""
    for start, line in prose_lines(message):
        if "?" not in line:
            continue
        bullet = _BULLET.match(line)
        at = bullet.end() if bullet else 0
        for end in _sentence_ends(line, at):
            sentence = line[at:end].strip()
            begin = line.find(sentence, at)
            at = end
            asks = sentence.rstrip("\"')]*_ ").endswith("?") and len(sentence) <= LONGEST_SENTENCE
            if asks and len(_WORD.findall(sentence)) > 1:
                yield start + begin, sentence


def _sentence_ends(line: str, start: int) -> Iterator[int]:
    for mark in _SENTENCE_END.finditer(line, start):
        if not line[max(0, mark.start() - 7) : mark.start() + 1].lower().endswith(_ABBREVIATIONS):
            yield mark.end()
    yield len(line)


def _replies(messages: Sequence[SentMessage], place: int, shown_is_known: bool) -> list[int]:
    """The places of messages back after the one at `place` was shown, as far as answers are looked for."""
    question = messages[place]
    shown = timestamp_of(question.delivered_at)
    if shown is None and shown_is_known:
        return []
    back = (
        later
        for later in range(place + 1, min(len(messages), place + 20 * ANSWERS_LOOKED_AT))
        if (messages[later].sender, messages[later].recipient) == (question.recipient, question.sender)
        if shown is None or (timestamp_of(messages[later].timestamp) or 0.0) >= shown
    )
    return list(islice(back, ANSWERS_LOOKED_AT))


def _content_words(text: str) -> set[str]:
    return {word for word in map(str.lower, _WORD.findall(text)) if len(word) > 3} - _COMMON_WORDS


def _steps_between(question: SentMessage, answer: SentMessage | None) -> int | None:
    if answer is None or answer.delivered_step is None or question.sender_step is None:
        return None
    return max(0, answer.delivered_step - question.sender_step)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text[:MOST_CHARACTERS])[:_MOST_WORDS]]


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    # Sets of very different size cannot be similar; that is cheaper to see.
    small, large = sorted((len(one), len(other)))
    if small < SIMILAR * large:
        return 0.0
    common = len(one & other)
    return common / (small + large - common)
