"""What agents said they would, or would not, touch: read from their messages, precision before recall.

A claim is a clause whose subject is the writer ("I will …", "I'm adding …", "I won't …"), whose verb is one of changing
code, and whose object names a file or a symbol (`clauses` finds these). Whether a claim was kept is for `verdicts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cooperbench.report.coordination import phrases
from cooperbench.report.coordination.clauses import clauses_of, heading_of
from cooperbench.report.coordination.sentences import sentences_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cooperbench.report.coordination.clauses import Clause, Role, Tense
    from cooperbench.report.coordination.sentences import Sentence

MOST_CLAIMS = 200
"""Of one message; more are no plan."""


@dataclass(frozen=True)
class Claim:
    """One thing that an agent said about one file or symbol."""

    agent_id: str
    message: int
    """Sequence number of the message."""
    start: int
    """Where the sentence stands in the message, in characters from 0."""
    end: int
    sentence: str
    kind: Literal["file", "symbol"]
    name: str
    will_touch: bool
    """False: it said that it would not."""
    tense: Tense
    role: Role
    """What the verb does to it; `container`: something goes into it."""
    location: str | None = None
    """The file that the same clause puts a symbol into."""
    said_again: tuple[int, ...] = ()
    """Later messages with the same claim."""


def claims_of(agent_id: str, sequence: int, message: str) -> list[Claim]:
    """The claims of one message, in order."""
    found: list[Claim] = []
    heading: Clause | None = None
    for sentence in sentences_of(message):
        clauses = list(clauses_of(sentence, heading))
        if sentence.opens_list:
            heading = heading_of(sentence, clauses)
        elif not sentence.in_list:
            heading = None
        for clause in clauses:
            found += _claims(agent_id, sequence, sentence, clause)
            if len(found) >= MOST_CLAIMS:
                return found[:MOST_CLAIMS]
    return found


def distinct(claims: Sequence[Claim]) -> list[Claim]:
    """Claims of one agent, each once: where it was said first, and in which messages again."""
    first: dict[tuple[object, ...], Claim] = {}
    again: dict[tuple[object, ...], list[int]] = {}
    for claim in claims:
        key = (claim.agent_id, claim.kind, claim.name, claim.will_touch, claim.role == "add")
        if key in first:
            again.setdefault(key, []).append(claim.message)
        first.setdefault(key, claim)
    return [
        Claim(**{**vars(claim), "said_again": tuple(dict.fromkeys(again.get(key, ())))})
        for key, claim in first.items()
    ]


def _claims(agent_id: str, sequence: int, sentence: Sentence, clause: Clause) -> Iterator[Claim]:
    for place, (named, role) in enumerate(clause.targets):
        if named.kind == "detail":
            continue
        # "I won't touch parse() in a.py" is about parse().
        if not clause.will_touch and named.kind == "file" and role == "container":
            continue
        yield Claim(
            agent_id,
            sequence,
            sentence.start,
            sentence.end,
            sentence.text,
            "file" if named.kind == "file" else "symbol",
            named.name,
            clause.will_touch,
            clause.tense,
            role,
            _location(clause, place) if named.kind == "symbol" else None,
        )


def _location(clause: Clause, place: int) -> str | None:
    """The file of a symbol: the one that follows with "in" or "to", or that the sentence begins with."""
    if clause.verb.lower() in phrases.REMOVE_VERBS:
        return None
    for named, role in clause.targets[place + 1 :]:
        if named.kind == "file":
            return named.name if role == "container" else clause.location
    return clause.location
