"""Cuts a template's text into tokens: plain text, `{{ … }}` and `{% … %}`. Comments are dropped here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator

from .errors import TemplateSyntaxError

TEXT = "text"
PRINT = "print"
TAG = "tag"

_CLOSERS = {"{{": "}}", "{%": "%}", "{#": "#}"}
_OPENER = re.compile(r"\{[{%#]")


@dataclass(frozen=True)
class Token:
    """A piece of a template."""

    kind: str
    value: str
    line: int


def tokenize(source: str) -> Iterator[Token]:
    """Yield the tokens of `source` from start to end.

    Raises TemplateSyntaxError for an opener that is never closed.
    """
    position = 0
    line = 1
    while position < len(source):
        opening = _OPENER.search(source, position)
        if opening is None:
            yield Token(TEXT, source[position:], line)
            return
        if opening.start() > position:
            text = source[position : opening.start()]
            yield Token(TEXT, text, line)
            line += text.count("\n")
        closer = _CLOSERS[opening.group()]
        end = source.find(closer, opening.end())
        if end < 0:
            raise TemplateSyntaxError(f"{opening.group()} is never closed", line)
        inner = source[opening.end() : end]
        if opening.group() == "{{":
            yield Token(PRINT, inner.strip(), line)
        elif opening.group() == "{%":
            yield Token(TAG, inner.strip(), line)
        line += inner.count("\n")
        position = end + len(closer)
