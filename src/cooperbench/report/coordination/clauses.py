"""Clauses in which a writer gives its word: who, whether, which verb, and the names that the verb is about.

Questions, conditions, guesses and quotations are none; neither is a "not" with exceptions, or about a part of something
("the signature of …"). Where a clause turns to something else (so that, you, without …), what follows is left alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cooperbench.report.coordination import phrases
from cooperbench.report.coordination.names import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cooperbench.report.coordination.names import Named
    from cooperbench.report.coordination.sentences import Sentence

Tense = Literal["future", "present", "past"]
Role = Literal["change", "add", "container"]
_VERBS = phrases.BASE_VERBS | phrases.ING_VERBS | phrases.PAST_VERBS

_ADVERBS = rf"(?:(?:{phrases.ADVERBS})\s+){{0,3}}"
_FUTURE = (
    r"(?:'ll|\s+will|\s+shall|(?:'m|\s+am)(?:\s+also|\s+now)?\s+(?:going|planning|about)\s+to"
    r"|\s+(?:plan|intend|need|have)\s+to)"
)
_NOT_FUTURE = (
    r"(?:'ll\s+not|\s+won't|\s+will\s+not|'ll\s+never|\s+will\s+never|\s+shall\s+not"
    r"|(?:'m|\s+am)\s+not\s+(?:going|planning)\s+to"
    r"|\s+(?:do\s+not|don't)\s+(?:plan|intend|need)\s+to|(?:'ll|\s+will)\s+avoid)"
)
_OPENER = re.compile(
    rf"(?:(?<![\w'`.])(?P<subject>I)(?:"
    rf"(?P<not_future>{_NOT_FUTURE})|(?P<not_present>(?:'m|\s+am)\s+not)"
    r"|(?P<not_past>(?:'ve|\s+have)\s+not|\s+haven't|\s+didn't|\s+did\s+not)"
    rf"|(?P<future>{_FUTURE})|(?P<present>'m|\s+am)|(?P<past>(?:'ve|\s+have)?))\s+"
    # Without a subject: at the start of a sentence, or going on after a claim.
    r"|(?:^\W{0,4}|(?:\band|\bbut|,)\s+)(?:(?P<bare_not>won't|will\s+not)|(?P<bare_not_present>not)|(?P<bare>will))\s+)"
    rf"{_ADVERBS}(?:be\s+)?{_ADVERBS}",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"(?:(?:work|working|worked)\s+(?:on|in)|(?:make|making|made)\s+(?:changes|edits)|[A-Za-z]{2,14})(?![\w'])",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"(?<![\w'`.])I(?:(?:'ll|\s+will)\s+(?:(?P<leave>leave|keep)|(?:stay|keep)\s+(?:out\s+of|away\s+from|clear\s+of))"
    r"|(?:'m|\s+am)\s+(?P<leaving>leaving|keeping))\s+",
    re.IGNORECASE,
)
_LEFT = re.compile(
    r"[\s,)]{0,4}(?:\w{1,12}\s{1,2}){0,2}(?:alone|untouched|unchanged|unmodified|as[\s-]is|intact|to\s+you|for\s+you)\b",
    re.IGNORECASE,
)
_PLAN = re.compile(
    r"\b(?:my\s+(?:plan|approach|changes)|what\s+I'll\s+do|I(?:'ll|\s+will|'m\s+going\s+to|\s+plan\s+to))\b",
    re.IGNORECASE,
)
_PIECE = re.compile(r"(?P<word>[A-Za-z](?:[\w'.]{0,40}[\w])?)|(?P<mark>[,:;()—–&+/]|\s-\s)")


_SPEAKS = re.compile(r"\bI\b|\bwill\b|\bwon't\b|\bnot\b", re.IGNORECASE)
_PLACE = re.compile(r"\W{0,4}(?:in|inside|within)\s{1,4}", re.IGNORECASE)
_NEXT_WORD = re.compile(r"\s{0,4}([A-Za-z][\w']{0,30})")


@dataclass
class Clause:
    """A verb and the names that it is about."""

    will_touch: bool
    tense: Tense
    verb: str
    """As it was written; empty for a heading whose items have verbs of their own."""
    location: str | None = None
    """The file that the sentence begins with: "In a.py: …"."""
    targets: list[tuple[Named, Role]] = field(default_factory=list)


def clauses_of(sentence: Sentence, heading: Clause | None) -> Iterator[Clause]:
    """`heading` is what the list that the sentence is in stands under."""
    text = sentence.text.replace("’", "'").replace("**", "  ")
    is_item = heading is not None and sentence.is_bullet
    # The cheap question first: most sentences give no word.
    if not is_item and not _SPEAKS.search(text):
        return
    if text.rstrip("*_ ").endswith("?") or _words(text) & phrases.HEDGES:
        return
    names = names_in(text)
    if heading is not None and sentence.is_bullet:
        yield _item(text, names, heading)
    location = _place(text, names)
    openers = [one for one in _OPENER.finditer(text) if text.count('"', 0, one.start()) % 2 == 0]
    claimed = False
    for place, opener in enumerate(openers, 1):
        goes_on = opener["subject"] or claimed or not opener.start()
        clause = _opened(opener, text) if goes_on else None
        if clause is None:
            continue
        claimed = True
        _read_object(clause, text, opener.end() + len(clause.verb), names)
        if clause.will_touch and location is not None:
            clause.location = location.name
            clause.targets.append((location, "container"))
        end = openers[place].start() if place < len(openers) else len(text)
        if clause.will_touch or not _words(text[opener.end() : end]) & phrases.QUALIFIERS:
            yield clause
    yield from _asides(text, names)


def heading_of(sentence: Sentence, clauses: Sequence[Clause]) -> Clause | None:
    """What the list after a sentence stands under: a verb without an object yet, or a plan."""
    open_clause = next((clause for clause in clauses if not clause.targets), None)
    plan = Clause(will_touch=True, tense="future", verb="") if _PLAN.search(sentence.text) else None
    return open_clause or plan


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Za-z']+", text)}


def _place(text: str, names: Sequence[Named]) -> Named | None:
    """The file of "In a.py: I'll add …"."""
    before = _PLACE.fullmatch(text, 0, names[0].start) if names else None
    if before is None or names[0].kind != "file" or text[names[0].end : names[0].end + 1] not in (":", ","):
        return None
    return names[0]


def _asides(text: str, names: Sequence[Named]) -> Iterator[Clause]:
    """ "I'll leave a.py alone", "I'll stay out of a.py"."""
    for aside in _ASIDE.finditer(text):
        clause = Clause(will_touch=False, tense="future", verb="leave")
        _read_object(clause, text, aside.end(), names)
        last = max((named.end for named, _ in clause.targets), default=0)
        is_left = not (aside["leave"] or aside["leaving"]) or _LEFT.match(text, last)
        if is_left and not _words(text) & (phrases.QUALIFIERS - {"now"}):
            yield clause


def _item(text: str, names: Sequence[Named], heading: Clause) -> Clause:
    """An item of a list under "I will change:" begins with a name; one under "My plan:" with a verb."""
    clause = Clause(heading.will_touch, heading.tense, heading.verb)
    verb = _VERB.match(text.lstrip())
    word = verb[0].lower() if verb else ""
    if heading.verb and names and not text[: names[0].start].strip(" *_(["):
        clause.targets.append((names[0], "add" if heading.verb in phrases.ADD_VERBS else "change"))
    elif not heading.verb and word in phrases.BASE_VERBS | phrases.ING_VERBS:
        clause.verb = word
        _read_object(clause, text, len(text) - len(text.lstrip()) + len(word), names)
    return clause


def _opened(opener: re.Match[str], text: str) -> Clause | None:
    """What an opener and the verb after it say; None where the verb is none of ours, or in another form."""
    verb = _VERB.match(text, opener.end())
    if verb is None:
        return None
    word = verb[0]
    plain = " ".join(word.lower().split())
    form = phrases.VERB_PHRASES.get(plain)
    is_base = plain in phrases.BASE_VERBS or form == "base"
    is_ing = plain in phrases.ING_VERBS or form == "ing"
    is_past = plain in phrases.PAST_VERBS or form == "past"
    is_future = opener["future"] or opener["not_future"] or opener["bare"] or opener["bare_not"]
    negative = any(
        opener[name] for name in ("not_future", "not_present", "not_past", "bare_not", "bare_not_present")
    )
    tense: Tense
    if is_future and (is_base or is_ing):
        tense = "future"
    elif (opener["present"] or opener["not_present"] or opener["bare_not_present"]) and is_ing:
        tense = "present"
    elif (opener["not_past"] and (is_past or is_base)) or (opener["past"] is not None and is_past):
        tense = "past"
    elif opener["past"] == "" and is_base:
        tense = "present"
    else:
        return None
    return Clause(not negative, tense, word)


def _read_object(clause: Clause, text: str, start: int, names: Sequence[Named]) -> None:
    """Collect the names that the verb is about, up to the word with which the clause turns to something else."""
    by_start = {named.start: named for named in names if named.start >= start}
    verb = " ".join(clause.verb.lower().split())
    role: Role = "add" if verb in phrases.ADD_VERBS else "change"
    direct = True
    """The next name is the object itself, not what it is in."""
    expects_name = strayed = beside = anything = False
    at = start
    while at < len(text):
        named = by_start.get(at)
        if named is not None:
            if not beside and (clause.will_touch or not (strayed or _is_part(text, named, verb))):
                clause.targets.append((named, role if direct else "container"))
            at, expects_name, beside = named.end, False, False
            continue
        piece = _PIECE.match(text, at)
        if piece is None:
            at += 1
            continue
        word = piece[0].lower()
        here = at
        at = min(piece.end(), *(place for place in by_start if at < place < piece.end()), piece.end())
        if piece["mark"]:
            if word in (";", "—", "–") or word.strip() == "-" or (word == ":" and clause.targets):
                return
            expects_name = word in ",&+/"
        elif word == "or" and clause.will_touch:
            # One of them, but which?
            clause.targets.clear()
            return
        elif word in ("and", "plus", "or"):
            expects_name = True
        elif word == "anything" and not clause.will_touch:
            anything = True
        elif word == "from" and verb in phrases.REMOVE_VERBS:
            direct = False
        elif word == "it" and not text[start:here].strip():
            pass
        elif word in phrases.STOPS or word == "from" or word.startswith("agent"):
            return
        elif word in phrases.POSITIONS:
            beside = True
        elif word in phrases.PREPOSITIONS:
            direct = anything
            expects_name = word == "to"
        elif expects_name and word in _VERBS:
            # "to update b.py" says what for; "and update b.py" gives the same word for another object.
            if text[:here].rstrip().lower().endswith(" to"):
                return
            role, direct, expects_name = ("add" if word in phrases.ADD_VERBS else "change"), True, False
        elif word not in phrases.FILLERS:
            if expects_name:
                return
            strayed = True


def _is_part(text: str, named: Named, verb: str) -> bool:
    """Does the text go on to speak of a part of what it names: "its signature", "the existing entries"?"""
    following = _NEXT_WORD.match(text, named.end)
    return text.startswith("'s", named.end) or (
        verb != "leave" and following is not None and following[1].lower() not in phrases.AFTER_NOT
    )
