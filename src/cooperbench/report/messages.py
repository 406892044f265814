"""Effort that agents spent on messages, and properties of messages that their form shows.

Questions, repetitions and messages that were never read are recognized. docs/coordination.md
defines every number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from cooperbench.records.result import AgentResult
from cooperbench.records.trajectory import Step
from cooperbench.report.mentions import MAX_CHARACTERS, prose_lines
from cooperbench.report.pairs import Conversation, SentMessage

MIN_SIMILARITY = 0.7
"""Jaccard similarity of three-word sequences at which a message repeats an earlier one."""
MAX_EARLIER_MESSAGES = 100
"""Earlier messages of the same sender to the same recipient that are compared."""
_SEQUENCE_WORDS = 3
_MAX_COMMAND_CHARACTERS = 200_000
_MESSAGE_COMMAND = re.compile(
    r"""
    (?:                                         # the start of a command:
        ^ | [;&|({`!\n] | \$\(
      | \b(?:then|do|else|if|while|time|exec|env)
    )
    [ \t]*
    (?:send_message|read_messages)
    (?![\w./=-])                                # not part of a longer name or a path
    """,
    re.VERBOSE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+")
_PLAN = re.compile(
    r"""
    \b I (?: \s+ will | ['’]ll | (?: \s+ am | ['’]m) \s+ (?:going|planning) \s+ to
          | \s+ (?:plan|intend) \s+ to ) \b       # I will …, I'm going to …, I plan to …
    | ^ [*_#>\-\s]* (?:my \s+)? plan \b \W* [:\-–]   # Plan: …
    | \b my \s+ plan \s+ is \b
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+(?:_[^\W_]+)*")
_AFTER_QUESTION_MARK = "\"')]*_ "
"""Characters that may follow the question mark of a question."""


@dataclass(frozen=True)
class Activity:
    """Effort that one agent spent on messages."""

    agent_id: str
    steps: int
    messaging_steps: tuple[int, ...]
    """Numbers of the steps that sent or read messages."""
    step_share: float | None
    """Share of the steps that were spent on messages; None without a trajectory."""
    token_share: float | None
    """Share of the model's output that was spent on these steps; None if it was not counted."""
    sent: int
    first_message: int | None
    """Number of its first message."""
    first_step_fraction: float | None
    """The step of its first message, as a share of all its steps."""


@dataclass(frozen=True)
class Remark:
    """Something about a message."""

    message: int
    """Number of the message."""
    text: str


def measure_activity(
    agent_id: str,
    result: AgentResult | None,
    trajectory: Sequence[Step],
    messages: Sequence[SentMessage],
) -> Activity:
    """Return what one agent spent on messages; `result` is its part of result.json."""
    sent = [message for message in messages if message.sender == agent_id]
    numbers = {step.number for step in trajectory if step.number is not None}
    steps = max(len(numbers), (result.steps or 0) if result else 0)
    messaging_steps = _messaging_steps(trajectory, sent)
    first_message = sent[0] if sent else None
    return Activity(
        agent_id=agent_id,
        steps=steps,
        messaging_steps=tuple(sorted(messaging_steps)),
        step_share=_share(len(messaging_steps), steps) if trajectory else None,
        token_share=_token_share(trajectory, messaging_steps),
        sent=len(sent),
        first_message=first_message.sequence if first_message else None,
        first_step_fraction=_first_step_fraction(first_message, steps),
    )


def _messaging_steps(trajectory: Sequence[Step], sent: Sequence[SentMessage]) -> set[int]:
    """Return the numbers of the steps that sent or read messages."""
    numbers = {message.sender_step for message in sent if message.sender_step}
    for step in trajectory:
        if step.number is not None and _is_messaging(step):
            numbers.add(step.number)
    return numbers


def _first_step_fraction(first_message: SentMessage | None, steps: int) -> float | None:
    if first_message is None or not first_message.sender_step:
        return None
    return _share(first_message.sender_step, steps)


def _share(part: int, total: int) -> float | None:
    return min(1.0, part / total) if total else None


def _is_messaging(step: Step) -> bool:
    if step.action != "run":
        return step.action == "send_message"
    command = str(step.args.get("command", ""))[:_MAX_COMMAND_CHARACTERS]
    # The cheap check first: most commands have nothing to do with messages.
    return "_message" in command and _MESSAGE_COMMAND.search(command) is not None


@dataclass
class _Reply:
    """A reply of the model, and the steps that it led to."""

    tokens: int
    steps: list[int]

    def tokens_for(self, steps: Collection[int]) -> float:
        """Return the tokens for some steps; a reply is divided evenly among its steps."""
        if not self.steps:
            return 0.0
        counted = [step for step in self.steps if step in steps]
        return self.tokens * len(counted) / len(self.steps)


def _token_share(trajectory: Sequence[Step], messaging_steps: Collection[int]) -> float | None:
    """Return the share of the model's output that led to messages, by the provider's count."""
    replies: list[_Reply] = []
    for step in trajectory:
        if step.action == "reply":
            replies.append(_Reply(max(0, step.usage.completion_tokens), []))
        elif step.number is not None and replies:
            replies[-1].steps.append(step.number)
    total = sum(reply.tokens for reply in replies)
    if not total:
        return None
    return sum(reply.tokens_for(messaging_steps) for reply in replies) / total


def find_questions(messages: Sequence[SentMessage]) -> Iterator[Remark]:
    """Yield the sentences of at least two words that end with a question mark."""
    for message in messages:
        for line in prose_lines(message.text):
            if "?" not in line:
                continue
            for sentence in _SENTENCE_END.split(line):
                if _is_question(sentence):
                    yield Remark(message.sequence, sentence.strip())


def find_plans(messages: Sequence[SentMessage]) -> Iterator[Remark]:
    """Yield the sentences in which the sender says what it is going to do."""
    for message in messages:
        for line in prose_lines(message.text):
            for sentence in _SENTENCE_END.split(line):
                if _PLAN.search(sentence) and not _is_question(sentence):
                    yield Remark(message.sequence, sentence.strip())


def _is_question(sentence: str) -> bool:
    has_mark = sentence.rstrip(_AFTER_QUESTION_MARK).endswith("?")
    return has_mark and len(_WORD.findall(sentence)) > 1


def find_repetitions(messages: Sequence[SentMessage]) -> Iterator[Remark]:
    """Yield the messages that repeat an earlier one of the same sender to the same recipient."""
    earlier_messages: dict[tuple[str, str], list[tuple[int, frozenset[str]]]] = {}
    for message in messages:
        sequences = _word_sequences(message.text[:MAX_CHARACTERS])
        if not sequences:
            continue
        earlier = earlier_messages.setdefault((message.sender, message.recipient), [])
        number = _find_similar(sequences, earlier)
        if number is not None:
            yield Remark(message.sequence, f"repeats message {number}")
        earlier.append((message.sequence, sequences))
        del earlier[:-MAX_EARLIER_MESSAGES]


def _word_sequences(text: str) -> frozenset[str]:
    """Return all sequences of three words; a shorter text is one sequence."""
    tokens = [token.lower() for token in _WORD.findall(text)]
    if not tokens:
        return frozenset()
    starts = range(max(1, len(tokens) - _SEQUENCE_WORDS + 1))
    return frozenset(" ".join(tokens[start : start + _SEQUENCE_WORDS]) for start in starts)


def _find_similar(
    sequences: frozenset[str], earlier: Sequence[tuple[int, frozenset[str]]]
) -> int | None:
    """Return the number of the most similar message; the latest of several."""
    best_similarity = 0.0
    best_number = None
    for number, other in earlier:
        similarity = len(sequences & other) / len(sequences | other)
        if similarity >= max(MIN_SIMILARITY, best_similarity):
            best_similarity = similarity
            best_number = number
    return best_number


def find_unread(conversation: Conversation) -> Iterator[Remark]:
    """Yield the messages that were never delivered, usually because the recipient had ended."""
    if not conversation.complete:
        return
    for message in conversation.messages:
        if message.delivered_at is None:
            yield Remark(message.sequence, f"{message.recipient} took no further step")
