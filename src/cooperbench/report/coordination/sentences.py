"""Sentences of a message with their places in it. Every scan is linear, however hostile the text.

Left out: fenced code, quoted lines (`> …`), and everything beyond the first `MOST_CHARACTERS` of a message. Only the
first `LONGEST_SENTENCE` characters of a sentence are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_CHARACTERS = 64_000
LONGEST_SENTENCE = 800
_END = re.compile(r"[.!?;](?=[\s\"')\]*]|$)[\"')\]*]{0,8}")
_BULLET = re.compile(r"[ \t]{0,40}(?:[-*+•]|\d{1,3}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?")
_BLANK = re.compile(r"[ \t\r]*")
_ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "cf.", "approx.", "incl.")


@dataclass(frozen=True)
class Sentence:
    text: str
    start: int
    """Its place in the message, in characters from 0."""
    is_bullet: bool = False
    """It begins an item of a list."""
    in_list: bool = False
    """It is part of an item of a list."""
    opens_list: bool = False
    """It ends with a colon at the end of a line."""

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def sentences_of(message: str) -> list[Sentence]:
    found: list[Sentence] = []
    in_fence = False
    at = 0
    for line in message[:MOST_CHARACTERS].split("\n"):
        start, at = at, at + len(line) + 1
        if line.lstrip().startswith(("```", "~~~")):
            in_fence = not in_fence
        elif not in_fence and not line.lstrip().startswith(">"):
            found += _of_line(line, start)
    return found


def _of_line(line: str, start: int) -> Iterator[Sentence]:
    bullet = _BULLET.match(line)
    at = bullet.end() if bullet else 0
    is_bullet = bullet is not None
    for end in _ends(line, at):
        blank = _BLANK.match(line, at)
        at = blank.end() if blank else at
        text = line[at:end].rstrip()
        if text.strip("*_#- "):
            bare = text.rstrip("*_ ")
            opens = bare.endswith((":", ":-")) and not line[end:].strip()
            yield Sentence(text[:LONGEST_SENTENCE], start + at, is_bullet, bullet is not None, opens)
            is_bullet = False
        at = end


def _ends(line: str, start: int) -> Iterator[int]:
    for mark in _END.finditer(line, start):
        if not line[max(0, mark.start() - 7) : mark.start() + 1].lower().endswith(_ABBREVIATIONS):
            yield mark.end()
    yield len(line)
