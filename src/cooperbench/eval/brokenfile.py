"""Where in some files a test run broke, as its output tells: a traceback, a compiler's message, a panic.

Only places that an error goes with count: a warning or a line of a log says nothing about why tests failed.
Approximate like `counts`: a test may print a line that looks like one of a traceback.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from cooperbench.eval.counting.base import readable, short_kind
from cooperbench.models import REPO_DIR

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIND = r"((?:\w+\.)*\w*(?:Error|Exception|Warning)|(?:syntax )?error(?:\[E\d+\])?|warning)(?!\w)"
_SAME_LINE = re.compile(rf"\)?: (?:{_KIND}|(?=\S))", re.IGNORECASE)
_OTHER_LINE = re.compile(
    rf"\n(?:E )?[# \t]*(?:(?:name: ')?{_KIND}(?=[:'\n])|panic: |thread [^\n]* panicked at )"
)
_FAR = 2000
"""Characters, at most, between a place and the error that goes with it."""
_MOST_PLACES = 500
"""Looked at: output can be megabytes of them."""


def broken_place(output: str, paths: Sequence[str]) -> str | None:
    """`SyntaxError in stencil/filters.py line 42`: the first error in one of the files, else None."""
    text = readable(output)
    pattern = (
        rf"(?:(?<=[\s\"'(])|(?<=[\s(]\./)|(?<={REPO_DIR}/))({'|'.join(map(re.escape, paths))})"
        r"(?:\", line |:|\(|: [^\n(]{1,200}\()(\d+)([:,]\d+)?"
    )
    places = list(islice(re.finditer(pattern, text), _MOST_PLACES)) if paths else []
    for place, following in zip(places, [*places[1:], None], strict=False):
        kind = _kind(text, place, following)
        if kind and not kind.lower().endswith("warning"):
            return f"{short_kind(kind)} in {place[1]} line {place[2]}"
    return None


def _kind(text: str, place: re.Match[str], following: re.Match[str] | None) -> str | None:
    """What was raised or reported there."""
    same = _SAME_LINE.match(text, place.end())
    if same and (same[1] or place[3]):
        return same[1] or "error"
    if place[3] or text.startswith(" +0x", place.end()):
        # JavaScript, Rust and Go name the error first, then the places.
        before = [*_OTHER_LINE.finditer(text, max(0, place.start() - _FAR), place.start())]
        return _word(before[-1]) if before else None
    after = _OTHER_LINE.search(text, place.end(), place.end() + _FAR)
    if after is None or (following and following.start() < after.start()):
        return None  # nothing was raised, or further down in the same traceback
    return _word(after)


def _word(kind: re.Match[str]) -> str:
    return kind[1] or "panic"
